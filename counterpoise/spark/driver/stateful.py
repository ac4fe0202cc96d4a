"""Queries whose state Spark keeps, and the refusal to start them where a handoff would lose it.

Spark keeps the state of a query in its checkpoint. A handoff moves a partition of the queue to
another application, with another checkpoint. So what the old owner has counted, seen or joined of
that partition's messages stays behind, and the new owner begins with nothing. Also, Spark has one
watermark for the whole query. An owner that is ahead in event time drops what it takes over as
late. In both cases rows vanish, or come twice, without an error.

So `DataStreamWriter.start` and `toTable` examine the query's plan, before Spark starts anything. A
query with an operator of `OPERATORS` above a Counterpoise source fails with `StateLost`, unless

- the source has the option `stateOnHandoff=lose`;
- the queue is exclusive. Its partitions have one owner, which has all of them. The source's flow
  says that it keeps state, so that the queue stays as it is, and the source watches over the state
  (`source.query_state`). It learns of the state by a document of the driver
  (`channel.query_state`), so the session must be a registered one. The state is whole as long as
  this owner always continues from the same checkpoint;
- the operator is a processor whose state is handed over (`tenured`) and the source restores it
  (`warmup=true` with a history). With `timeMode="EventTime"` Spark drops the rows of a history, and
  those of a partition that is behind, as late. So that is refused too.

A `WITH` of SQL and some subqueries become such operators only when Spark optimizes the plan. A plan
that has them is optimized for the examination.

The examination is a few calls into the JVM. Only a query with such an operator calls the service,
for the queue's access type. `register` installs it, for all Counterpoise queries of this process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterpoise.spark.channel.channel import sources_in
from counterpoise.spark.driver.launch import connected
from counterpoise.spark.driver.wrapping import wrap_once
from counterpoise.spark.errors import StateLost, Unsupported
from counterpoise.spark.options import SourceOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger("counterpoise.spark")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of Spark that keeps state: as users write it, what a handoff does, and a way out.

    `loses` completes "when a partition goes to another application, …".
    """

    written: str
    loses: str
    instead: str


_GROUPS = Operator(
    "an aggregation (groupBy)",
    "what was counted of open groups stays behind: a window or key comes in two parts, or in one "
    "that lacks rows, and rows that the watermark of the new owner has passed are dropped as late",
    "aggregate in the sink, with counterpoise.spark.FencedAggregate (docs/aggregates.md), or in "
    "Spark, with processors.WindowAggregate (docs/processors.md)",
)
_IDS = Operator(
    "dropDuplicates",
    "the ids that were seen stay behind: an id that comes again passes again",
    "deduplicate in the sink, with counterpoise.spark.Deduplicate (docs/sink.md), or in Spark, "
    "with processors.DuplicateFilter (docs/processors.md)",
)
_EXCEPT = Operator(
    "subtract, exceptAll (EXCEPT)",
    "the rows that were passed stay behind: one that comes again passes again",
    'join with the table, how="left_anti", which keeps no state; where each row is to pass '
    "once, write with counterpoise.spark.Deduplicate (docs/sink.md)",
)
_PROCESSOR = (
    "the state of its keys stays behind: the new owner begins with none",
    (
        "use counterpoise.spark.StatefulForeachBatch, or on PySpark 4.1 and later "
        "counterpoise.spark.TenuredProcessor, on a source with warmup=true (docs, Warm-up)"
    ),
)

OPERATORS = {
    "Aggregate": _GROUPS,
    "Deduplicate": _IDS,
    "DeduplicateWithinWatermark": Operator(
        "dropDuplicatesWithinWatermark", _IDS.loses, _IDS.instead
    ),
    "Distinct": Operator("distinct", _IDS.loses, _IDS.instead),
    "Except": _EXCEPT,
    # What the text of a plan calls it.
    "ExceptAll": _EXCEPT,
    "FlatMapGroupsInPandasWithState": Operator("applyInPandasWithState", *_PROCESSOR),
    "FlatMapGroupsWithState": Operator("flatMapGroupsWithState", *_PROCESSOR),
    "GlobalLimit": Operator(
        "limit",
        "the number of rows so far stays behind: each application passes as many",
        "limit what is read from the result",
    ),
    "Join": Operator(
        "a join of two streams",
        "rows that wait for their match stay behind: pairs are missing",
        "write both streams with counterpoise.spark.FencedSink and join the tables, or let one "
        "queue read both (align_with) and use processors.JoinByKey (docs/aligned.md)",
    ),
    "TransformWithState": Operator("transformWithState", *_PROCESSOR),
    "TransformWithStateInPySpark": Operator("transformWithState", *_PROCESSOR),
    # Of PySpark 4.0.
    "TransformWithStateInPandas": Operator("transformWithStateInPandas", *_PROCESSOR),
}
"""By the class of the node in Spark's logical plan, or its name in the text of the plan."""

_EVENT_TIME = Operator(
    "transformWithState with timeMode EventTime",
    "in this mode Spark drops rows older than the watermark as late (SPARK-51758), and the "
    "watermark is one for all partitions: it drops the rows that restore the state, and new rows "
    "of a partition that is behind the others",
    'use timeMode="None", where Spark drops no rows, and close windows by the partition time '
    "(counterpoise.spark.processors, docs/processors.md)",
)
_NO_WARMUP = Operator(
    "transformWithState with a TenuredProcessor, on a source without warm-up",
    "nothing restores the state of its keys: the new owner begins with none",
    "set the source's option warmup=true, and warmupFrom to a history (docs, Warm-up)",
)


@dataclass(frozen=True)
class StatefulUse:
    """One source below one operator that keeps state."""

    operator: Operator
    options: SourceOptions


def stateful_uses(spark: SparkSession, plan: Any) -> list[StatefulUse]:
    """The operators of a query with this analyzed plan whose state a handoff loses, each with its
    Counterpoise source.

    Raises InvalidOption.
    """
    if not plan.isStreaming():
        return []
    examination = _Examination(spark)
    found = list(examination.uses(plan))
    if _hides_operators(plan):
        found += examination.uses(_optimized(spark._jsparkSession, plan))
    return found


def _hides_operators(plan: Any) -> bool:
    """Whether it is not a tree yet: what is named by a `WITH`, and subqueries of the stream or of
    each of its rows, are elsewhere. Other subqueries read tables, which takes time to plan.
    """
    leaves = (leaf.nodeName() for leaf in _each(plan.collectLeaves()))
    return "CTERelationRef" in leaves or any(
        one.isStreaming() or "outer(" in one.toString() for one in _each(plan.subqueriesAll())
    )


def _optimized(session: Any, plan: Any) -> Any:
    """A copy of the plan as Spark optimizes it. Spark reads the settings of the active session."""
    active = session.getActiveSession()
    session.setActiveSession(session)
    try:
        return session.sessionState().optimizer().execute(plan.clone())
    finally:
        if active.isDefined():
            session.setActiveSession(active.get())
        else:
            session.clearActiveSession()


def refuse_lost_state(spark: SparkSession, plan: Any) -> None:
    """Raises StateLost if a handoff would lose state of a query with this analyzed plan;
    CannotStart, Unsupported.
    """
    for use in stateful_uses(spark, plan):
        options = use.options
        if options.state_on_handoff == "lose":
            continue
        if not is_exclusive(options):
            raise state_lost(use, "make the queue exclusive")
        if not _is_registered(spark):
            raise Unsupported(
                f"the query keeps state in Spark ({use.operator.written}), and its session was not "
                "registered, so the queue would not stay exclusive for it. Call "
                "counterpoise.spark.register for this session before the stream is loaded"
            )


def state_lost(use: StatefulUse, exclusive: str) -> StateLost:
    """The error. `exclusive`: how a queue with one owner is told."""
    operator = use.operator
    return StateLost(
        f"the query keeps state in Spark: {operator.written}, on the queue {use.options.queue!r}, "
        "which several applications may share. Spark does not hand this state over: when a "
        f"partition goes to another application, {operator.loses}. Instead, "
        f"{operator.instead}. Or {exclusive} and always start this one "
        "application from the same checkpoint. If you accept the loss: "
        ".option('stateOnHandoff', 'lose'). See docs/spark.md, State and handoffs"
    )


def unrestored(options: SourceOptions, *, event_time: bool) -> Operator | None:
    """Why the state of a processor is not restored on this source; None: it is."""
    if not options.warmup or options.warmup_from.snapshot:
        return _NO_WARMUP
    return _EVENT_TIME if event_time else None


def is_exclusive(options: SourceOptions) -> bool:
    """Whether the queue has one owner for all its partitions. Raises CannotStart."""
    # Only queries that keep state need the HTTP client here.
    from counterpoise.client import Client
    from counterpoise.spark.queue_log import retry_until

    give_up_at = time.monotonic() + options.start_timeout_seconds
    with Client(options.url) as client:
        queue = retry_until(lambda: client.queue(options.queue), options, give_up_at)
    return queue.access_type == "exclusive"


class _Examination:
    """A walk through one logical plan."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext

    def uses(self, node: Any) -> Iterator[StatefulUse]:
        """Those of this node and of the nodes below it."""
        children = list(_each(node.children()))
        for child in children:
            yield from self.uses(child)
        operator = OPERATORS.get(node.getClass().getSimpleName())
        if operator is None or not node.isStreaming():
            return
        if operator is OPERATORS["Join"] and not all(one.isStreaming() for one in children):
            return
        for source in sources_in(node):
            options = read_options(dict(source.extraOptions()))
            found = self._of_processor(node, options, operator)
            if found is not None:
                yield StatefulUse(found, options)

    def _of_processor(
        self, node: Any, options: SourceOptions, operator: Operator
    ) -> Operator | None:
        """The operator; None if it is a processor whose state is handed over."""
        if node.getClass().getSimpleName() != "TransformWithStateInPySpark":
            return operator
        if not getattr(self._processor(node), "tenured", False):
            return operator
        return unrestored(options, event_time=str(node.timeMode().toString()) == "EventTime")

    def _processor(self, node: Any) -> object:
        """The user's processor, from the function that Spark sends to its workers."""
        from pyspark.serializers import CloudPickleSerializer

        jvm = self._context._jvm
        command = node.functionExpr().func().command().toArray(jvm.scala.reflect.ClassTag.Byte())
        load: Callable[[bytes], Any] = CloudPickleSerializer().loads  # type: ignore[no-untyped-call]
        function = load(bytes(command))
        if hasattr(function, "value"):  # a large one is a broadcast
            function = load(function.value)
        of = getattr(function[0], "__self__", None)
        return getattr(of, "_stateful_processor", None)


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


# The sessions of the JVM whose sources can be told that a query keeps state.
_registered: list[Any] = []


def refuse_at_start(spark: SparkSession) -> None:
    """Examine each query of this process before it starts, and start it again if its source does
    not connect (`launch`). `register` calls this for a session.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if not _is_registered(spark):
        _registered.append(spark._jsparkSession)
    for name in ("start", "toTable"):
        wrap_once(DataStreamWriter, name, _examined)


def _is_registered(spark: SparkSession) -> bool:
    """Python may have several objects for one session of the JVM."""
    for one in _registered:
        # It asks the JVM, which may have ended.
        with contextlib.suppress(Exception):
            if one == spark._jsparkSession:
                return True
    return False


def _examined(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan = self._df._jdf.queryExecution().analyzed()
        refuse_lost_state(self._df.sparkSession, plan)
        begin = functools.partial(method, self, *args, **kwargs)
        return connected(begin) if sources_in(plan) else begin()

    return start
