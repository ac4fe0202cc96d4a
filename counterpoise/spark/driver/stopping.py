"""The end of Spark's context: its queries leave their queues before it, or at once after it.

`spark.stop()` does not stop queries. One without new messages runs no job, so it never meets the
stopped context: Spark asks its source for offsets as before. The source would renew its lease, and
keep partitions that nothing reads until the next message comes.

*A program stops the context* (`spark.stop()`, or `stop` of the context, on any thread). First all
queries of the application that read queues are stopped, as by `query.stop()`: they commit, and
unbind. A query whose function of `foreachBatch` does not return in time is left behind, and its
source is told to leave (the document `stopped`).

*Spark itself stops it* (an error in its scheduler, a cluster that ends the application). A look
once a second finds that (`driver`). Queries cannot be stopped any more, as that takes a context, so
their sources are told.

A source that is told commits what is done and unbinds, and its query fails at its next question.
The messages of its micro-batch come again at the next owner.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from counterpoise.spark.channel.channel import (
    channel_to,
    offsets_in,
    reads_ours,
    running_executions,
)
from counterpoise.spark.driver.wrapping import check_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("counterpoise.spark")

# A session of each context: all sessions of an application share the list of running queries.
_sessions: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()


def leave_before_stop(spark: SparkSession) -> None:
    """From now on the queries of this session's application leave before its context stops."""
    _sessions[spark.sparkContext] = spark._jsparkSession
    check_before(SparkContext, "stop", leave)


def has_stopped(context: SparkContext) -> bool:
    """Whether the context has stopped, by the program or by itself."""
    java: Any = context._jsc
    return java is None or bool(java.sc().isStopped())


def leave(context: SparkContext) -> None:
    """Let the queries of this context leave their queues, within seconds; does not raise."""
    session = _sessions.pop(context, None)
    if session is None:
        return
    try:
        if queries := _running(session):
            # Only the process of the queries needs it, and each task imports this module.
            from counterpoise.spark.driver.draining import stop_all

            stop_all(queries)
            _tell(session)
    except Exception as error:  # the JVM has ended, or is ending
        logger.warning("counterpoise: the queries could not leave before Spark stops: %s", error)


def _running(session: Any) -> list[Any]:
    return [one for one in running_executions(session) if reads_ours(one)]


def _tell(session: Any) -> None:
    """Tell the sources of the queries that still run."""
    for query in _running(session):
        for offset in offsets_in(query.availableOffsets()).values():
            with contextlib.suppress(OSError):
                channel_to(offset["instance"]).put("stopped", {})
