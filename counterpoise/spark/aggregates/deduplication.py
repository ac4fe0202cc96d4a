"""Deduplication in the sink: each id once, for all applications that share a queue.

    sink = FencedSink(url, Deduplicate(write, ["id"], horizon_seconds=86_400), name="events")

`Deduplicate` is a `write` function of `FencedSink`. It passes on to `write` the rows whose id was
not written within the horizon, and remembers the ids in the table `counterpoise_ids`, in the
transaction of the fence. So what was seen belongs to no application, and a handoff loses none of
it.

*The rule.* Each id has the time of its last row that was passed on. A row passes if its id has no
time, or if its own time is more than the horizon after that (`unseen`, pure).

*Forgetting.* Each transaction removes ids of its own partition that lie more than the horizon
before all of its rows, and before the database's clock: one row dated far ahead forgets no others.
So an id is remembered at least for the horizon of its own partition, however far other partitions
are ahead. What comes later than that may pass again.

*Locks.* The ids of a batch are locked in their order. Messages of one id should have one key: then
one partition has them, and transactions never wait for each other. If two partitions bring the same
ids at the same moment, one waits; if Postgres finds a deadlock, a task fails and is repeated. The
result is right in each case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from counterpoise.logs.columns import integers, microseconds_of, values_of
from counterpoise.spark.aggregates.partials import indexed, to_text
from counterpoise.spark.errors import InvalidSink

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from counterpoise.spark.sink.writer import Scope, Write

_CREATION_LOCK = 0x636F756E746964
_TABLE = """
CREATE TABLE IF NOT EXISTS counterpoise_ids (
    sink text NOT NULL, queue_id text NOT NULL, id text NOT NULL, partition integer NOT NULL,
    seen_at bigint, PRIMARY KEY (sink, queue_id, id)
);
CREATE INDEX IF NOT EXISTS counterpoise_ids_by_time
    ON counterpoise_ids (sink, queue_id, partition, seen_at);
"""


def unseen(
    known: Mapping[str, int | None], ids: Sequence[str | None], at: Sequence[int], horizon: int
) -> tuple[list[int], dict[str, int]]:
    """Which rows pass, by index in order, and the ids that they change, with their times.

    `known`: ids with the time of the last row that passed. Rows without an id pass.
    """
    passed: list[int] = []
    after: dict[str, int] = {}
    for index, (one, time) in enumerate(zip(ids, at, strict=True)):
        if one is not None:
            last = after.get(one, known.get(one))
            if last is not None and last >= time - horizon:
                continue
            after[one] = time
        passed.append(index)
    return passed, after


@dataclass(frozen=True)
class Deduplicate:
    """A `write` function of `FencedSink` that passes on each id once to `write`.

    `by`: the columns of the id; a row in which all are null has no id and passes. `time`: the
    column, a timestamp, by which `horizon_seconds` counts; a row without a time counts as of 1970.
    """

    write: Write = field(repr=False)
    by: Sequence[str]
    time: str = "published_at"
    horizon_seconds: float = 86_400.0

    def __call__(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        """Raises InvalidSink if the rows lack a column, and what `write` raises."""
        missing = {*self.by, self.time} - set(rows.column_names)
        if missing:
            raise InvalidSink(f"the rows have no column {', '.join(sorted(missing))}")
        ids, at = self._ids(rows), self._times(rows)
        horizon = round(self.horizon_seconds * 1_000_000)
        table = _Ids(connection, scope)
        known = table.lock(sorted({one for one in ids if one is not None}))
        passed, after = unseen(known, ids, at, horizon)
        table.put(after)
        table.forget(min(at), horizon)
        if passed:
            new = rows if len(passed) == rows.num_rows else rows.take(integers(passed))
            self.write(connection, new, scope)

    def _ids(self, rows: pa.Table) -> list[str | None]:
        columns = [values_of(rows.column(name)) for name in self.by]
        return [
            None if all(value is None for value in values) else indexed(to_text(values))
            for values in zip(*columns, strict=True)
        ]

    def _times(self, rows: pa.Table) -> list[int]:
        column = rows.column(self.time)
        if not pa.types.is_timestamp(column.type):
            raise InvalidSink(f"the column {self.time} has no times but {column.type}")
        return [time or 0 for time in microseconds_of(column)]


class _Ids:
    """The table of one sink and queue, in the transaction of one partition."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        from sqlalchemy import text

        if connection.dialect.name != "postgresql":
            raise InvalidSink(f"Deduplicate needs PostgreSQL, not {connection.dialect.name}")
        self._connection = connection
        self._text = text
        self._names = {
            "sink": scope.sink,
            "queue_id": scope.queue_id,
            "partition": scope.partition,
        }
        there = "SELECT to_regclass('counterpoise_ids')"
        if connection.scalar(text(there)) is None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
            for statement in _TABLE.split(";")[:-1]:
                connection.execute(text(statement))

    def lock(self, ids: Sequence[str]) -> dict[str, int | None]:
        """The times of these ids (sorted; None: new), locked until the transaction ends."""
        self._run(
            "INSERT INTO counterpoise_ids (sink, queue_id, id, partition)"
            " SELECT :sink, :queue_id, id, :partition FROM unnest(CAST(:ids AS text[])) AS _ (id)"
            " ON CONFLICT DO NOTHING",
            ids=ids,
        )
        rows = self._connection.execute(
            self._text(
                "SELECT id, seen_at FROM counterpoise_ids WHERE sink = :sink"
                " AND queue_id = :queue_id AND id = ANY(:ids) ORDER BY id FOR UPDATE"
            ),
            {**self._names, "ids": ids},
        )
        return {row.id: row.seen_at for row in rows}

    def put(self, seen: Mapping[str, int]) -> None:
        """Rows of these locked ids were passed on."""
        self._run(
            "UPDATE counterpoise_ids SET seen_at = new.at, partition = :partition"
            " FROM unnest(CAST(:ids AS text[]), CAST(:times AS bigint[])) AS new (id, at)"
            " WHERE sink = :sink AND queue_id = :queue_id AND counterpoise_ids.id = new.id",
            ids=list(seen),
            times=list(seen.values()),
        )

    def forget(self, time: int, horizon: int) -> None:
        """Remove the partition's ids that are older than the horizon at this time and now."""
        self._run(
            "DELETE FROM counterpoise_ids WHERE sink = :sink AND queue_id = :queue_id"
            " AND partition = :partition AND seen_at < least(CAST(:time AS bigint),"
            " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
            " - CAST(:horizon AS bigint)",
            time=time,
            horizon=horizon,
        )

    def _run(self, statement: str, **values: object) -> None:
        self._connection.execute(self._text(statement), {**self._names, **values})
