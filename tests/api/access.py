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
    """The contract's tables of calls (*HTTP*): by call and caller `✓`, a purpose, or nothing."""
    found = {}
    for calls, who in re.findall(r"^\| (`[A-Z]+ /[^|]+`) \| ([^|]+) \|", section(), re.M):
        may = _callers(who)
        for method, path in re.findall(r"`([A-Z]+) ([^`?]+)", calls):
            outside = path in ("/healthz", "/readyz", "/metrics")
            found[f"{method} {path if outside else '/v1' + path}"] = may
    return found


def section() -> str:
    """The contract's section *HTTP* up to its next heading."""
    return CONTRACT.read_text("utf-8").partition("\n## HTTP\n")[2].partition("\n### ")[0]


def _callers(who: str) -> Mapping[str, str]:
    """What a cell of *who* says of each caller (the contract, *Who may call what*)."""
    roles = [role.value for role in Role]
    may = dict.fromkeys(CALLERS, "")
    for part in who.split(", "):
        name, _, purpose = part.partition(": ")
        named = {"all": CALLERS, "keys": roles}.get(name, [name])
        may |= dict.fromkeys(named, purpose or "✓")
    if any(may[role] for role in roles):
        may[Role.ADMIN.value] = "✓"
    return may


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
