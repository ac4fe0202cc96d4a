"""Splits and merges the partitions of dynamic built-in logs (`counterpoise.logs.ranges`).

One transaction locks the row of the log, so that splits, merges, resizes and drops take turns. So
it can read the ranges and make the new partitions without other locks. Only its last statement
locks the partitions that it seals: appends to these wait for it and for the commit, others do not
notice. A repeated call finds what the first one did and answers the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.errors import PartitionEnded
from broker.logs.database import LogDatabase, may_touch, name_of
from broker.logs.ports import (
    LogOwner,
    Root,
    Sealing,
)
from counterpoise.logs import LogError, LogNotFound, LogRefused, Successor
from counterpoise.logs.builtin.bounds import successors_of
from counterpoise.logs.ranges import HashRange, Ranges, parse_range

# The last messages of a partition, by which a split by load divides it.
SAMPLE_MESSAGES = 10_000

_LOG = "SELECT log_id, owner_id FROM counterpoise_log.logs WHERE name = :name FOR NO KEY UPDATE"
_PARENTS = """SELECT partition, first_hash, last_hash, successors, next_position
    FROM counterpoise_log.partitions
    WHERE log_id = :log_id AND partition = ANY (CAST(:partitions AS integer[]))
    ORDER BY partition"""
_HIGHEST = "SELECT max(partition) FROM counterpoise_log.partitions WHERE log_id = :log_id"
_BEGIN = """INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash)
    SELECT :log_id, * FROM unnest(CAST(:partitions AS integer[]), CAST(:firsts AS bigint[]),
        CAST(:lasts AS bigint[]))"""
# Appends that have the lock come first, so the ends are read after it.
_LOCK = """SELECT FROM counterpoise_log.partitions
    WHERE log_id = :log_id AND partition = ANY (CAST(:partitions AS integer[]))
    ORDER BY partition FOR NO KEY UPDATE"""
_SEAL = """UPDATE counterpoise_log.partitions SET successors = CAST(:successors AS jsonb)
    WHERE log_id = :log_id AND partition = ANY (CAST(:partitions AS integer[]))
    RETURNING partition, next_position"""
_COUNT = """UPDATE counterpoise_log.logs SET partition_count =
        (SELECT max(partition) + 1 FROM counterpoise_log.partitions WHERE log_id = :log_id)
    WHERE log_id = :log_id"""
_SAMPLE = """SELECT key_hash, count(*) AS messages FROM (
        SELECT counterpoise_log.key_hash(key) AS key_hash FROM counterpoise_log.messages
        WHERE log_id = :log_id AND partition = :partition AND position >= :first
            AND key IS NOT NULL AND octet_length(key) <= 1000
    ) AS sampled GROUP BY key_hash ORDER BY key_hash"""


@dataclass(frozen=True, slots=True)
class _Parent:
    """A partition that is to be sealed, or is; `end` may grow until then."""

    range: HashRange
    successors: tuple[Successor, ...] | None
    end: str


def _ended(partition: int, successors: Sequence[Successor]) -> PartitionEnded:
    return PartitionEnded(partition, [one.partition for one in successors])


def _without_range(partition: int) -> LogRefused:
    return LogRefused(f"the log has no partition {partition} with a hash range")


class HashRanges:
    """The ranges of the dynamic logs of one database. Raises as `BuiltinLogs` does."""

    def __init__(self, database: LogDatabase) -> None:
        self._database = database

    async def begin(
        self, connection: AsyncConnection, log_id: int, keys: Mapping[int, str]
    ) -> None:
        """Give partitions with these keys to a log that has none.

        Raises LogError unless their ranges cover all hashes exactly once.
        """
        has = await connection.scalar(
            text("SELECT count(*) FROM counterpoise_log.partitions WHERE log_id = :log_id"),
            {"log_id": log_id},
        )
        if not has:
            await self._begin(connection, log_id, _ranges_of(keys))

    async def split(
        self,
        log: str,
        partition: int,
        at: int | None,
        owner: LogOwner | None = None,
        *,
        anywhere: bool = False,
        dry_run: bool = False,
    ) -> Sealing:
        """Seal a partition; two begin, the second with the hash `at`, None: in the middle.

        `dry_run`: nothing of it stays.

        A partition that was split before, at this hash or `anywhere`, is answered the same.
        Raises PartitionEnded, LogRefused, LogNotFound, LogDatabaseUnavailable.
        """
        async with self._database.transaction(kept=not dry_run) as connection:
            log_id = await self._lock(connection, log, owner)
            (parent,) = await self._parents(connection, log_id, [partition])
            whole = parent.range
            if parent.successors is not None:
                there = None if len(parent.successors) < 2 else _second(parent.successors).first
                if there is not None and (anywhere or at in (None, there)):
                    return Sealing({partition: parent.end}, parent.successors)
                raise _ended(partition, parent.successors)
            middle = (whole.first + whole.last + 1) // 2 if at is None else at
            if not whole.first < middle <= whole.last:
                where = "in its middle" if at is None else f"at {at:08x}"
                raise LogRefused(
                    f"the range {whole.key} cannot be split {where}: each part needs a hash"
                )
            return await self._replace(
                connection,
                log_id,
                [parent],
                [(whole.first, middle - 1), (middle, whole.last)],
            )

    async def merge(
        self,
        log: str,
        partition: int,
        other: int,
        owner: LogOwner | None = None,
        *,
        dry_run: bool = False,
    ) -> Sealing:
        """Seal two partitions with adjacent ranges; one begins with both. `dry_run`: as of `split`.

        Two that were merged with each other before are answered the same. Raises
        PartitionEnded, LogRefused, LogNotFound, LogDatabaseUnavailable.
        """
        async with self._database.transaction(kept=not dry_run) as connection:
            log_id = await self._lock(connection, log, owner)
            parents = await self._parents(connection, log_id, sorted({partition, other}))
            low, high = min(p.range for p in parents), max(p.range for p in parents)
            for parent in parents:
                if parent.successors is None:
                    continue
                child = parent.successors[0]
                if set(child.parents) == {low.key, high.key} and low != high:
                    return Sealing({p.range.partition: p.end for p in parents}, parent.successors)
                raise _ended(parent.range.partition, parent.successors)
            if low.last + 1 != high.first:
                raise LogRefused(f"the ranges {low.key} and {high.key} do not lie side by side")
            return await self._replace(connection, log_id, parents, [(low.first, high.last)])

    async def sample(
        self, log: str, partition: int, owner: LogOwner | None = None
    ) -> tuple[HashRange, Mapping[int, int]]:
        """The range of a partition, and how often each hash is among its last messages' keys.

        Raises LogRefused, LogNotFound, LogDatabaseUnavailable.
        """
        async with self._database.transaction() as connection:
            known = await self._database.known(connection, name_of(log))
            row = (
                await connection.execute(
                    text(
                        "SELECT first_hash, last_hash, first_position, next_position"
                        " FROM counterpoise_log.partitions"
                        " WHERE log_id = :log_id AND partition = :partition"
                        " AND first_hash IS NOT NULL"
                    ),
                    {"log_id": known["log_id"], "partition": partition},
                )
            ).first()
            if row is None or not may_touch(known, owner):
                raise _without_range(partition)
            first, last, trimmed, end = row
            found = await connection.execute(
                text(_SAMPLE),
                {
                    "log_id": known["log_id"],
                    "partition": partition,
                    "first": max(trimmed, end - SAMPLE_MESSAGES),
                },
            )
            return HashRange(first, last, partition), {row.key_hash: row.messages for row in found}

    async def roots(self, log: str, *, latest: bool) -> list[Root]:
        """Where a new queue on this log begins; see `roots_of`. Raises LogNotFound."""
        async with self._database.transaction() as connection:
            known = await self._database.known(connection, name_of(log))
            rows = await connection.execute(
                text(
                    "SELECT partition, first_hash, last_hash, successors, first_position,"
                    " next_position FROM counterpoise_log.partitions"
                    " WHERE log_id = :log_id AND first_hash IS NOT NULL"
                    " AND (NOT :latest OR successors IS NULL) ORDER BY partition"
                ),
                {"log_id": known["log_id"], "latest": latest},
            )
            found = [
                _Row(HashRange(first, last, number), successors_of(after), start == end, str(end))
                for number, first, last, after, start, end in rows
            ]
        if latest:
            return [Root(row.range.partition, row.range.key, row.end) for row in found]
        return roots_of(found)

    async def _lock(self, connection: AsyncConnection, log: str, owner: LogOwner | None) -> int:
        await self._database.set_lock_timeout(connection)
        found = await connection.execute(text(_LOG), {"name": name_of(log)})
        known = found.mappings().first()
        if known is None or not may_touch(dict(known), owner):
            raise LogNotFound(f"there is no log {name_of(log)!r} of this queue")
        return int(known["log_id"])

    async def _parents(
        self, connection: AsyncConnection, log_id: int, partitions: Sequence[int]
    ) -> list[_Parent]:
        rows = await connection.execute(
            text(_PARENTS), {"log_id": log_id, "partitions": list(partitions)}
        )
        parents = [
            _Parent(HashRange(first, last, number), successors_of(after), str(end))
            for number, first, last, after, end in rows
            if first is not None
        ]
        missing = sorted(set(partitions) - {parent.range.partition for parent in parents})
        if missing:
            raise _without_range(missing[0])
        return parents

    async def _replace(
        self,
        connection: AsyncConnection,
        log_id: int,
        parents: Sequence[_Parent],
        edges: Sequence[tuple[int, int]],
    ) -> Sealing:
        """Seal partitions of a locked log that are not sealed; others begin with these hashes."""
        highest = await connection.scalar(text(_HIGHEST), {"log_id": log_id})
        begun = [
            HashRange(first, last, int(highest or 0) + place)
            for place, (first, last) in enumerate(edges, start=1)
        ]
        keys = tuple(parent.range.key for parent in parents)
        successors = tuple(Successor(one.partition, one.key, keys) for one in begun)
        await self._begin(connection, log_id, begun)
        given = {
            "log_id": log_id,
            "partitions": [parent.range.partition for parent in parents],
        }
        await connection.execute(text(_LOCK), given)
        after = json.dumps([asdict(one) for one in successors])
        sealed = await connection.execute(text(_SEAL), {**given, "successors": after})
        return Sealing({number: str(end) for number, end in sealed}, successors)

    async def _begin(
        self, connection: AsyncConnection, log_id: int, ranges: Collection[HashRange]
    ) -> None:
        await connection.execute(
            text(_BEGIN),
            {
                "log_id": log_id,
                "partitions": [one.partition for one in ranges],
                "firsts": [one.first for one in ranges],
                "lasts": [one.last for one in ranges],
            },
        )
        await connection.execute(text(_COUNT), {"log_id": log_id})


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition that a log has or had. `is_empty`: it holds no message that can be read."""

    range: HashRange
    successors: tuple[Successor, ...] | None
    is_empty: bool
    end: str


def roots_of(rows: Sequence[_Row]) -> list[Root]:
    """The partitions with which a queue begins that is to read all messages; in ascending order.

    A split or merge is *passed* if all partitions that it sealed are empty and were begun by a
    passed one (or by none). The roots are the partitions that were begun by a passed one (or by
    none) and sealed by no passed one. So they cover every hash exactly once, and all parents of
    what comes later are roots or descend from roots.
    """
    by_key = {row.range.key: row for row in rows}
    # A parent's number is below its children's: so its own beginning is decided before its end.
    sealings = {after[0].partition: after for row in rows if (after := row.successors)}
    passed: set[str] = set()
    begun_later: set[str] = set()
    for _, successors in sorted(sealings.items()):
        parents = successors[0].parents
        if all(by_key[key].is_empty and key not in begun_later for key in parents):
            passed.update(parents)
        else:
            begun_later.update(child.key for child in successors)
    return [
        Root(row.range.partition, row.range.key, None)
        for row in rows
        if row.range.key not in passed and row.range.key not in begun_later
    ]


def _second(successors: Sequence[Successor]) -> HashRange:
    found = parse_range(successors[1].key)
    assert found is not None, successors
    return found


def _ranges_of(keys: Mapping[int, str]) -> Sequence[HashRange]:
    parsed = [one for key in keys.values() if (one := parse_range(key)) is not None]
    try:
        if len(parsed) != len(keys):
            raise ValueError("a key is not that of a hash range")
        return Ranges(parsed).all
    except ValueError as error:
        raise LogError(f"a log cannot begin with these partitions: {error}") from None
