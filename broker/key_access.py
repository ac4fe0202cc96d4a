"""Where `counterpoise keys` works: through a service, or on the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Protocol

from broker import access_keys
from broker.access_keys import Created, KeyRefused
from broker.core.access import Role
from broker.key_database import Served, Silent, service_at
from broker.launch import Reached
from broker.settings import SettingsError
from broker.store.ports import KeySummary
from counterpoise import wire
from counterpoise.client import Client, token_of_environment
from counterpoise.errors import CounterpoiseError, Refused, Unauthorized


class KeysOf(Protocol):
    """The keys of one place. `said` names it, for people. Methods raise what went wrong."""

    said: str

    def create(
        self, role: Role, queues: Sequence[str], name: str, ends_at: datetime | None
    ) -> Created: ...

    def every(self) -> Sequence[KeySummary]: ...

    def revoke(self, key_id: str) -> KeySummary: ...


class _InDatabase:
    def __init__(self, database: Reached) -> None:
        self._url, self.said = database

    def create(
        self, role: Role, queues: Sequence[str], name: str, ends_at: datetime | None
    ) -> Created:
        return access_keys.create(self._url, role, queues, name, ends_at)

    def every(self) -> Sequence[KeySummary]:
        return access_keys.every(self._url)

    def revoke(self, key_id: str) -> KeySummary:
        return access_keys.revoke(self._url, key_id)


class _OfService:
    def __init__(self, client: Client, service: Served) -> None:
        self._client = client
        named = "does not say" if service.database is None else f"names it {service.database}"
        self.said = f"Service: {service.url}; its database: /readyz {named}."

    def create(
        self, role: Role, queues: Sequence[str], name: str, ends_at: datetime | None
    ) -> Created:
        made = self._client.create_key(role, queues, name, ends_at)
        return Created(_summary(made), made.key, made.is_first)

    def every(self) -> Sequence[KeySummary]:
        return [_summary(key) for key in self._client.list_keys(everything=True)]

    def revoke(self, key_id: str) -> KeySummary:
        try:
            return _summary(self._client.revoke_key(key_id))
        except Refused as error:
            if error.code in ("key_not_found", "invalid"):
                raise KeyRefused.unknown(key_id) from None
            raise


def keys_in(database: Reached) -> KeysOf:
    """The keys of a database."""
    return _InDatabase(database)


@contextmanager
def keys_of_service(url: str | None) -> Iterator[KeysOf | None]:
    """The keys of the service at this address (None: COUNTERPOISE_URL, or the default).

    None: no service is there, or it is of a release without these calls, or it needs a key and we
    have none. Raises KeyRefused, in the block too; also for one that does not answer.
    """
    service: Served | Silent | str = ""
    with suppress(SettingsError):  # the database's way says so
        service = service_at(url)
    if isinstance(service, Silent):
        raise KeyRefused(
            f"{service.reason}; try again, or name its database with --data-dir or --database-url"
        )
    if not isinstance(service, Served):
        yield None
        return
    try:
        with Client(url) as client:
            yield _OfService(client, service) if _takes(client) else None
    except CounterpoiseError as error:
        raise KeyRefused(str(error)) from None


def _takes(client: Client) -> bool:
    """Whether the service makes keys for us."""
    try:
        client.list_keys(max_items=1)
    except Unauthorized:
        if token_of_environment():
            raise
        return False
    except Refused as error:
        if error.status in (404, 405):
            return False
        raise
    return True


def _summary(key: wire.Key) -> KeySummary:
    return KeySummary(
        key.id,
        key.name,
        key.role,
        key.queues,
        _seconds(key.created_at) or 0.0,
        _seconds(key.ends_at),
        _seconds(key.revoked_at),
        _seconds(key.last_used_at),
        key.state,
    )


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
