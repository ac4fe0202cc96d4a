"""The rows of a micro-batch in Spark, and whether those of a queue partition have to be brought
together.

The source reads a queue partition in one task, unless it is told to divide partitions
(`minPartitions`). Operators that work row by row keep it there; a shuffle, a join or a union does
not. The query's physical plan in Spark shows its operators. Only
operators that are known to work row by row pass; an unknown operator may do anything. A needless
shuffle costs time. A missing one would write half of a range and mark all of it as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import __version__ as version
from pyspark.errors import PySparkException
from pyspark.sql import functions

from counterpoise.spark.driver.plain_errors import own_error
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.target import Line, MapRows
from counterpoise.spark.version import names_time_zones

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from counterpoise.spark.channel.running_batch import RunningBatch


class BatchRows:
    """The rows that `foreachBatch` got."""

    def __init__(self, batch: DataFrame, running: RunningBatch) -> None:
        self._batch = batch
        self._planned = running.planned
        self._cores = max(1, batch.sparkSession.sparkContext.defaultParallelism)
        self._kept = not self._planned.divides and is_kept_together(
            batch, running.execution, len(self._planned.tasks)
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, with times in UTC."""
        from pyspark.sql.pandas.types import to_arrow_schema

        zone: dict[str, Any] = {"timezone": "UTC"} if names_time_zones(version) else {}
        schema: pa.Schema = to_arrow_schema(self._batch.schema, **zone)
        return schema

    def map(self, function: MapRows, schema: str) -> list[Line]:
        """Apply it to the rows as they are, in at most as many tasks as there are cores."""
        rows = self._batch if self._kept else self._batch.coalesce(self._cores)
        return _collected(rows, function, schema)

    def together(self) -> DataFrame:
        """The rows of a queue partition in one task, in the order of their positions."""
        if self._kept:
            return self._batch
        return brought_together(self._batch, max(1, min(self._cores, len(self._planned.read))))

    def map_partitions(
        self,
        make: Callable[[Mapping[int, Slice], tuple[tuple[int, ...], ...] | None], MapRows],
        schema: str,
    ) -> list[Line]:
        """Apply what `make` gives to the rows of whole queue partitions."""
        ranges = {one.partition: one for one in self._planned.read}
        function = make(ranges, self._planned.tasks if self._kept else None)
        lines = _collected(self.together(), function, schema)
        for line in lines:
            ranges.pop(line["partition"], None)
        # After repartitioning, no task knows a partition without rows.
        return lines + self._without_rows(make, ranges, schema) if ranges else lines

    def _without_rows(
        self,
        make: Callable[[Mapping[int, Slice], tuple[tuple[int, ...], ...] | None], MapRows],
        ranges: Mapping[int, Slice],
        schema: str,
    ) -> list[Line]:
        count = min(len(ranges), self._cores)
        groups = tuple(tuple(ranges)[at::count] for at in range(count))
        none = self._batch.sparkSession.range(0, count, 1, count).selectExpr(
            "cast(id as int) as partition", "cast(null as string) as position", "true as replay"
        )
        return _collected(none, make(ranges, groups), schema)


def _collected(rows: DataFrame, function: MapRows, schema: str) -> list[Line]:
    """Raises what a task has raised: an error of ours as it is, and others as Spark's exception."""
    try:
        # Spark looks at the code of what it gets, so this must be a function.
        lines = rows.mapInArrow(lambda batches: function(batches), schema).collect()
    except PySparkException as error:
        if (ours := own_error(error)) is None:
            raise
        raise ours from None
    return [line.asDict() for line in lines]


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
