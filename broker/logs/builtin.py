"""The built-in log from the service's side: make, resize, discard, drop, trim, find a time.

Consumers and publishers talk to the log themselves (counterpoise.logs); what decides what must
exist is the control plane, and this module carries it out. It is told only what has been committed
there, so every call is idempotent: after a crash it is simply repeated. The log may be in another
database than the control tables. Database errors are SQLAlchemy's, and OSError while it cannot be
reached: TimeoutError, which is one, when it does not answer in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs.credentials import LogCredentials
from broker.logs.engine import STATEMENT_SECONDS
from broker.logs.ports import LogAccess, Purpose

SWEEP_MESSAGES = 10_000
# A call is given up before whoever asked for it gives up waiting for the answer (10 s). Looking up
# times and dropping take as long as there is to do.
CALL_SECONDS = 8.0
LONG_SECONDS = 60.0
# For each statement of the upkeep: deleting SWEEP_MESSAGES large messages does take minutes.
SWEEP_SECONDS = STATEMENT_SECONDS
# While a resize waits for an append under way, other appends wait for the resize.
_LOCK_SECONDS = 5
_LOCK = "SELECT * FROM counterpoise_log.lock_log(:name, :exclusive)"
_UNKNOWN_LOG = "CP002"


class LogNotFound(LookupError):
    """There is no built-in log of this name."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The queue whose log it is; `created_at` (Unix seconds) orders those of the same name."""

    queue_id: str
    created_at: float
    queue: str = ""


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """The earliest position of a partition that can be read, and the one after its last."""

    first: int
    next: int


def trim_floor(
    committed: Iterable[Mapping[int, int | None]], keep_messages: int = 0
) -> dict[int, int]:
    """Below which position each partition may be trimmed, given what each reading queue committed.

    One mapping {partition: position} for each queue that reads the log. Nothing is trimmed of a
    partition that one of them has not committed anything of (absent or None), and nothing at all
    when nobody reads (the contract, *Logs*). The last `keep_messages` that all have processed stay.
    """
    floor: dict[int, int] | None = None
    for positions in committed:
        known = {partition: at for partition, at in positions.items() if at is not None}
        if floor is None:
            floor = known
        else:
            floor = {
                partition: min(position, known[partition])
                for partition, position in floor.items()
                if partition in known
            }
    return {
        partition: position - keep_messages
        for partition, position in (floor or {}).items()
        if position >= keep_messages
    }


def _may_touch(log: Mapping[str, Any], owner: Owner | None) -> bool:
    """Whether a call on behalf of `owner` means this log; one that names nobody means any."""
    return owner is None or log["owner_id"] in (None, owner.queue_id)


class BuiltinLogs:
    """All built-in logs of one database."""

    def __init__(self, engine: AsyncEngine, address: str) -> None:
        """`address` is the database's URL as consumers and publishers reach it."""
        self._engine = engine
        self._credentials = LogCredentials(engine, address)

    async def credentials(self, kind: Purpose) -> LogAccess | None:
        """Short-lived credentials for all built-in logs; None if the service may not make roles."""
        return await self._credentials.get(kind)

    async def ensure(self, name: str, partition_count: int, owner: Owner | None = None) -> bool:
        """Make the log unless it exists (then its partition count stays as it is).

        A log that an earlier queue of the same name left behind is dropped first. False: the log is
        that of a later one, so the caller is out of date.
        """
        async with self._transaction() as connection:
            await self._insert(connection, name, partition_count, owner)
            if owner is not None:
                log = await self._known(connection, name)
                if log["owner_id"] != owner.queue_id:
                    if log["owner_created_at"] is not None and (
                        log["owner_created_at"].timestamp() > owner.created_at
                    ):
                        return False
                    log = await self._lock(connection, name)
                    await connection.execute(
                        text("DELETE FROM counterpoise_log.logs WHERE log_id = :log_id"),
                        {"log_id": log["log_id"]},
                    )
                    await self._insert(connection, name, partition_count, owner)
            await self._add_partitions(connection, name)
            return True

    async def _insert(
        self, connection: AsyncConnection, name: str, partition_count: int, owner: Owner | None
    ) -> None:
        created_at = None if owner is None else datetime.fromtimestamp(owner.created_at, UTC)
        await connection.execute(
            text(
                "INSERT INTO counterpoise_log.logs"
                " (name, partition_count, owner_id, owner_created_at)"
                " VALUES (:name, :count, :owner_id, :created_at) ON CONFLICT (name) DO NOTHING"
            ),
            {
                "name": name,
                "count": partition_count,
                "owner_id": None if owner is None else owner.queue_id,
                "created_at": created_at,
            },
        )

    async def set_partition_count(
        self,
        name: str,
        partition_count: int,
        revision: int | None = None,
        owner: Owner | None = None,
    ) -> bool:
        """Refuse appends routed with another count from now on. Whether that is what now holds.

        Waits for the appends under way. `revision` is the queue's revision that set this count: a
        call that comes late, after one with a higher revision, changes nothing and answers False;
        so does one of an `owner` whose log it is not. Raises LogNotFound, and SQLAlchemy's
        DBAPIError when an append does not end within seconds.
        """
        async with self._transaction() as connection:
            log = await self._lock(connection, name)
            late = revision is not None and revision < log["revision"]
            if late or not _may_touch(log, owner):
                return False
            await connection.execute(
                text(
                    "UPDATE counterpoise_log.logs SET partition_count = :count,"
                    " revision = greatest(revision, :revision) WHERE log_id = :log_id"
                ),
                {
                    "count": partition_count,
                    "revision": revision or 0,
                    "log_id": log["log_id"],
                },
            )
            await self._add_partitions(connection, name)
            return True

    async def discard(
        self, name: str, partitions: Iterable[int], owner: Owner | None = None
    ) -> frozenset[int]:
        """Delete what these partitions hold; their positions count on. Returns those it did.

        Only of partitions outside the log's partition count, and with `owner` only of that queue's
        log: one that is in use again is left alone, for this call may come late. Readers of what
        vanished find nothing, without error.
        """
        async with self._transaction() as connection:
            log = await self._lock(connection, name)
            if not _may_touch(log, owner):
                return frozenset()
            discarded = await connection.scalars(
                text(
                    "UPDATE counterpoise_log.partitions"
                    " SET first_position = next_position, discarded_position = next_position"
                    " WHERE log_id = :log_id AND partition = ANY (CAST(:partitions AS integer[]))"
                    " AND partition >= :count RETURNING partition"
                ),
                {
                    "log_id": log["log_id"],
                    "partitions": sorted(partitions),
                    "count": log["partition_count"],
                },
            )
            result = frozenset(discarded)
        await self._sweep(name)
        return result

    async def drop(self, name: str, owner: Owner | None = None) -> None:
        """Delete the log with all it holds.

        With `owner` only if it is that queue's, or nobody's: this call may come late, and the log
        that a later queue of the same name has by then is another one.
        """
        try:
            async with self._transaction(LONG_SECONDS) as connection:
                log = await self._lock(connection, name)
                if _may_touch(log, owner):
                    await connection.execute(
                        text("DELETE FROM counterpoise_log.logs WHERE log_id = :log_id"),
                        {"log_id": log["log_id"]},
                    )
        except LogNotFound:
            pass
        await self.sweep_dropped()

    async def trim(self, name: str, below: Mapping[int, int], owner: Owner | None = None) -> None:
        """Delete what lies below these positions (see `trim_floor`), in short transactions.

        With `owner` nothing if the log is another queue's: those are not its positions.
        """
        async with self._transaction() as connection:
            # Nobody drops it before this ends, so the name stays that of the log looked at.
            if not _may_touch(await self._lock(connection, name, exclusive=False), owner):
                return
            await connection.execute(
                text(
                    "SELECT counterpoise_log.trim(:name, CAST(:partitions AS integer[]),"
                    " CAST(:positions AS bigint[]))"
                ),
                {
                    "name": name,
                    "partitions": list(below),
                    "positions": list(below.values()),
                },
            )
        await self._sweep(name)

    async def sweep_dropped(self) -> int:
        """Delete messages of logs that were dropped, also when that was interrupted."""
        return await self._repeat(
            "SELECT counterpoise_log.sweep_dropped(:limit)", {"limit": SWEEP_MESSAGES}
        )

    async def forget_publishers(self, idle_seconds: float) -> int:
        """Forget publishers that have not appended for so long. Returns how many.

        A retry that comes even later would be appended a second time: choose days.
        """
        async with self._transaction(SWEEP_SECONDS) as connection:
            result = await connection.execute(
                text(
                    "DELETE FROM counterpoise_log.publishers"
                    " WHERE appended_at < now() - make_interval(secs => :idle)"
                ),
                {"idle": idle_seconds},
            )
            return result.rowcount

    async def partition_count(self, name: str) -> int:
        """The partition count the log works with. Raises LogNotFound."""
        async with self._transaction() as connection:
            return int((await self._known(connection, name))["partition_count"])

    async def bounds(
        self, name: str, partitions: Sequence[int] | None = None
    ) -> dict[int, PartitionBounds]:
        """First and next position of these partitions, or of every one the log ever had.

        Raises LogNotFound.
        """
        async with self._transaction() as connection:
            log = await self._known(connection, name)
            rows = await connection.execute(
                text(
                    "SELECT partition, first_position, next_position"
                    " FROM counterpoise_log.partitions WHERE log_id = :log_id"
                    " AND (:every OR partition = ANY (CAST(:partitions AS integer[])))"
                    " ORDER BY partition"
                ),
                {
                    "log_id": log["log_id"],
                    "every": partitions is None,
                    "partitions": list(partitions or ()),
                },
            )
            return {row[0]: PartitionBounds(row[1], row[2]) for row in rows}

    async def position_at(self, name: str, time: float) -> dict[int, int]:
        """For every partition the position of the first message published at `time` or later.

        `time` is in Unix seconds. Nothing published since then lies below, also where publishers
        gave times that are not in order; without such a message it is the partition's end.
        """
        async with self._transaction(LONG_SECONDS) as connection:
            log = await self._known(connection, name)
            rows = await connection.execute(
                text(
                    "SELECT p.partition, coalesce(since.position, p.next_position)"
                    " FROM counterpoise_log.partitions AS p LEFT JOIN ("
                    "   SELECT m.partition, min(m.position) AS position"
                    "   FROM counterpoise_log.messages AS m"
                    "   JOIN counterpoise_log.partitions AS mine"
                    "     ON mine.log_id = m.log_id AND mine.partition = m.partition"
                    "     AND m.position >= mine.first_position"
                    "   WHERE m.log_id = :log_id"
                    "     AND m.published_at >= to_timestamp(CAST(:time AS double precision))"
                    "   GROUP BY m.partition"
                    " ) AS since USING (partition) WHERE p.log_id = :log_id ORDER BY p.partition"
                ),
                {"log_id": log["log_id"], "time": time},
            )
            return {row[0]: row[1] for row in rows}

    @asynccontextmanager
    async def _transaction(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction that is given up with TimeoutError after CALL_SECONDS, or so many."""
        try:
            async with (
                asyncio.timeout(CALL_SECONDS if seconds is None else seconds),
                self._engine.begin() as connection,
            ):
                yield connection
        except TimeoutError:
            raise TimeoutError("the log's database did not answer in time") from None

    async def _add_partitions(self, connection: AsyncConnection, name: str) -> None:
        await connection.execute(
            text(
                "INSERT INTO counterpoise_log.partitions (log_id, partition)"
                " SELECT log_id, generate_series(0, partition_count - 1)"
                " FROM counterpoise_log.logs WHERE name = :name ORDER BY 2"
                " ON CONFLICT DO NOTHING"
            ),
            {"name": name},
        )

    async def _lock(
        self, connection: AsyncConnection, name: str, exclusive: bool = True
    ) -> Mapping[str, Any]:
        """Keep resizes and drops away until the transaction ends, and appends too if `exclusive`.

        Returns the log's row as it then is.
        """
        await self._known(connection, name)
        await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'"))
        try:
            locked = await connection.execute(text(_LOCK), {"name": name, "exclusive": exclusive})
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _UNKNOWN_LOG:
                raise LogNotFound(f"there is no log {name!r}") from None
            raise
        return dict(locked.mappings().one())

    async def _known(self, connection: AsyncConnection, name: str) -> Mapping[str, Any]:
        found = await connection.execute(
            text("SELECT * FROM counterpoise_log.logs WHERE name = :name"), {"name": name}
        )
        log = found.mappings().first()
        if log is None:
            raise LogNotFound(f"there is no log {name!r}")
        return dict(log)

    async def _sweep(self, name: str) -> None:
        await self._repeat(
            "SELECT counterpoise_log.sweep(:name, :limit)",
            {"name": name, "limit": SWEEP_MESSAGES},
        )

    async def _repeat(self, statement: str, parameters: Mapping[str, object]) -> int:
        """Run a statement that deletes a bounded number of messages until it finds none."""
        total = 0
        while True:
            async with self._transaction(SWEEP_SECONDS) as connection:
                deleted = await connection.scalar(text(statement), parameters) or 0
            if not deleted:
                return total
            total += deleted
