"""Which database the service at an address uses.

A command that works on a database must work on that of the service which people call. Otherwise it
reports success, and nothing changes for them. `/readyz` names the tables that a service uses
(`broker.postgres.restoring.identity`).
"""

from __future__ import annotations

import json
from typing import NamedTuple

import httpx

from broker.settings import SettingsError
from counterpoise.client import Client
from counterpoise.errors import InvalidSettings, ServiceUnavailable, Unreachable

TIMEOUT_SECONDS = 10.0


class Served(NamedTuple):
    """A service that answers, and the name of its tables; None if it does not give it."""

    url: str
    database: str | None


class Silent(NamedTuple):
    """What is at the address takes connections, and no answer came: perhaps a slow service."""

    url: str
    reason: str


def service_at(url: str | None) -> Served | Silent | str:
    """The service at this address (None: COUNTERPOISE_URL, or the default), or the address if no
    service is there. Raises SettingsError."""
    try:
        client = Client(url, timeout_seconds=TIMEOUT_SECONDS)
    except InvalidSettings as error:
        raise SettingsError(str(error)) from None
    with client:
        root = client.url.removesuffix("/v1")
        try:
            answer = client.probe("/readyz")
            document = json.loads(answer.text)
        except Unreachable as error:
            absent = isinstance(error.__cause__, httpx.ConnectError)
            return root if absent else Silent(root, str(error))
        except (ServiceUnavailable, ValueError):
            return root
    if not isinstance(document, dict) or not {"status", "code"} & document.keys():
        return root
    database = document.get("database")
    return Served(root, database if isinstance(database, str) else None)
