"""A query of a session that was not registered: its tasks find out whether it keeps state in Spark.

Nothing has looked at the plan of such a query, and neither its source nor its tasks see it. But
since 4.1 Spark switches adaptive execution off for queries with state, and leaves it on for others
(SPARK-53941). A task sees the settings of its micro-batch, so it can tell. It looks before it reads
a message. A query that joins others runs a micro-batch that reads nothing before it binds
(`opening`), so it takes no partition from them.

A program that has itself switched adaptive execution off, for all queries or for streams, looks
like one with state. The error says what to do then: with `register` the plan is examined, but not
by the server of Spark Connect. Of `subtract`, `exceptAll` and correlated subqueries Spark itself
does not know here that they keep state.
"""

from __future__ import annotations

from pyspark import TaskContext
from pyspark import __version__ as version

from counterpoise.spark.errors import StateLost
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.version import tells_state

_ADAPTIVE = "spark.sql.adaptive.enabled"
_ADAPTIVE_WITHOUT_STATE = "spark.sql.adaptive.streaming.stateless.enabled"


def refuse_state(options: SourceOptions) -> None:
    """Raises StateLost in a task of a query that keeps state, unless its options care for it."""
    # What a processor does with its history is its own affair.
    if options.state_on_handoff == "lose" or options.warmup or not tells_state(version):
        return
    task = TaskContext.get()
    if task is None or "false" not in (task.getLocalProperty(_ADAPTIVE) or ""):
        return
    raise StateLost(
        f"the query on the queue {options.queue!r} keeps state in Spark (groupBy, dropDuplicates, "
        "a join of streams, …), which no handoff takes along, and its session was not registered. "
        "Call counterpoise.spark.register(spark) before the stream is loaded: it says what to use "
        f"instead, and lets a query without state pass where {_ADAPTIVE} or "
        f"{_ADAPTIVE_WITHOUT_STATE} is false. Over Spark Connect set both to true. If you accept "
        "the loss: .option('stateOnHandoff', 'lose'). See docs/spark.md, State and handoffs"
    )
