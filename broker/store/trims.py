"""Announced trims and ends of logs: nothing is removed that a queue begins to need.

Which messages can go is decided from the list of a log's readers and their positions. Then the log
trims, in a database of its own. Meanwhile a queue may be made that reads this log, or positions may
be set back. So each log has a row here, in the database of the queues:

- A trim is **announced** before it is carried out, with all it needs. The announcement is refused
  unless `readers` is what it was before the queues were listed and their positions read.
- A transaction that makes a reader or sets positions does so under a `Fence`. It changes `readers`,
  and is refused if a trim was announced since the fence was taken.
- A fence is taken only while no trim is **pending**. A replica that finds one carries it out first.
  So a replica that dies holds nothing up, and one that wakes up late trims what is trimmed already.
- The **end** of a log is announced by the transaction that deletes the queue it belongs to, in the
  place of any trim. The transaction is refused if `readers` is not what it was before the log's
  other queues were listed. So no queue begins to read a log that ends, and a log whose queue is
  deleted is dropped, whatever happens to the replica.

The row's lock orders the two, so each sees the other. It is taken after all other locks. `readers`
and `announced` are random, so that they never mean an earlier row of the same log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Text, bindparam, delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import PreparedStatement
from broker.store.tables import trims

NEVER = ""
"""The name of the last trim of a log that has no row yet."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A commit happens only if no trim of `log` was announced after the one named `announced`."""

    log: str
    announced: str


@dataclass(frozen=True, slots=True)
class Trimming:
    """The row of a log. `pending`: the announced trim or end (JSON), until it was carried out."""

    readers: str
    announced: str
    pending: str | None


@dataclass(frozen=True, slots=True)
class End:
    """The end of `log`, announced as `name` unless a reader came since `readers` was `seen` (None:
    since there was no row). `pending`: as in `Trimming`.
    """

    log: str
    seen: str | None
    name: str
    pending: str


class TrimStore(Protocol):
    """The announced trims, by the canonical address of the log. Raises StoreUnavailable."""

    async def all(self) -> Mapping[str, Trimming]:
        """The rows of all logs; a log that was never fenced or trimmed has none."""

    async def read(self, log: str) -> Trimming | None:
        """The row of one log."""

    async def announce(self, log: str, seen: str | None, name: str, pending: str) -> bool:
        """Announce a trim. False: a reader came or was set since `readers` was `seen` (None: since
        there was no row), or another trim is pending.
        """

    async def done(self, log: str, announced: str) -> None:
        """The trim of this name was carried out."""

    async def forget(self, log: str, seen: str) -> None:
        """Delete the row of a log without readers, unless one came since `readers` was `seen`, or a
        trim is pending.
        """


class PostgresTrims:
    """Implements `TrimStore`; `fetch` carries out one statement."""

    def __init__(
        self, fetch: Callable[[PreparedStatement, Mapping[str, Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._fetch = fetch

    async def all(self) -> Mapping[str, Trimming]:
        return {log: Trimming(*row) for log, *row in await self._fetch(_ALL, {})}

    async def read(self, log: str) -> Trimming | None:
        found = await self._fetch(_LOOK, {"address": log})
        return Trimming(*found[0]) if found else None

    async def announce(self, log: str, seen: str | None, name: str, pending: str) -> bool:
        values = {"address": log, "name": name, "what": pending}
        if seen is None:
            return bool(await self._fetch(_ANNOUNCE_FIRST, values))
        return bool(await self._fetch(_ANNOUNCE, {**values, "seen": seen}))

    async def done(self, log: str, announced: str) -> None:
        await self._fetch(_DONE, {"address": log, "name": announced})

    async def forget(self, log: str, seen: str) -> None:
        await self._fetch(_FORGET, {"address": log, "seen": seen})


_ROW = (trims.c.readers, trims.c.announced, trims.c.pending)
_OF_LOG = trims.c.log == bindparam("address", type_=Text)
_SEEN = trims.c.readers == bindparam("seen", type_=Text)
_NAME: ColumnElement[str] = bindparam("name", type_=Text)
_PENDING: ColumnElement[str] = bindparam("what", type_=Text)
_ALL = PreparedStatement(select(trims.c.log, *_ROW))
_LOOK = PreparedStatement(select(*_ROW).where(_OF_LOG))
_first = (
    insert(trims)
    .from_select(
        ["log", "readers", "announced", "pending"],
        select(bindparam("address", type_=Text), _NAME, _NAME, _PENDING),
    )
    .on_conflict_do_nothing()
    .returning(trims.c.log)
)
_ANNOUNCE_FIRST = PreparedStatement(_first)
_replaced = (
    update(trims)
    .where(_OF_LOG, _SEEN)
    .values(announced=_NAME, pending=_PENDING)
    .returning(trims.c.log)
)
_ANNOUNCE = PreparedStatement(_replaced.where(trims.c.pending.is_(None)))
_DONE = PreparedStatement(
    update(trims).where(_OF_LOG, trims.c.announced == _NAME).values(pending=None)
)
_FORGET = PreparedStatement(delete(trims).where(_OF_LOG, _SEEN, trims.c.pending.is_(None)))
# A creation passes its fence, as `sql/commit.sql` does: a row, or none if a trim was announced
# meanwhile.
_passed = insert(trims).values(
    log=bindparam("log"), readers=bindparam("commit"), announced=bindparam("announced")
)
PASS_FENCE = _passed.on_conflict_do_update(
    index_elements=[trims.c.log],
    set_={"readers": _passed.excluded.readers},
    where=(trims.c.announced == _passed.excluded.announced) & trims.c.pending.is_(None),
).returning(trims.c.log)


async def announce_end(connection: AsyncConnection, end: End) -> bool:
    """Announce the end of a log in the transaction that deletes its queue, after all other locks.

    False: a reader came since.
    """
    values = {"address": end.log, "name": end.name, "what": end.pending}
    if end.seen is None:
        return (await connection.execute(_first, values)).first() is not None
    found = await connection.execute(_replaced, {**values, "seen": end.seen})
    return found.first() is not None
