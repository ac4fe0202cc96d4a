"""Whether the rows of a queue partition still come together, in order, in the task that read them.

The source reads a queue partition in one task. What works row by row keeps it so; a shuffle, a
join or a union does not. Which of them a query uses is in Spark's physical plan: it is walked, and
only operators that are known to work row by row count (whatever is not known may do anything). A
shuffle too many costs time; one too few would write half of a range and call it written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's operators that give, for each row, none or some rows at its place, one task as before.
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
    """Whether `batch`, made of the micro-batch that runs, has one task for each of the source's.

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
    """The rows of each queue partition in one of at most `tasks` tasks, by their positions.

    As text, a longer position is the higher one: positions are decimal numbers.
    """
    return batch.repartition(tasks, "partition").sortWithinPartitions(
        "partition", functions.length("position"), "position"
    )


def _leaf(plan: Any, name: str) -> Any | None:
    """The one leaf of the plan, if it is of this kind and everything above works row by row."""
    for node in _nodes(plan):
        kind = node.getClass().getSimpleName()
        if kind == name:
            return node
        if kind not in _ROW_BY_ROW and kind != _CACHED:
            return None
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    """The plan and what is below it, along its first children; joins are refused by their name."""
    while True:
        yield plan
        if plan.getClass().getSimpleName() == _CACHED:
            plan = plan.relation().cachedPlan()
            continue
        children = plan.children()
        if children.size() == 0:
            return
        plan = children.apply(0)
