"""Which database the service at an address uses.

A command that works on a database must work on that of the service which people call. Otherwise it
reports success, and nothing changes for them. `/readyz` names the tables that a service uses
(`broker.postgres.restoring.identity`).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from counterpoise.client import Client
from counterpoise.errors import InvalidUrl, ServiceUnavailable

TIMEOUT_SECONDS = 3.0


class NoAddress(Exception):
    """The text is not the address of a service."""


class Served(NamedTuple):
    """A service that answers, and the name of its tables; None if it does not give it."""

    url: str
    database: str | None


def service_at(url: str | None) -> Served | str:
    """The service at this address (None: COUNTERPOISE_URL, or the default), or the address if no
    service answers there. Raises NoAddress."""
    try:
        client = Client(url, timeout_seconds=TIMEOUT_SECONDS)
    except InvalidUrl as error:
        raise NoAddress(str(error)) from None
    with client:
        root = client.url.removesuffix("/v1")
        try:
            answer = client.probe("/readyz")
            document = json.loads(answer.text)
        except (ServiceUnavailable, ValueError):
            return root
    if not isinstance(document, dict) or not {"status", "code"} & document.keys():
        return root
    database = document.get("database")
    return Served(root, database if isinstance(database, str) else None)
