"""Whether the task that read a queue partition still has all its rows, in order.

The source reads a queue partition in one task. Operators that work row by row keep it there; a
shuffle, a join or a union does not. The query's physical plan in Spark shows its operators. Only
operators that are known to work row by row pass; an unknown operator may do anything. A needless
shuffle costs time. A missing one would write half of a range and mark all of it as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
