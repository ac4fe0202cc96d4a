"""The built-in logs: the kind of log in Postgres, in the service's database or another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs import database
from broker.logs.credentials import CONNECTIONS, ClientCredentials
from broker.logs.database import LogDatabase, available, may_touch, name_of, within
from broker.logs.hash_ranges import HashRanges
from broker.logs.peeking import Peek, PeekedMessage
from broker.logs.ports import (
    Bounds,
    Holder,
    LogAccess,
    LogDatabaseUnavailable,
    LogOwner,
    Purpose,
)
from broker.logs.retention import Young
from broker.logs.roles import EXPIRE_FOR_LOG, ClientRoles
from broker.logs.times import positions_at
from broker.pieces import pieces
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    InvalidMessage,
    LogNotFound,
    StaleRouting,
)
from counterpoise.logs.builtin import (
    LOG_NOT_FOUND,
    OUT_OF_RANGE,
    STALE_PARTITION_COUNT,
    STALE_RANGES,
)
from counterpoise.logs.builtin.ages import ages_statement
from counterpoise.logs.builtin.bounds import COLUMNS, ReadBounds
from counterpoise.logs.ranges import HashRange, Ranges

SWEEP_MESSAGES = 10_000
_BOUNDS = (
    f"SELECT {COLUMNS} FROM counterpoise_log.logs AS l"
    " LEFT JOIN counterpoise_log.partitions AS p ON p.log_id = l.log_id{} WHERE l.name = :name"
    " ORDER BY p.partition"
)
_EVERY_BOUND = text(_BOUNDS.format(""))
_AGES = text(
    ages_statement(
        partitions="CAST(:partitions AS integer[])",
        positions="CAST(:positions AS bigint[])",
        name=":name",
    )
)
# A value is stored so that its beginning is read without the rest. A publisher may have given any
# time that Postgres takes; others than these cannot be shown.
_PEEK = text(
    """SELECT position, CASE WHEN published_at BETWEEN '0001-01-02' AND '9999-12-30'
            THEN extract(epoch FROM published_at)::double precision END,
        left(key, :most),
        CASE WHEN headers IS NULL THEN '{}'
            WHEN octet_length(headers::text) <= :most THEN headers::text END,
        substring(value FROM 1 FOR :most), octet_length(value)
    FROM counterpoise_log.messages
    WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = :name)
        AND partition = :partition AND position >= :start AND position < :end
    ORDER BY position LIMIT :limit"""
)
_MESSAGE = """ARRAY[CAST(:partition AS integer)], ARRAY[CAST(:value AS bytea)],
    ARRAY[CAST(:key AS text)], ARRAY[CAST(:headers AS text)], ARRAY[CAST(:at AS timestamptz)]"""
_BY = "CAST(:publisher AS text), CAST(:sequence AS bigint)"
_APPEND = text(
    "SELECT appended, watched FROM counterpoise_log.append("
    f"CAST(:name AS text), CAST(:count AS integer), {_BY}, {_MESSAGE})"
)
_APPEND_BY_RANGE = text(
    "SELECT appended, watched FROM counterpoise_log.append_by_range("
    f"CAST(:name AS text), {_BY}, {_MESSAGE})"
)
_WAKE = text("SELECT counterpoise_log.wake(CAST(:name AS text), CAST(:partitions AS integer[]))")
_RANGES = text(
    "SELECT first_hash, last_hash, partition FROM counterpoise_log.ranges(CAST(:name AS text))"
)
# Of each partition it looks at no more than the next :window positions.
_YOUNG = text("""
SELECT p.partition, since.position, size.mean, looked.until
FROM counterpoise_log.logs AS l JOIN counterpoise_log.partitions AS p USING (log_id)
JOIN unnest(CAST(:partitions AS integer[]), CAST(:begins AS bigint[]), CAST(:ends AS bigint[]))
    AS given (partition, begin, until) ON given.partition = p.partition
CROSS JOIN LATERAL (
    SELECT greatest(p.first_position, given.begin) AS begin,
        least(given.until, greatest(p.first_position, given.begin) + :window) AS until
) AS looked
LEFT JOIN LATERAL (
    SELECT m.position FROM counterpoise_log.messages AS m
    WHERE m.log_id = p.log_id AND m.partition = p.partition
        AND m.position >= looked.begin AND m.position < looked.until
        AND m.published_at >= now() - make_interval(secs => :seconds)
    ORDER BY m.position LIMIT 1
) AS since ON true
CROSS JOIN LATERAL (
    SELECT CAST(avg(one.bytes) AS double precision) AS mean FROM (
        SELECT octet_length(m.value) + coalesce(octet_length(m.key), 0)
            + coalesce(octet_length(CAST(m.headers AS text)), 0) AS bytes
        FROM counterpoise_log.messages AS m
        WHERE m.log_id = p.log_id AND m.partition = p.partition
            AND m.position >= since.position AND m.position < given.until
        ORDER BY m.position LIMIT :sample
    ) AS one
) AS size
WHERE l.name = :name
""")
SAMPLE = 10
"""So many messages of a partition stand for the size of the others."""
SEARCHED = 1_000_000
"""So many old messages are passed over by one statement that looks for young ones."""
SEARCH_SECONDS = 30.0
"""After this time a search for young messages ends where it is; the next one goes on there."""
_SOME_BOUNDS = text(_BOUNDS.format(" AND p.partition = ANY (CAST(:partitions AS integer[]))"))


class BuiltinLogs:
    """All built-in logs of one database; see `broker.logs.ports.LogKind` for the calls.

    A call without an `owner` is for the log of any owner. A refusal of the database, or no answer
    in time, raises LogDatabaseUnavailable.
    """

    takes_cuts = True

    def __init__(
        self,
        engine: AsyncEngine,
        address: str,
        *,
        making: AsyncEngine | None = None,
        tls: bool = False,
        connections: int = CONNECTIONS,
    ) -> None:
        """`address` is the database's URL as consumers and publishers reach it.

        `making`: another engine for the same database, for the credentials that a bind waits for.
        `tls`: the service speaks HTTPS. `connections`: the most of one client.
        """
        self._database = LogDatabase(engine)
        self.ranges = HashRanges(self._database)
        self._credentials = ClientCredentials(
            engine, address, making=making, tls=tls, connections=connections
        )
        self._roles = ClientRoles(engine)

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """Short-lived credentials; None if the service may not make roles."""
        with available():
            access = await self._credentials.get(name_of(log), purpose, holder, refused=refused)
        if surplus := frozenset(self._credentials.surplus):
            async with within(database.CALL_SECONDS):
                await self._roles.end(surplus)
            self._credentials.surplus -= surplus
        return access

    async def holders(self) -> frozenset[str]:
        """The names of all that have had credentials for a while."""
        async with within(database.CALL_SECONDS):
            return await self._roles.holders()

    async def keys_in_use(self) -> frozenset[str]:
        """The ids of all keys with which credentials were made."""
        async with within(database.CALL_SECONDS):
            return await self._roles.keys()

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        """End the credentials of these holders, or made with these keys, and their connections."""
        self._credentials.forget(holders=frozenset(holders), keys=frozenset(keys))
        async with within(database.LONG_SECONDS):
            await self._roles.revoke(holders, keys)

    async def watch(self) -> None:
        """End sessions that would be in the way of others (see `broker.logs.roles`)."""
        async with within(database.CALL_SECONDS):
            await self._roles.watch()

    async def drop_expired_credentials(self) -> None:
        """End expired roles, with their sessions."""
        self._credentials.forget()
        async with within(database.LONG_SECONDS):
            await self._roles.drop_expired()

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner | None = None,
        committed: Sequence[Mapping[int, str]] = (),
        keys: Mapping[int, str] | None = None,
    ) -> bool:
        """See `LogKind`. A log that an earlier queue of the same name left is dropped first.

        The log loses no message that its database has confirmed, so it ignores `committed`.
        With `keys` the log is a dynamic one: if it does not exist, it gets partitions with these
        hash ranges. Then raises LogError unless they cover all hashes exactly once.
        """
        name = name_of(log)
        async with self._database.transaction() as connection:
            await self._insert(connection, name, partition_count, owner)
            known = await self._database.known(connection, name)
            if owner is not None and known["owner_id"] != owner.queue_id:
                if known["owner_created_at"] is not None and (
                    known["owner_created_at"].timestamp() > owner.created_at
                ):
                    return False
                await self._drop(connection, await self._database.lock(connection, name))
                await self._insert(connection, name, partition_count, owner)
                known = await self._database.known(connection, name)
            if keys is None:
                await self._add_partitions(connection, name)
            else:
                await self.ranges.begin(connection, known["log_id"], keys)
            return True

    async def _insert(
        self, connection: AsyncConnection, name: str, partition_count: int, owner: LogOwner | None
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
        log: str,
        partition_count: int,
        revision: int | None = None,
        owner: LogOwner | None = None,
    ) -> bool:
        """See `LogKind`. Waits seconds for running appends; without `revision` never outdated."""
        async with self._database.transaction() as connection:
            known = await self._database.lock(connection, name_of(log))
            late = revision is not None and revision < known["revision"]
            if late or not may_touch(known, owner):
                return False
            await connection.execute(
                text(
                    "UPDATE counterpoise_log.logs SET partition_count = :count,"
                    " revision = greatest(revision, :revision) WHERE log_id = :log_id"
                ),
                {
                    "count": partition_count,
                    "revision": revision or 0,
                    "log_id": known["log_id"],
                },
            )
            await self._add_partitions(connection, name_of(log))
            return True

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner | None = None
    ) -> frozenset[int]:
        """See `LogKind`. Positions continue; readers of discarded messages get no error."""
        async with self._database.transaction() as connection:
            known = await self._database.lock(connection, name_of(log))
            if not may_touch(known, owner):
                return frozenset()
            discarded = await connection.scalars(
                text(
                    "UPDATE counterpoise_log.partitions"
                    " SET first_position = next_position, discarded_position = next_position"
                    " WHERE log_id = :log_id AND partition = ANY (CAST(:partitions AS integer[]))"
                    " AND partition >= :count RETURNING partition"
                ),
                {
                    "log_id": known["log_id"],
                    "partitions": sorted(partitions),
                    "count": known["partition_count"],
                },
            )
            result = frozenset(discarded)
        # Whoever reads a range that was planned before finds what is still there.
        await self._sweep(name_of(log))
        return result

    async def drop(self, log: str, owner: LogOwner | None = None) -> None:
        """See `LogKind`. A log without an owner is dropped for any caller.

        The log is gone at once; the upkeep deletes what it held (`sweep_dropped`).
        """
        with suppress(LogNotFound):
            async with self._database.transaction(database.LONG_SECONDS) as connection:
                known = await self._database.lock(connection, name_of(log))
                if may_touch(known, owner):
                    await self._drop(connection, known)

    async def _drop(self, connection: AsyncConnection, log: Mapping[str, Any]) -> None:
        """Delete the locked log. Credentials for it are not good for a later one of its name."""
        await connection.execute(
            text("DELETE FROM counterpoise_log.logs WHERE log_id = :log_id"),
            {"log_id": log["log_id"]},
        )
        await connection.execute(text(EXPIRE_FOR_LOG), {"log": log["name"]})
        self._credentials.forget(log["name"])

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        """See `LogKind`; in short transactions."""
        async with self._database.transaction() as connection:
            # It cannot be dropped before this ends, so the name stays that of this log.
            known = await self._database.lock(connection, name_of(log), exclusive=False)
            if not may_touch(known, owner):
                return
            await connection.execute(
                text(
                    "SELECT counterpoise_log.trim(:name, CAST(:partitions AS integer[]),"
                    " CAST(:positions AS bigint[]))"
                ),
                {
                    "name": name_of(log),
                    "partitions": list(below),
                    "positions": [int(position) for position in below.values()],
                },
            )
        await self._sweep(name_of(log))

    async def sweep_dropped(self) -> int:
        """Delete messages of logs that were dropped, also when that was interrupted."""
        return await self._database.repeat(
            "SELECT counterpoise_log.sweep_dropped(:limit)", {"limit": SWEEP_MESSAGES}
        )

    async def forget_publishers(self, idle_seconds: float) -> int:
        """Forget publishers that have not appended for this time. Returns how many.

        A retry after this time would be appended a second time: choose days.
        """
        return await self._database.deleted(
            "SELECT counterpoise_log.forget_publishers(make_interval(secs => :idle))",
            {"idle": idle_seconds},
        )

    async def sweep_watches(self) -> int:
        """Delete what readers have said of ends that have been. Returns how many."""
        return await self._database.deleted("SELECT counterpoise_log.sweep_watches()", {})

    async def partition_count(self, log: str) -> int:
        """See `LogKind`."""
        async with self._database.transaction() as connection:
            return int((await self._database.known(connection, name_of(log)))["partition_count"])

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """See `LogKind`. A partition that the log never had starts and ends at 0."""
        async with self._database.transaction(seconds) as connection:
            # One statement, so one snapshot: the ends, the cuts and the count belong together.
            statement, parameters = _EVERY_BOUND, dict[str, Any](name=name_of(log))
            if partitions is not None:
                statement, parameters["partitions"] = _SOME_BOUNDS, [*partitions]
            found = await connection.execute(statement, parameters)
            reading = ReadBounds(partitions or ())
            async for rows in pieces(found.all()):
                reading.add(rows)
        if not reading.found:
            raise LogNotFound(f"there is no log {name_of(log)!r}")
        return reading.bounds()

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """See `LogKind`; also correct if publishers gave times that are not in order."""
        async with self._database.transaction(database.LONG_SECONDS) as connection:
            known = await self._database.known(connection, name_of(log))
            found = await positions_at(connection, known["log_id"], time)
            rows: Sequence[Any] = found.all()
            return {number: str(position) for number, position in rows}

    async def ages(
        self, log: str, positions: Mapping[int, str], *, seconds: float
    ) -> Mapping[int, float]:
        """See `LogKind`."""
        async with self._database.transaction(seconds) as connection:
            found = await connection.execute(
                _AGES,
                {
                    "name": name_of(log),
                    "partitions": [*positions],
                    "positions": [int(position) for position in positions.values()],
                },
            )
            ages: Sequence[Any] = found.all()
            return dict(ages)

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """See `LogKind`."""
        bounds = await self.bounds(log, [partition])
        start, end = bounds.starts[partition], bounds.ends[partition]
        given = {
            "name": name_of(log),
            "partition": partition,
            "start": int(start) if position is None else max(int(start), int(position)),
            "end": int(end),
            "limit": limit,
            "most": max_bytes,
        }
        async with self._database.transaction() as connection:
            rows = (await connection.execute(_PEEK, given)).all()
        messages = tuple(
            PeekedMessage(str(at), time, key, _headers(headers), value, size)
            for at, time, key, headers, value, size in rows
        )
        return Peek(start, end, messages, str(rows[-1][0] + 1) if rows else end)

    async def append(self, log: str, batch: AppendBatch) -> AppendResult:
        """See `LogKind`. Of a batch with one message."""
        (message,), (partition,) = batch.messages, batch.partitions
        message.size_bytes()
        name = name_of(log)
        given = {
            "name": name,
            "publisher": batch.publisher,
            "sequence": batch.first_sequence,
            "partition": partition,
            "value": message.value,
            "key": message.key,
            "headers": json.dumps(message.headers, ensure_ascii=False) if message.headers else None,
            "at": message.published_at,
        }
        routed_by = {} if batch.by_range else {"count": batch.partition_count}
        try:
            async with self._database.transaction() as connection:
                statement = _APPEND_BY_RANGE if batch.by_range else _APPEND
                (row,) = (await connection.execute(statement, {**given, **routed_by})).all()
        except LogDatabaseUnavailable as error:
            await self._explain(error, name, batch)
            raise
        # If an attempt before has appended it, its answer may be lost, and with it who waits.
        if watched := row.watched if row.appended else [partition]:
            # Readers that are not woken find the message when they look.
            with suppress(LogDatabaseUnavailable):
                async with self._database.transaction() as connection:
                    await connection.execute(_WAKE, {"name": name, "partitions": watched})
        return AppendResult(row.appended, 1 - row.appended)

    async def _explain(self, error: LogDatabaseUnavailable, name: str, batch: AppendBatch) -> None:
        """Raise what the log has said of an append, if it has said something."""
        refusal = getattr(error.__cause__, "orig", None)
        state = getattr(refusal, "sqlstate", None)
        if state == STALE_PARTITION_COUNT:
            count = await self.partition_count(f"builtin:{name}")
            raise StaleRouting(batch.partition_count, count) from None
        if state == LOG_NOT_FOUND:
            raise LogNotFound(f"there is no log {name!r}") from None
        if state == OUT_OF_RANGE:
            raise InvalidMessage(f"it was refused ({refusal})") from None
        if state == STALE_RANGES:
            async with self._database.transaction() as connection:
                rows = (await connection.execute(_RANGES, {"name": name})).all()
            current = Ranges(HashRange(*row) for row in rows)
            raise StaleRouting(batch.partition_count, 0, current) from None

    async def young(
        self, log: str, below: Mapping[int, int], seconds: float
    ) -> Mapping[int, Young]:
        """Where the messages below these positions begin that were published in the last `seconds`.

        A partition without one is left out. One with so many older messages that the search did
        not end in time (`SEARCH_SECONDS`) is there with where it ended, and a mean size of 0.
        """
        found: dict[int, Young] = {}
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + SEARCH_SECONDS
        async for some in pieces([*below.items()]):
            begins = {number: 0 for number, _ in some}
            while begins:
                async with self._database.transaction(database.LONG_SECONDS) as connection:
                    rows = await connection.execute(
                        _YOUNG,
                        {
                            "name": name_of(log),
                            "partitions": [*begins],
                            "begins": [*begins.values()],
                            "ends": [below[number] for number in begins],
                            "window": SEARCHED // len(begins),
                            "seconds": seconds,
                            "sample": SAMPLE,
                        },
                    )
                begins = {}
                for number, position, mean, until in rows:
                    if position is not None:
                        found[number] = Young(position, mean)
                    elif until < below[number]:
                        begins[number] = until
                if clock() > give_up_at:
                    break
            found.update((number, Young(until, 0.0)) for number, until in begins.items())
        return found

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

    async def _sweep(self, name: str) -> None:
        await self._database.repeat(
            "SELECT counterpoise_log.sweep(:name, :limit)",
            {"name": name, "limit": SWEEP_MESSAGES},
        )


def _headers(text: str | None) -> Mapping[str, str] | None:
    """Headers from their JSON, whose values may be no texts; None if they cannot be shown."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # numbers of any length, nested to any depth
        return None
    return {name: one if isinstance(one, str) else json.dumps(one) for name, one in found.items()}
