"""The sink that users pass to `foreachBatch`, and whether its rows have to be brought together.

The source reads a queue partition in one task. Operators that work row by row keep it there; a
shuffle, a join or a union does not. The query's physical plan in Spark shows its operators. Only
operators that are known to work row by row pass; an unknown operator may do anything. A needless
shuffle costs time. A missing one would write half of a range and mark all of it as written.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from pyspark.sql import functions

from counterpoise.spark.errors import (
    InvalidSink,
    MissingColumns,
    PlanMissing,
    SinkNameInUse,
    StaleEpoch,
)
from counterpoise.spark.offsets import Slice
from counterpoise.spark.running_batch import BatchPlan, RunningBatch
from counterpoise.spark.sink.database import Database, MakeEngine, TransactionLimits
from counterpoise.spark.sink.fence import OnGap
from counterpoise.spark.sink.writer import RESULT_SCHEMA, Insert, Task, Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


logger = logging.getLogger("counterpoise.spark")

HIGH_WATER_TABLE = "counterpoise_high_water"


@dataclass(frozen=True)
class Report:
    """The outcome of one micro-batch: numbers of rows, and partitions of the queue.

    `dropped`: rows that were written before, or that the new owners of `superseded` write. `gaps`:
    ranges that were never written here and were accepted, as (partition, from, to).
    """

    batch_id: int
    written: int = 0
    dropped: int = 0
    superseded: tuple[int, ...] = ()
    gaps: tuple[tuple[int, str, str], ...] = ()


class FencedSink:
    """Writes each message exactly once, across all applications: `.foreachBatch(FencedSink(url,
    write, name=…))`.

    `where`: the URL of a PostgreSQL database (a secret, shown nowhere), or a function that makes a
    SQLAlchemy engine and is called on the executors; None: COUNTERPOISE_SINK_URL of this process.

    `write(connection, rows, scope)` is called on the executors with a `sqlalchemy.Connection` in
    the transaction of the fence, a `pyarrow.Table` of rows of one queue partition in the order of
    their positions, and a `Scope`. It may be called several times for one range, and must not
    commit.

    `name` tells apart the sinks of one database; all applications of a queue use the same.
    `on_gap`: `fail`, or `accept` a range that was never written here. `idle_seconds` and
    `transaction_seconds`: how long a transaction may be idle or take, and so how long a frozen
    writer can keep a partition from its successor (docs, *How the rows of a partition*).
    `retry_seconds`: how long an unavailable database is retried. `confirm_seconds`: when the fence
    has refused a range, how long the source may take to learn that it lost the partition.

    Raises InvalidSink.
    """

    def __init__(
        self,
        where: str | MakeEngine | None,
        write: Write,
        *,
        name: str,
        high_water: str = HIGH_WATER_TABLE,
        on_gap: OnGap = "fail",
        idle_seconds: float = 60.0,
        transaction_seconds: float = 600.0,
        retry_seconds: float = 30.0,
        confirm_seconds: float = 60.0,
    ) -> None:
        if importlib.util.find_spec("sqlalchemy") is None:
            raise InvalidSink("the fenced sink needs SQLAlchemy: pip install 'counterpoise[sink]'")
        if not name:
            raise InvalidSink("the sink needs a name: its high-water is kept under it")
        if on_gap not in get_args(OnGap):
            raise InvalidSink(f"on_gap is one of {', '.join(get_args(OnGap))}, not {on_gap!r}")
        self.name = name
        self.last_report: Report | None = None
        self._database = Database(where)
        self._write = write
        self._high_water = high_water
        self._on_gap: OnGap = on_gap
        self._bounds = TransactionLimits(idle_seconds, transaction_seconds, retry_seconds)
        self._confirm_seconds = confirm_seconds

    @classmethod
    def to_table(
        cls,
        where: str | MakeEngine | None,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        name: str | None = None,
        high_water: str = HIGH_WATER_TABLE,
        on_gap: OnGap = "fail",
        idle_seconds: float = 60.0,
        transaction_seconds: float = 600.0,
        retry_seconds: float = 30.0,
        confirm_seconds: float = 60.0,
    ) -> FencedSink:
        """A sink that inserts `columns` into the columns of the same names of a table.

        By default these are all columns of the rows except `replay` and `tenure`, which concern
        warm-up alone. Maps and structs become JSON. The default `name` is the table's.
        """
        return cls(
            where,
            Insert(table, None if columns is None else tuple(columns)),
            name=name or table,
            high_water=high_water,
            on_gap=on_gap,
            idle_seconds=idle_seconds,
            transaction_seconds=transaction_seconds,
            retry_seconds=retry_seconds,
            confirm_seconds=confirm_seconds,
        )

    def __repr__(self) -> str:
        return f"FencedSink(name={self.name!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; `foreachBatch` calls this.

        Raises MissingColumns, StaleEpoch, and what the tasks raise (as Spark's exception).
        """
        _check_columns(batch)
        running = RunningBatch.of(batch)
        _check_name(self, running.run_id, batch_id)
        planned = running.planned
        kept = is_kept_together(batch, running.execution, len(planned.tasks))
        results = self._run(batch, batch_id, planned, kept)
        done = {row.partition for row in results}
        left = [one for one in planned.read if one.partition not in done]
        if left:
            # After repartitioning, no task moves the high-water of a partition without rows.
            results += self._move(batch, batch_id, planned, left)
        self._finish(running, batch_id, results)

    def forget(self, queue: str) -> int:
        """Accept the next range of each partition as the first (docs, *Delivering again*).

        Call it while no application writes. Returns the number of partitions concerned.
        """
        from counterpoise.spark.sink.highwater import HighWaters

        return HighWaters(self._high_water).forget(self._database.engine(), self.name, queue)

    # ------------------------------------------------------------------ the tasks

    def _run(self, batch: DataFrame, batch_id: int, planned: BatchPlan, kept: bool) -> list[Row]:
        if kept:
            rows, tasks = batch, planned.tasks
        else:
            cores = batch.sparkSession.sparkContext.defaultParallelism
            rows = brought_together(batch, max(1, min(cores, len(planned.read))))
            tasks = None
        task = self._task(batch_id, planned, planned.read, tasks)
        return rows.mapInArrow(task.__call__, RESULT_SCHEMA).collect()

    def _move(
        self, batch: DataFrame, batch_id: int, planned: BatchPlan, left: Sequence[Slice]
    ) -> list[Row]:
        """Move the high-water over ranges without rows."""
        count = min(len(left), batch.sparkSession.sparkContext.defaultParallelism)
        groups = tuple(tuple(one.partition for one in left[at::count]) for at in range(count))
        task = self._task(batch_id, planned, left, groups)
        none = batch.sparkSession.range(0, count, 1, count).selectExpr(
            "cast(id as int) as partition", "cast(null as string) as position", "true as replay"
        )
        return none.mapInArrow(task.__call__, RESULT_SCHEMA).collect()

    def _task(
        self,
        batch_id: int,
        planned: BatchPlan,
        ranges: Iterable[Slice],
        tasks: tuple[tuple[int, ...], ...] | None,
    ) -> Task:
        return Task(
            self._database,
            self._high_water,
            (self.name, planned.queue_id, planned.log, planned.queue),
            batch_id,
            {one.partition: one for one in ranges},
            self._write,
            tasks,
            self._on_gap,
            self._bounds,
        )

    # ------------------------------------------------------------------ the outcome

    def _finish(self, running: RunningBatch, batch_id: int, results: Sequence[Row]) -> None:
        missing = {one.partition for one in running.planned.read} - {r.partition for r in results}
        if missing:
            raise PlanMissing(f"no task has written the partitions {sorted(missing)}")
        superseded = [(one.partition, one.epoch) for one in results if one.outcome == "superseded"]
        gaps = [one for one in results if one.gap_from is not None]
        self.last_report = Report(
            batch_id,
            sum(one.written for one in results),
            sum(one.dropped for one in results),
            tuple(sorted(partition for partition, _ in superseded)),
            tuple(sorted((one.partition, one.gap_from, one.gap_to) for one in gaps)),
        )
        for one in gaps:
            logger.warning(
                "counterpoise: sink %s: partition %d: positions %s to %s were never written here; "
                "accepted (on_gap)",
                self.name,
                one.partition,
                one.gap_from,
                one.gap_to,
            )
        for partition, epoch in superseded:
            logger.warning(
                "counterpoise: sink %s: partition %d has a new owner, which has written already: "
                "its rows of micro-batch %d under epoch %d were dropped, the new owner reads them",
                self.name,
                partition,
                batch_id,
                epoch,
            )
        held = running.still_held(superseded, self._confirm_seconds)
        if held:
            raise StaleEpoch(
                f"sink {self.name!r} has seen higher epochs than those under which this "
                f"application holds {', '.join(f'partition {p} (epoch {e})' for p, e in held)}, "
                f"and in {self._confirm_seconds:g} s the service has not said that they were "
                "lost. Start the query again if the service was away. If it was restored from a "
                "backup, 'counterpoise migrate --after-restore' must follow, which fences what was "
                "granted since; without that, only deleting the rows of this sink and queue from "
                f"the table {self._high_water} helps"
            )


def _check_columns(batch: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in batch.schema.fields}
    wrong = []
    if types.get("partition") not in ("int", "bigint"):
        wrong.append("partition (int)")
    if types.get("position") != "string":
        wrong.append("position (string)")
    if wrong:
        raise MissingColumns(
            f"the rows have no column {' and no column '.join(wrong)}: the fence needs them, so "
            "pass those of the source through, as in select('partition', 'position', …). Rows "
            "made of several messages have none: aggregate within the sink's write function"
        )


# By name and run: the last batch, and the sink object that got it.
_given: dict[tuple[str, str, str, str], tuple[int, weakref.ref[FencedSink]]] = {}
_given_lock = threading.Lock()


def _check_name(sink: FencedSink, run_id: str, batch_id: int) -> None:
    """Two sinks of one name would each mistake the other's work for its own."""
    key = (sink.name, sink._high_water, sink._database.key, run_id)
    with _given_lock:
        before = _given.get(key)
        other = before[1]() if before is not None and before[0] == batch_id else None
        if other is not None and other is not sink:
            raise SinkNameInUse(
                f"two sinks named {sink.name!r} were given the same micro-batch: the second would "
                "find everything written. Give each a name of its own"
            )
        _given[key] = (batch_id, weakref.ref(sink))


# Spark's operators that turn each row into zero or more rows in place, in the same task.
_ROW_BY_ROW = frozenset(
    {
        "ArrowEvalPythonExec",
        "BatchEvalPythonExec",
        "CollectMetricsExec",
        "ColumnarToRowExec",
        "EventTimeWatermarkExec",
        "FilterExec",
        "GenerateExec",
        "InputAdapter",
        "ProjectExec",
        "WholeStageCodegenExec",
    }
)
_SOURCE = "MicroBatchScanExec"
_BATCH = "RDDScanExec"
_CACHED = "InMemoryTableScanExec"


def is_kept_together(batch: DataFrame, execution: Any, tasks: int) -> bool:
    """Whether `batch`, made of the running micro-batch, has one task for each task of the source.

    `execution` is Spark's query. `tasks`: how many the source has planned.
    """
    of_query = execution.lastExecution()
    streamed = of_query.toRdd()
    if streamed.getNumPartitions() != tasks:
        return False
    if _leaf(of_query.executedPlan(), _SOURCE) is None:
        return False
    leaf = _leaf(batch._jdf.queryExecution().executedPlan(), _BATCH)
    return leaf is not None and leaf.rdd().id() == streamed.id()


def brought_together(batch: DataFrame, tasks: int) -> DataFrame:
    """Each queue partition's rows in one of at most `tasks` tasks, ordered by position.

    Positions are decimal numbers, so a longer text is a higher position.
    """
    return batch.repartition(tasks, "partition").sortWithinPartitions(
        "partition", functions.length("position"), "position"
    )


def _leaf(plan: Any, name: str) -> Any | None:
    """The one leaf of the plan, if it is of this kind and all operators above work row by row."""
    for node in _nodes(plan):
        kind = node.getClass().getSimpleName()
        if kind == name:
            return node
        if kind not in _ROW_BY_ROW and kind != _CACHED:
            return None
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    """The plan and its descendants by first children; a join is refused by its name."""
    while True:
        yield plan
        if plan.getClass().getSimpleName() == _CACHED:
            plan = plan.relation().cachedPlan()
            continue
        children = plan.children()
        if children.size() == 0:
            return
        plan = children.apply(0)
