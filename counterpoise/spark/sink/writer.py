"""The work of a task: one transaction for each range, through the fence.

A task gets the rows of one queue partition after another, each in the order of its positions
(`sink` ensures that). It returns one row for each range with the outcome. What it writes is the
user's function, or `insert.Insert` for `FencedSink.to_table`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from counterpoise.logs.columns import integers, repeated, strings
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.database import Database, TransactionLimits
from counterpoise.spark.sink.fence import HighWaterKey, OnGap, judge
from counterpoise.spark.sink.rows import Remainder, no_such_range, pieces

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from counterpoise.spark.sink.highwater import HighWaters


@dataclass(frozen=True, slots=True)
class Scope:
    """The range [start, end) of a partition that the rows given to `write` belong to.

    `sink`: its name. `queue_id`: the service's; a queue that was deleted and made anew has another.
    """

    sink: str
    queue: str
    queue_id: str
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
    mark: HighWaterKey
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

    Raises InvalidRows, SinkGap, errors of `write` and of SQLAlchemy. Ranges that were committed
    before stay; the next attempt recognizes them as repeated.
    """
    high_waters = _high_waters(task)
    left = dict(task.ranges)
    with contextlib.closing(_Runs(batches, left)) as runs:
        for one in runs:
            yield _write(task, high_waters, one, runs.rows_of(one))
            del left[one.partition]
    for partition in mine:
        if partition in left:
            yield _write(task, high_waters, left[partition], ())


def _high_waters(task: Task) -> HighWaters:
    from counterpoise.spark.sink.highwater import HighWaters

    high_waters = HighWaters(task.table)
    if (task.database.key, task.table) not in _created:
        with task.database.transaction(task.bounds):
            pass  # Waits while the database is unavailable.
        high_waters.create(task.database.engine())
        _created.add((task.database.key, task.table))
    return high_waters


# The tables that this process has created or found.
_created: set[tuple[str, str]] = set()


def _write(
    task: Task, high_waters: HighWaters, one: Slice, rows: Iterable[pa.Table]
) -> pa.RecordBatch:
    """One transaction: the fence, the rows, the high-water."""
    mark = task.mark
    named = (mark.sink, mark.queue, mark.queue_id)
    scope = Scope(*named, one.partition, one.epoch, one.start, one.end, task.batch_id)
    written = dropped = 0
    with high_waters.locked(task.database, task.bounds, mark, one.partition) as (connection, found):
        verdict = judge(found, one, task.on_gap)
        remainder = Remainder([(one, verdict.begin)])
        for chunk in rows:
            fresh = remainder(chunk)
            if fresh.num_rows:
                task.write(connection, fresh, scope)
                # The server's idle timer of the transaction stops after a pipeline (psycopg's
                # executemany). A plain statement starts it again.
                connection.exec_driver_sql("SELECT 1")
            written += fresh.num_rows
            dropped += chunk.num_rows - fresh.num_rows
        if verdict.after is not None:
            # It fails if the transaction has ended within `write`.
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


class _Runs:
    """The rows of the task's batches as one run after another, one run for each partition.

    Iterating gives the range of the next run. Take its rows (`rows_of`) before the next iteration.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], ranges: Mapping[int, Slice]) -> None:
        self._pieces: Any = pieces(batches)
        self._ranges = ranges
        self._ahead: tuple[int, pa.Table] | None = None

    def __iter__(self) -> Iterator[Slice]:
        while (piece := self._peek()) is not None:
            one = self._ranges.get(piece[0])
            if one is None:
                raise no_such_range(piece[0])
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
