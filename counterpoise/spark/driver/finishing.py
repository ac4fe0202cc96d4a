"""Finished micro-batches of `foreachBatch` count as done, even while their query is being stopped.

`query.stop()` interrupts the query's thread in the JVM. That thread waits for the Python function,
and nothing interrupts that. When the function has returned, the thread is still marked as
interrupted, so its next step fails: the entry in Spark's commit log. Then the micro-batch was never
done for Spark, and so for the source: its messages would come again.

So when the function has returned, the mark is removed. Spark writes the entry, posts the event that
tells the source, and then ends the query, because `stop` has set its state before. The calls of the
function reach the JVM in the very thread that waits for it (PySpark pins them), so it is that
thread's mark.

Two cases remain. `stop` cancels a Spark job within the function, so the function fails and the
micro-batch comes again. And a `stop` between the function's return and the entry (tens of
milliseconds) still interrupts the entry. `drain` avoids both.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("counterpoise.spark")

_QUERY_ID = "sql.streaming.queryId"


def finish_batches() -> None:
    """Enable it for all Counterpoise queries of this process; `register` calls this once.

    A PySpark with other classes is left unchanged.
    """
    try:
        from pyspark.sql.utils import ForeachBatchFunction

        call = ForeachBatchFunction.call
    except (ImportError, AttributeError):
        logger.info("counterpoise: this PySpark has no ForeachBatchFunction to protect")
        return
    if not hasattr(call, "__wrapped__"):
        ForeachBatchFunction.call = _finishing(call)  # type: ignore[method-assign]


def _finishing(call: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(call)
    def finish(self: Any, jdf: Any, batch_id: int) -> None:
        call(self, jdf, batch_id)
        try:
            _forget_interrupt(self.session)
        except Exception:
            logger.exception("counterpoise: the end of a micro-batch could not be protected")

    return finish


def _forget_interrupt(session: SparkSession) -> None:
    context: Any = session.sparkContext
    thread = context._jvm.java.lang.Thread
    # In nearly all micro-batches this is the only call.
    if not thread.interrupted():
        return
    if _reads_ours(session, context.getLocalProperty(_QUERY_ID)):
        logger.info("counterpoise: stopped during a finished micro-batch: it counts as done")
    else:
        thread.currentThread().interrupt()


def _reads_ours(session: SparkSession, query_id: str | None) -> bool:
    from pyspark.sql.streaming.query import StreamingQuery

    from counterpoise.spark.channel.documents import channels_of

    found: Any = session.streams._jsqm.get(query_id) if query_id else None
    return found is not None and channels_of(StreamingQuery(found)) != []
