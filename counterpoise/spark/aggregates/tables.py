"""The tables of aggregates in the database of the result: who locks what, and in which order.

- `counterpoise_aggregates`: the low watermark of each aggregate and queue. The closing of windows
  moves it.
- `counterpoise_clocks`: the clock of each partition, and how many of its rows were dropped. The
  transaction that writes rows of the partition moves it; the closing, if the partition is still.
- `counterpoise_partials`: the partials of each window, group and partition. The same transaction
  writes them, and the closing removes them. A group that is too long for the index is there under
  its hash (`groups`), with its text beside (`long_groups`).
- `counterpoise_late`: late rows, with `late="side"`; `number` tells apart those of one message,
  `written_in` is the transaction.

*Locks.* A transaction that writes rows of a partition holds the partition's high-water (the fence),
then its clock. It takes the row of the aggregate only where it adds a clock, or merges late rows.
The closing of windows takes the row of the aggregate first. Of clocks it locks only those that it
wants to pass, and skips those that are locked: their partition is not still. Of partials that are
not divided by time it skips those that are locked, too. So no one waits for a clock or a partial
while it holds the row of the aggregate, and there is no circle.

*Isolation.* READ COMMITTED is enough. A writer that holds a clock merges into windows that end
after its bound. The low watermark is at most the bound that is committed, so no closing that runs
meanwhile removes such a window. The clock that a writer adds is seen by the next closing, because
both hold the row of the aggregate.

Partials are per partition, so two owners never write the same row. They are brought together when
the window is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, text

from counterpoise.spark.aggregates.partials import indexed
from counterpoise.spark.aggregates.windows import Clock
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.database import quoted

# The partition of what was brought together and may still change.
TOGETHER = -1
_CREATION_LOCK = 0x61676772656761

_TABLES = """
CREATE TABLE IF NOT EXISTS counterpoise_aggregates (
    sink text NOT NULL, queue_id text NOT NULL, queue text NOT NULL, low bigint,
    PRIMARY KEY (sink, queue_id)
);
CREATE TABLE IF NOT EXISTS counterpoise_clocks (
    sink text NOT NULL, queue_id text NOT NULL, partition integer NOT NULL, latest bigint,
    floor bigint, dropped bigint NOT NULL DEFAULT 0,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, queue_id, partition)
);
CREATE TABLE IF NOT EXISTS counterpoise_partials (
    sink text NOT NULL, queue_id text NOT NULL, window_end bigint NOT NULL,
    window_start bigint NOT NULL, groups text NOT NULL, partition integer NOT NULL,
    partials text NOT NULL, changed boolean NOT NULL DEFAULT true,
    PRIMARY KEY (sink, queue_id, window_end, window_start, groups, partition)
);
CREATE TABLE IF NOT EXISTS counterpoise_late (
    sink text NOT NULL, queue_id text NOT NULL, queue text NOT NULL, partition integer NOT NULL,
    position text NOT NULL, window_start timestamptz NOT NULL, window_end timestamptz NOT NULL,
    row_columns text NOT NULL
);
ALTER TABLE counterpoise_late ADD COLUMN IF NOT EXISTS number integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS written_in xid8,
    DROP CONSTRAINT IF EXISTS counterpoise_late_pkey,
    ADD PRIMARY KEY (sink, queue_id, partition, position, window_start, number);
ALTER TABLE counterpoise_partials ADD COLUMN IF NOT EXISTS long_groups text;
"""


@dataclass(frozen=True, slots=True)
class AggregateKey:
    """An aggregate, by the name of its sink, and the queue that it counts."""

    sink: str
    queue_id: str
    queue: str

    @property
    def names(self) -> dict[str, Any]:
        return {"sink": self.sink, "queue_id": self.queue_id}


@dataclass(frozen=True, slots=True)
class Group:
    """A group within a window; `groups` is the text of its columns' values."""

    end: int
    start: int
    groups: str


def create(engine: Engine) -> None:
    """Create the tables that do not exist; concurrent calls are safe.

    Raises InvalidSink if the engine is not PostgreSQL's, or has another isolation level than the
    locks are made for.
    """
    if engine.dialect.name != "postgresql":
        raise InvalidSink(f"aggregates need PostgreSQL, not {engine.dialect.name}")
    with engine.begin() as connection:
        isolation = connection.scalar(text("SHOW transaction_isolation"))
        if isolation != "read committed":
            raise InvalidSink(
                f"the sink's engine uses {isolation}: an aggregate needs READ COMMITTED, where a "
                "statement that waited for a lock sees what was committed meanwhile"
            )
        # The column that was added last.
        there = (
            "SELECT true FROM pg_attribute"
            " WHERE attrelid = to_regclass('counterpoise_partials') AND attname = 'long_groups'"
        )
        if connection.scalar(text(there)):
            return
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
        if connection.scalar(text(there)):
            return
        for statement in _TABLES.split(";")[:-1]:
            connection.execute(text(statement))


def begin(connection: Connection, key: AggregateKey) -> None:
    """Add the row of the aggregate, by which `forget` finds everything else, if there is none."""
    connection.execute(
        text(
            "INSERT INTO counterpoise_aggregates (sink, queue_id, queue)"
            " VALUES (:sink, :queue_id, :queue) ON CONFLICT DO NOTHING"
        ),
        {**key.names, "queue": key.queue},
    )


def lock_low(connection: Connection, key: AggregateKey) -> int | None:
    """The low watermark, locked until the transaction ends."""
    begin(connection, key)
    low: int | None = connection.execute(
        text(
            "SELECT low FROM counterpoise_aggregates"
            " WHERE sink = :sink AND queue_id = :queue_id FOR UPDATE"
        ),
        key.names,
    ).scalar_one()
    return low


def set_low(connection: Connection, key: AggregateKey, low: int) -> None:
    """Set the low watermark that `lock_low` has locked."""
    connection.execute(
        text(
            "UPDATE counterpoise_aggregates SET low = :low"
            " WHERE sink = :sink AND queue_id = :queue_id"
        ),
        {**key.names, "low": low},
    )


def lock_clock(connection: Connection, key: AggregateKey, partition: int) -> tuple[Clock, int]:
    """The clock of a partition, locked until the transaction ends, and the present by the server's.

    A new one begins at the low watermark: what is closed stays closed. Times in microseconds.
    """
    here = {**key.names, "partition": partition}
    select = text(
        "SELECT latest, floor, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now"
        " FROM counterpoise_clocks WHERE sink = :sink AND queue_id = :queue_id"
        " AND partition = :partition FOR UPDATE"
    )
    row = connection.execute(select, here).one_or_none()
    if row is None:
        add_clocks(connection, key, [partition], lock_low(connection, key))
        row = connection.execute(select, here).one()
    return Clock(partition, row.latest, row.floor), row.now


def add_clocks(
    connection: Connection, key: AggregateKey, partitions: Iterable[int], low: int | None
) -> None:
    """Clocks of partitions that have none; `low` is locked."""
    connection.execute(
        text(
            "INSERT INTO counterpoise_clocks (sink, queue_id, partition, floor)"
            " SELECT :sink, :queue_id, unnest(CAST(:partitions AS integer[])),"
            " CAST(:low AS bigint) ON CONFLICT DO NOTHING"
        ),
        {**key.names, "partitions": sorted(partitions), "low": low},
    )


def move_clock(
    connection: Connection, key: AggregateKey, partition: int, latest: int | None, dropped: int
) -> None:
    """The partition has got rows; its clock is locked."""
    connection.execute(
        text(
            "UPDATE counterpoise_clocks SET latest = :latest, dropped = dropped + :dropped,"
            " moved_at = clock_timestamp() WHERE sink = :sink AND queue_id = :queue_id"
            " AND partition = :partition"
        ),
        {**key.names, "partition": partition, "latest": latest, "dropped": dropped},
    )


def clocks(
    connection: Connection, key: AggregateKey, idle_seconds: float | None
) -> dict[int, Clock]:
    """All clocks by partition; `still` those that have not moved for `idle_seconds`."""
    rows = connection.execute(
        text(
            "SELECT partition, latest, floor, coalesce(moved_at <= clock_timestamp()"
            " - make_interval(secs => CAST(:idle AS double precision)), false) AS still"
            " FROM counterpoise_clocks WHERE sink = :sink AND queue_id = :queue_id"
        ),
        {**key.names, "idle": idle_seconds},
    )
    return {row.partition: Clock(row.partition, row.latest, row.floor, row.still) for row in rows}


def lock_unmoved(
    connection: Connection, key: AggregateKey, still: Collection[Clock]
) -> frozenset[int]:
    """Locks those of the clocks that nobody writes now, or has moved since they were read."""
    rows = connection.execute(
        text(
            "SELECT partition, latest, floor FROM counterpoise_clocks WHERE sink = :sink"
            " AND queue_id = :queue_id AND partition = ANY(:partitions) FOR UPDATE SKIP LOCKED"
        ),
        {**key.names, "partitions": [clock.partition for clock in still]},
    )
    found = {(row.partition, row.latest, row.floor) for row in rows}
    return frozenset(
        one.partition for one in still if (one.partition, one.latest, one.floor) in found
    )


def raise_floors(
    connection: Connection, key: AggregateKey, partitions: Collection[int], low: int
) -> None:
    """The bounds of these partitions are at least `low` from now on; their clocks are locked."""
    connection.execute(
        text(
            "UPDATE counterpoise_clocks SET floor = :low WHERE sink = :sink"
            " AND queue_id = :queue_id AND partition = ANY(:partitions)"
        ),
        {**key.names, "partitions": list(partitions), "low": low},
    )


def dropped(connection: Connection, key: AggregateKey) -> int:
    """How many rows were not counted, because they were late or had no time."""
    return int(
        connection.scalar(
            text(
                "SELECT coalesce(sum(dropped), 0) FROM counterpoise_clocks"
                " WHERE sink = :sink AND queue_id = :queue_id"
            ),
            key.names,
        )
        or 0
    )


def columns(connection: Connection, table: str) -> frozenset[str]:
    """The names of a table's columns; none if there is no such table."""
    names = connection.scalars(
        text(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:table)"
            " AND attnum > 0 AND NOT attisdropped"
        ),
        {"table": quoted(connection, table)},
    )
    return frozenset(names)


# ------------------------------------------------------------------ partials


def any_groups(connection: Connection, key: AggregateKey) -> str | None:
    """The columns of any group that is still counted, as text."""
    groups: str | None = connection.scalar(
        text(
            "SELECT coalesce(long_groups, groups) FROM counterpoise_partials"
            " WHERE sink = :sink AND queue_id = :queue_id AND partition <> :together LIMIT 1"
        ),
        {**key.names, "together": TOGETHER},
    )
    return groups


def partials(
    connection: Connection, key: AggregateKey, partition: int, groups: Collection[Group]
) -> dict[Group, str]:
    """Those of these groups that the partition has."""
    rows = connection.execute(
        text(
            "SELECT window_end, window_start, coalesce(long_groups, groups) AS groups, partials"
            " FROM counterpoise_partials JOIN unnest(CAST(:ends AS bigint[]),"
            " CAST(:starts AS bigint[]), CAST(:groups AS text[]))"
            " AS wanted (window_end, window_start, groups)"
            " USING (window_end, window_start, groups)"
            " WHERE sink = :sink AND queue_id = :queue_id AND partition = :partition"
        ),
        {**key.names, "partition": partition, **_arrays(groups)},
    )
    return {Group(row.window_end, row.window_start, row.groups): row.partials for row in rows}


def put_partials(
    connection: Connection, key: AggregateKey, partition: int, found: Mapping[Group, str]
) -> None:
    """Set the partials of these groups of the partition."""
    connection.execute(
        text(
            "INSERT INTO counterpoise_partials (sink, queue_id, window_end, window_start, groups,"
            " long_groups, partition, partials) SELECT :sink, :queue_id, window_end, window_start,"
            " groups, long_groups, :partition, partials FROM unnest(CAST(:ends AS bigint[]),"
            " CAST(:starts AS bigint[]), CAST(:groups AS text[]), CAST(:long_groups AS text[]),"
            " CAST(:partials AS text[]))"
            " AS found (window_end, window_start, groups, long_groups, partials)"
            " ON CONFLICT (sink, queue_id, window_end, window_start, groups, partition)"
            " DO UPDATE SET partials = excluded.partials, changed = true"
        ),
        {
            **key.names,
            "partition": partition,
            **_arrays(found),
            "long_groups": [
                None if indexed(one.groups) == one.groups else one.groups for one in found
            ],
            "partials": list(found.values()),
        },
    )


Found = Sequence[tuple[Group, str]]
"""Each group with the partials of one of its partitions."""


def take_closed(connection: Connection, key: AggregateKey, low: int, since: int | None) -> Found:
    """Remove the partials of windows that end in (since, low] from the table."""
    rows = connection.execute(
        text(
            "DELETE FROM counterpoise_partials WHERE sink = :sink AND queue_id = :queue_id"
            " AND window_end <= :low AND (CAST(:since AS bigint) IS NULL OR window_end > :since)"
            " RETURNING window_end, window_start, coalesce(long_groups, groups) AS groups, partials"
        ),
        {**key.names, "low": low, "since": since},
    )
    return [(Group(row.window_end, row.window_start, row.groups), row.partials) for row in rows]


def forget_closed(connection: Connection, key: AggregateKey, until: int) -> None:
    """Remove what is kept of windows that end at or before `until`."""
    connection.execute(
        text(
            "DELETE FROM counterpoise_partials WHERE sink = :sink AND queue_id = :queue_id"
            " AND window_end <= :until"
        ),
        {**key.names, "until": until},
    )


def changed_groups(connection: Connection, key: AggregateKey, end: int) -> Found:
    """All partials of the groups of the window that ends there and has changed; it has not now.

    What a writer holds just now stays changed: waiting for it could be a deadlock, since a writer
    locks partials in the order of its rows.
    """
    groups = connection.scalars(
        text(
            "UPDATE counterpoise_partials SET changed = false WHERE ctid = ANY(ARRAY("
            "SELECT ctid FROM counterpoise_partials WHERE sink = :sink AND queue_id = :queue_id"
            " AND window_end = :end AND changed FOR UPDATE SKIP LOCKED)) RETURNING groups"
        ),
        {**key.names, "end": end},
    ).all()
    rows = connection.execute(
        text(
            "SELECT window_start, coalesce(long_groups, groups) AS groups, partials"
            " FROM counterpoise_partials WHERE sink = :sink AND queue_id = :queue_id"
            " AND window_end = :end AND groups = ANY(:groups)"
        ),
        {**key.names, "end": end, "groups": sorted(set(groups))},
    )
    return [(Group(end, row.window_start, row.groups), row.partials) for row in rows]


def put_late(
    connection: Connection, key: AggregateKey, partition: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Add late rows: `position`, `window_start`, `window_end` and `row_columns`.

    Rows of one message are numbered, so all of them stay. Messages that are delivered again on
    purpose replace their rows: only those of this transaction are counted. (Its number is stored,
    because `xmin` of a row that is written after a savepoint is another one.)
    """
    connection.execute(
        text(
            "INSERT INTO counterpoise_late (sink, queue_id, queue, partition, position,"
            " window_start, window_end, row_columns, written_in, number) SELECT :sink, :queue_id,"
            " :queue, :partition, :position, :window_start, :window_end, :row_columns,"
            " pg_current_xact_id(), count(*)"
            " FROM counterpoise_late WHERE sink = :sink AND queue_id = :queue_id"
            " AND partition = :partition AND position = :position"
            " AND window_start = :window_start AND written_in = pg_current_xact_id()"
            " ON CONFLICT (sink, queue_id, partition, position, window_start, number)"
            " DO UPDATE SET row_columns = excluded.row_columns, written_in = excluded.written_in"
        ),
        [{**key.names, "queue": key.queue, "partition": partition, **row} for row in rows],
    )


def forget(connection: Connection, sink: str, queue: str) -> None:
    """Remove everything that is kept of the aggregate of this queue, except late rows."""
    ids = connection.scalars(
        text("SELECT queue_id FROM counterpoise_aggregates WHERE sink = :sink AND queue = :queue"),
        {"sink": sink, "queue": queue},
    ).all()
    for table in ("counterpoise_partials", "counterpoise_clocks", "counterpoise_aggregates"):
        connection.execute(
            text(f"DELETE FROM {table} WHERE sink = :sink AND queue_id = ANY(:ids)"),
            {"sink": sink, "ids": list(ids)},
        )


def _arrays(groups: Iterable[Group]) -> dict[str, list[Any]]:
    listed = list(groups)
    return {
        "ends": [one.end for one in listed],
        "starts": [one.start for one in listed],
        "groups": [indexed(one.groups) for one in listed],
    }
