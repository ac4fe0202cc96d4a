"""Spark's events of streaming queries, as JSON.

PySpark builds every event object by some hundred calls into the JVM, 60 ms of the driver's time for
each micro-batch. A listener that takes the event's own JSON needs one call. Events come on a thread
of Spark's, in order, after the fact. Exceptions of a listener are logged there, and end nothing.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from counterpoise.spark.plan.offsets import VERSION_FIELD, Json

logger = logging.getLogger("counterpoise.spark")


class EventListener(StreamingQueryListener):
    """For subclasses: events of queries by their run id, and of their start by the query's id."""

    def started(self, query_id: str) -> None:
        """The query begins. It has no offsets yet, and waits until this method returns."""

    def progressed(self, progress: Json) -> None:
        """A micro-batch is in the commit log; `progress` is Spark's document."""

    def idle(self, run_id: str) -> None:
        """The query has found nothing to do for a while."""

    def terminated(self, run_id: str) -> None:
        """The query has ended; no more events of it follow."""

    # ------------------------------------------------------------------ called by Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self.started(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self.idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.terminated(str(event.runId))

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_wrapped"):
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.PythonStreamingQueryListenerWrapper(_Relay(self))
        return self._wrapped


class _Relay:
    """The object that the JVM calls; it passes the JSON on."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        try:
            self._listener.started(event.id().toString())
        except Exception:
            logger.exception("counterpoise: a query's start could not be taken in")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        try:
            self._listener.progressed(json.loads(event.progress().json()))
        except Exception:
            logger.exception("counterpoise: a query's progress could not be taken in")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        try:
            self._listener.idle(event.runId().toString())
        except Exception:
            logger.exception("counterpoise: a query's event could not be taken in")

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        try:
            self._listener.terminated(event.runId().toString())
        except Exception:
            logger.exception("counterpoise: a query's end could not be taken in")

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def ours(progress: Json) -> list[Json]:
    """The Counterpoise sources in a query's progress, recognized by their end offsets."""
    found = []
    for source in progress.get("sources") or ():
        end = source.get("endOffset") if isinstance(source, dict) else None
        if isinstance(end, dict) and VERSION_FIELD in end and end.get("instance"):
            found.append(source)
    return found
