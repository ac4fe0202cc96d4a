"""Makes, lists and revokes keys, on the database itself (docs, *Security*).

The first administrator needs no service for this, and nobody does it without access to the
database. With a service, administrators do it there (`broker.calls.key_administration`). Services
learn of a key by asking again (`broker.calls.callers`). Each function is one transaction, with its
row in the audit, and blocks. Raises `DatabaseUnreachable`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from broker.core.access import Role, check_key_name, check_patterns, digest, key_of
from broker.core.errors import Invalid
from broker.postgres.connections import Connection, DatabaseUnreachable, connect, line_of
from broker.store.ports import KeySummary

_COLUMNS = "id, name, role, queues, created_at, ends_at, revoked_at, last_used_at"
_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


class Created(NamedTuple):
    """A new key, with its text, which is stored nowhere. `is_first`: there was none before."""

    key: KeySummary
    text: str
    is_first: bool


class KeyRefused(Exception):
    """The call on keys was not carried out; the message is one line."""

    @classmethod
    def unknown(cls, key_id: str) -> Self:
        """No key has this id."""
        return cls(f"no key has the id {key_id!r}; 'counterpoise keys list' shows the keys")


def create(
    database_url: str,
    role: Role,
    queues: Sequence[str],
    name: str,
    ends_at: datetime | None = None,
) -> Created:
    """Make a key for the queues that match one of the patterns. Raises Invalid."""
    check_patterns(tuple(queues))
    check_key_name(name)
    if ends_at is not None and ends_at <= datetime.now(UTC):
        raise Invalid("The end of the key has passed already.")
    id, ends = secrets.token_hex(6), None if ends_at is None else ends_at.timestamp()
    text = key_of(id, secrets.token_hex(32))
    with _connected(database_url) as connection:
        is_first = not _any(connection)
        connection.execute(
            "INSERT INTO counterpoise.keys (id, hash, name, role, queues, created_at, ends_at)"
            f" VALUES (%s, %s, %s, %s, %s, {_NOW}, %s)",
            (id, digest(text), name, role.value, list(dict.fromkeys(queues)), ends),
        )
        key = _key(connection, id)
        _record(connection, "create_key", None, key.audited)
    return Created(key, text, is_first)


def every(database_url: str) -> list[KeySummary]:
    """All keys there ever were, in the order in which they were made."""
    with (
        _connected(database_url) as connection,
        connection.cursor(row_factory=class_row(KeySummary)) as one,
    ):
        return one.execute(f"{_SELECT} ORDER BY created_at, id").fetchall()


def revoke(database_url: str, id: str) -> KeySummary:
    """Revoke a key, for good. Harmless when repeated. Raises KeyRefused."""
    with _connected(database_url) as connection:
        before = _key(connection, id, "FOR UPDATE")
        if before.revoked_at is None:
            connection.execute(
                f"UPDATE counterpoise.keys SET revoked_at = {_NOW} WHERE id = %s", (id,)
            )
            _record(connection, "revoke_key", before.audited, _key(connection, id).audited)
        return _key(connection, id)


def any_made(database_url: str) -> bool:
    """Whether there ever was a key."""
    with _connected(database_url) as connection:
        return _any(connection)


_SELECT = f"""
SELECT {_COLUMNS}, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN ends_at <= {_NOW} THEN 'ended' ELSE 'valid' END AS state
FROM counterpoise.keys
"""


def _any(connection: Connection) -> bool:
    found = connection.execute("SELECT EXISTS (SELECT FROM counterpoise.keys)").fetchone()
    return found is not None and bool(found[0])


def _key(connection: Connection, id: str, lock: str = "") -> KeySummary:
    cursor = connection.cursor(row_factory=class_row(KeySummary))
    key = cursor.execute(f"{_SELECT} WHERE id = %s {lock}".encode(), (id,)).fetchone()
    if key is None:
        raise KeyRefused.unknown(id)
    return key


def _record(
    connection: Connection, call: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> None:
    """A row of the audit; the database's user stands for the caller's key."""
    connection.execute(
        "INSERT INTO counterpoise.audit (at, call, before, after)"
        f" VALUES ({_NOW}, %s, %s, %s || jsonb_build_object('database_user', session_user))",
        (call, None if before is None else Jsonb(before), Jsonb(after)),
    )


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    try:
        with connect(url) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise DatabaseUnreachable(line_of(error)) from None
