"""Services with keys, for tests: who calls, and what the contract allows each."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from broker import access_keys
from broker.core.access import Role
from broker.service import Broker
from tests.service import Service, running, settings_for

CONTRACT = Path(__file__).parents[2] / "docs" / "protocol.md"
CALLERS = ("without", "flow", *(role.value for role in Role))


@functools.cache
def table() -> Mapping[str, Mapping[str, str]]:
    """The contract's table, *Who may call what*: by call and caller `✓`, a purpose, or nothing."""
    section = CONTRACT.read_text("utf-8").partition("### Who may call what")[2]
    rows = re.findall(r"^\| `(\S+ \S+)` \|(.*)\|$", section.partition("\n## ")[0], re.M)
    return {
        call: dict(zip(CALLERS, map(str.strip, cells.split("|")), strict=True))
        for call, cells in rows
    }


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@dataclass
class Guarded:
    """A service with keys. `keys` are for `team-a.*`, one of each role; `root` is for all."""

    url: str
    service: Service
    root: str
    keys: dict[str, str]

    @property
    def http(self) -> httpx.Client:
        """Without a credential; the base of its paths is the service's root."""
        return httpx.Client(base_url=self.service.url, timeout=60, verify=False)

    def key(self, role: str, *queues: str, **given: object) -> str:
        """A new key."""
        return access_keys.create(self.url, Role(role), queues or ("*",), "test", **given).text  # type: ignore[arg-type]

    def create(self, queue: str, **settings: object) -> None:
        """A queue without a holddown."""
        body = {"name": queue, "partition_count": 2, "rebalance_delay": 0, **settings}
        with self.http as http:
            made = http.post("/v1/queues", json=body, headers=bearer(self.root))
        assert made.status_code == 201, made.text

    def bind(self, queue: str, key: str, instance: str | None = None) -> tuple[str, str]:
        """A flow's id and token."""
        body = {"client_name": "etl", "lease_seconds": 60, "instance_id": instance}
        with self.http as http:
            bound = http.post(f"/v1/queues/{queue}/flows", json=body, headers=bearer(key))
        assert bound.status_code == 201, bound.text
        return bound.json()["flow_id"], bound.json()["flow_token"]


@contextlib.contextmanager
def guarded(url: str, **settings: object) -> Iterator[Guarded]:
    """A service with keys on this database."""
    root = access_keys.create(url, Role.ADMIN, ("*",), "root").text
    of_team = {
        role.value: access_keys.create(url, role, ("team-a.*",), role.value).text for role in Role
    }
    given = settings_for(url, **settings)
    with running(Broker(given), given) as service:
        yield Guarded(url, service, root, of_team)
