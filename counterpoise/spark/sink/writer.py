"""The work of a task: one transaction for each range, through the fence.

A task gets the rows of one queue partition after another, each in the order of its positions
(`sink` ensures that). It returns one row for each range with the outcome. What it writes is the
user's function, or `Insert` for `FencedSink.to_table`: rows into the columns of the same names,
with COPY.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs import InvalidPosition
from counterpoise.logs.columns import integers, repeated, scalar, strings, times
from counterpoise.spark.errors import ForeignRow, InvalidSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import Database, TransactionLimits
from counterpoise.spark.sink.fence import OnGap, Verdict, judge, number

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from counterpoise.spark.sink.highwater import HighWaterKey, HighWaters


@dataclass(frozen=True, slots=True)
class Scope:
    """The range [start, end) of a partition that the rows given to `write` belong to."""

    queue: str
    partition: int
    epoch: int
    start: str
    end: str
    batch_id: int


Write = Callable[["Connection", pa.Table, Scope], object]

# A task's report on each of its ranges.
RESULT_SCHEMA = (
    "partition int, epoch long, outcome string, written long, dropped long, "
    "gap_from string, gap_to string"
)
_FALSE = scalar(False, pa.bool_())
_RESULT: pa.Schema = pa.schema(
    [
        ("partition", pa.int32()),
        ("epoch", pa.int64()),
        ("outcome", pa.string()),
        ("written", pa.int64()),
        ("dropped", pa.int64()),
        ("gap_from", pa.string()),
        ("gap_to", pa.string()),
    ]
)


@dataclass(frozen=True)
class Task:
    """All that a task needs; it travels to the executors inside the pickled function.

    `ranges` by partition. `tasks`: the partitions of each of Spark's tasks, if the rows come as the
    source read them; then a task also moves the high-water of its partitions without rows. None:
    the rows were repartitioned, and a task only knows the partitions of its rows.
    """

    database: Database
    table: str
    mark: tuple[str, str, str, str]
    batch_id: int
    ranges: Mapping[int, Slice]
    write: Write = field(repr=False)
    tasks: tuple[tuple[int, ...], ...] | None
    on_gap: OnGap = "fail"
    bounds: TransactionLimits = field(default_factory=TransactionLimits)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark calls this in each task."""
        mine: tuple[int, ...] = ()
        if self.tasks is not None:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None, "called outside of a task"
            mine = self.tasks[context.partitionId()]
        yield from write_ranges(self, batches, mine)


def write_ranges(
    task: Task, batches: Iterable[pa.RecordBatch], mine: Iterable[int] = ()
) -> Iterator[pa.RecordBatch]:
    """Write the rows, and move the high-water of the partitions in `mine` without rows.

    Raises ForeignRow, SinkGap, errors of `write` and of SQLAlchemy. Ranges that were committed
    before stay; the next attempt recognizes them as repeated.
    """
    high_waters, mark = _high_waters(task)
    left = dict(task.ranges)
    with contextlib.closing(_Runs(batches, left)) as runs:
        for one in runs:
            yield _write(task, high_waters, mark, one, runs.rows_of(one))
            del left[one.partition]
    for partition in mine:
        if partition in left:
            yield _write(task, high_waters, mark, left[partition], ())


def _high_waters(task: Task) -> tuple[HighWaters, HighWaterKey]:
    from counterpoise.spark.sink.highwater import HighWaterKey, HighWaters

    high_waters = HighWaters(task.table)
    if (task.database.key, task.table) not in _created:
        with task.database.transaction(task.bounds):
            pass  # Waits while the database is unavailable.
        high_waters.create(task.database.engine())
        _created.add((task.database.key, task.table))
    return high_waters, HighWaterKey(*task.mark)


# The tables that this process has created or found.
_created: set[tuple[str, str]] = set()


def _write(
    task: Task, high_waters: HighWaters, mark: HighWaterKey, one: Slice, rows: Iterable[pa.Table]
) -> pa.RecordBatch:
    """One transaction: the fence, the rows, the high-water."""
    scope = Scope(mark.queue, one.partition, one.epoch, one.start, one.end, task.batch_id)
    written = dropped = 0
    with task.database.transaction(task.bounds) as connection:
        verdict = judge(high_waters.lock(connection, mark, one.partition), one, task.on_gap)
        for chunk in rows:
            fresh = _fresh(chunk, one, verdict)
            if fresh.num_rows:
                task.write(connection, fresh, scope)
                # The server's idle timer of the transaction stops after a pipeline (psycopg's
                # executemany). A plain statement starts it again.
                connection.exec_driver_sql("SELECT 1")
            written += fresh.num_rows
            dropped += chunk.num_rows - fresh.num_rows
        if verdict.after is not None:
            # The last statement: it fails if `write` has ended the transaction itself.
            high_waters.put(connection, mark, one.partition, verdict.after)
    gap = verdict.gap or (None, None)
    return pa.RecordBatch.from_arrays(
        [
            repeated(one.partition, 1, pa.int32()),
            integers([one.epoch]),
            strings([verdict.outcome]),
            integers([written]),
            integers([dropped]),
            *(strings([position]) for position in gap),
        ],
        schema=_RESULT,
    )


def _fresh(rows: pa.Table, one: Slice, verdict: Verdict) -> pa.Table:
    """The rows that are not yet written: usually all."""
    positions = _numbers(rows)
    ends = pc.min_max(positions)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if positions.null_count or least < number(one.start) or most >= number(one.end):
        raise ForeignRow(
            f"there are rows of partition {one.partition} with positions from {least} to {most}"
            f"{' and null' if positions.null_count else ''}, and the micro-batch has read "
            f"{one.start} up to {one.end}: each row carries the position of the one message it is "
            "made of. Rows made of several messages (aggregates) or of none (timers) cannot be "
            "fenced: aggregate within the sink's write function"
        )
    if verdict.begin is None:
        return rows.slice(0, 0)
    begin = number(verdict.begin)
    if least >= begin:
        return rows
    return rows.filter(pc.greater_equal(positions, scalar(begin, pa.int64())))


def _numbers(rows: pa.Table) -> pa.ChunkedArray:
    """The positions as numbers. Raises InvalidPosition."""
    try:
        return pc.cast(rows.column("position"), pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidPosition(f"a row's position is not one of the log's: {error}") from None


class _Runs:
    """The rows of the task's batches as one run after another, one run for each partition.

    Iterating gives the range of the next run. Take its rows (`rows_of`) before the next iteration.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], ranges: Mapping[int, Slice]) -> None:
        self._pieces = _pieces(batches)
        self._ranges = ranges
        self._ahead: tuple[int, pa.Table] | None = None

    def __iter__(self) -> Iterator[Slice]:
        while (piece := self._peek()) is not None:
            one = self._ranges.get(piece[0])
            if one is None:
                raise ForeignRow(
                    f"there are rows of partition {piece[0]}, of which this micro-batch has read "
                    "nothing (or its rows do not come together): pass the source's columns "
                    "partition and position through unchanged, and add no rows of other origin"
                )
            yield one

    def rows_of(self, one: Slice) -> Iterator[pa.Table]:
        """The rows of the run, one batch at a time."""
        while (piece := self._peek()) is not None and piece[0] == one.partition:
            self._ahead = None
            yield piece[1]

    def close(self) -> None:
        """Close the batches that are still open."""
        self._pieces.close()

    def _peek(self) -> tuple[int, pa.Table] | None:
        if self._ahead is None:
            self._ahead = next(self._pieces, None)
        return self._ahead


def _pieces(batches: Iterable[pa.RecordBatch]) -> Any:
    """Each batch as tables of one partition each, without a warm-up's replayed rows."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if "replay" in rows.column_names:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column("replay"), _FALSE)))
        partitions = rows.column("partition")
        if partitions.null_count:
            raise ForeignRow("there are rows whose partition is null: pass it through unchanged")
        begin = 0
        while begin < rows.num_rows:
            partition = partitions[begin]
            same = pc.equal(partitions.slice(begin), partition)
            other = pc.index(same, _FALSE).as_py()
            count = rows.num_rows - begin if other < 0 else other
            yield partition.as_py(), rows.slice(begin, count)
            begin += count


# Columns of the source that concern warm-up and say nothing about the message.
_BOOKKEEPING = frozenset({"replay", "tenure"})
# Of the source's times.
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Insert:
    """A `write` function. `columns` None: all columns of the rows except `replay` and `tenure`."""

    table: str
    columns: tuple[str, ...] | None

    def __call__(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        """Append the rows."""
        from counterpoise.spark.sink.highwater import quoted

        if connection.dialect.driver != "psycopg":
            raise InvalidSink(
                f"to_table works with the psycopg driver, not with {connection.dialect.driver}"
            )
        names = self._names(rows)
        quote = connection.dialect.identifier_preparer.quote_identifier
        into = f"{quoted(connection, self.table)} ({', '.join(quote(name) for name in names)})"
        columns = [_values(rows.column(name)) for name in names]
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def _names(self, rows: pa.Table) -> Sequence[str]:
        if self.columns is None:
            return [name for name in rows.column_names if name not in _BOOKKEEPING]
        unknown = set(self.columns) - set(rows.column_names)
        if unknown:
            raise InvalidSink(f"the rows have no column {', '.join(sorted(unknown))}")
        return self.columns


def _values(column: pa.ChunkedArray) -> list[Any]:
    if column.type == _TIME:
        return times(column)
    values: list[Any] = column.to_pylist()
    convert = _conversion(column.type)
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Maps and structs become JSON, lists become arrays; psycopg converts everything else."""
    from psycopg.types.json import Json

    if pa.types.is_map(kind):
        return lambda pairs: Json(dict(pairs))
    if pa.types.is_struct(kind):
        return Json
    return None
