"""What runs in the driver beside every query: it serves the channel, from `register` on.

*Events.* PySpark builds every event object by some hundred calls into the JVM, 60 ms of the
driver's time for each micro-batch. A listener that takes the event's own JSON needs one call
(`EventListener`). Events come on a thread of Spark's, in order, after the fact. Exceptions of a
listener are logged there, and end nothing.

*Done micro-batches* (`DoneListener`). A query's source learns at once when a micro-batch is in
Spark's commit log. Spark posts the progress of a micro-batch after it has written the entry of the
commit log, and never for a failed one (traced on PySpark 4.3). So its end offset is done, also in
the sink. The event may come late or, from an overloaded driver, never: then the source learns the
same when Spark asks for the next offset, or the next owner repeats those messages. It never comes
too early.

*Departures.* A query that an administrator has drained is stopped, so that it ends as after
`query.stop()`. The source hands everything over, leaves the queue and says so (the document
`left`). It could end the query only by an error. So the driver stops it: `awaitTermination`
returns, and the program ends as it does after any other stop. A thread checks the directory of the
driver, without a call into the JVM until there is something to do. It also sees queries that have
no micro-batches, for which Spark posts no events.

*Asynchronous progress tracking* (`asyncProgressTrackingEnabled`) is refused. With it Spark writes
offsets and commits later, and not all of them, while the source is told that its messages are done.
Then commits to the service are ahead of the checkpoint, and a restart repeats messages that were
committed before. Spark itself refuses it for `foreachBatch`, files and stateful queries. With the
other sinks (Kafka, console, memory, noop) only the class of its execution identifies such a query.
The driver sees that class when the query starts, and the source does not. So the driver tells the
source through the channel as soon as it knows the source, and the source fails the query.

*Finished micro-batches* of `foreachBatch` count as done, even while their query is being stopped
(`finish_batches`). `query.stop()` interrupts the query's thread in the JVM. That thread waits for
the Python function, and nothing interrupts that. When the function has returned, the thread is
still marked as interrupted, so its next step fails: the entry in Spark's commit log. Then the
micro-batch was never done for Spark, and so for the source: its messages would come again.

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
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from counterpoise.spark.channel import Channel, DriverEnd, channels_of
from counterpoise.spark.errors import Unsupported
from counterpoise.spark.offsets import VERSION_FIELD, Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


class DoneListener(EventListener):
    """Writes the document `done` of every Counterpoise source. `on_start` gets each query's id."""

    def __init__(
        self, home: str | Path, on_start: Callable[[str], None] = lambda query_id: None
    ) -> None:
        self._home = home
        self._on_start = on_start
        self._said: dict[str, dict[str, Json]] = {}

    def started(self, query_id: str) -> None:
        self._on_start(query_id)

    def progressed(self, progress: Json) -> None:
        said = self._said.setdefault(str(progress["runId"]), {})
        for source in ours(progress):
            end = source["endOffset"]
            document = {"offset": end, "batch": progress["batchId"], "ended": False}
            said[end["instance"]] = document
            DriverEnd(self._home, end["instance"]).put("done", document)

    def terminated(self, run_id: str) -> None:
        for instance, document in self._said.pop(run_id, {}).items():
            DriverEnd(self._home, instance).put("done", {**document, "ended": True})


def listen(spark: SparkSession, home: str | Path) -> None:
    """Add the listener to the session, once, and look for queries that are drained from outside.

    Without it, positions trail by a trigger, and a drained query ends with an error.
    """
    if getattr(spark, "_counterpoise_listener", None) is not None:
        return
    listener = DoneListener(home, lambda query_id: refuse_asynchronous(spark, query_id))
    try:
        spark.streams.addListener(listener)
    except Exception as error:
        logger.warning("counterpoise: Spark's events cannot be listened to (%s)", error)
        return
    vars(spark)["_counterpoise_listener"] = listener
    Departures(spark, home).start()


DEPARTURE_POLL_SECONDS = 0.25


class Departures:
    """Looks for queries of the session that have left their queue."""

    def __init__(self, spark: SparkSession, home: str | Path) -> None:
        self._spark = spark
        self._home = Path(home)
        self._seen: set[Path] = set()

    def start(self) -> None:
        """Look until the driver ends."""
        threading.Thread(target=self._run, name="counterpoise-departures", daemon=True).start()

    def look(self) -> None:
        """Stop the queries whose sources have left since the last look."""
        left = {path.parent for path in self._home.glob("*/left.json")}
        new, self._seen = left - self._seen, left
        if not new:
            return
        for query, directories in self._queries():
            if directories and directories <= left:
                logger.warning(
                    "counterpoise: query %s was drained by an administrator, and is stopped",
                    query.name or query.id,
                )
                query.stop()

    def _queries(self) -> Iterator[tuple[StreamingQuery, set[Path]]]:
        """The running queries with Counterpoise sources, and the directories of these."""
        for query in self._spark.streams.active:
            channels = channels_of(query) or ()
            yield query, {channel.directory for channel in channels}

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(DEPARTURE_POLL_SECONDS):
            if not self._home.exists():
                return
            try:
                self.look()
            except Exception as error:
                if not self._home.exists() or self._spark.sparkContext._jsc is None:
                    return
                logger.warning("counterpoise: a drained query could not be stopped (%s)", error)


_REFUSAL_POLL_SECONDS = 0.05
_EXECUTION = "AsyncProgressTracking"
_WHY = (
    "asynchronous progress tracking does not go with this source: what it has committed would be "
    "ahead of the checkpoint. Leave the option asyncProgressTrackingEnabled out"
)


def refuse_asynchronous(spark: SparkSession, query_id: str) -> None:
    """For a query that has just started: fail it if it has a Counterpoise source and tracks so.

    Returns at once, because the query has no offsets yet.
    """
    query = _find(spark, query_id)
    if query is None or _EXECUTION not in query._jsq.streamingQuery().getClass().getName():
        return
    if channels_of(query) == []:
        return
    threading.Thread(
        target=_refuse, args=(query,), name="counterpoise-tracking", daemon=True
    ).start()


def raise_if_refused(channel: Channel) -> None:
    """Raises Unsupported if the driver has told this source so."""
    if channel.stamp("refusal") is not None:
        raise Unsupported((channel.get("refusal") or {}).get("why", _WHY))


def _find(spark: SparkSession, query_id: str) -> Any:
    from pyspark.sql.streaming.query import StreamingQuery

    found: Any = spark.streams._jsqm.get(query_id)
    return None if found is None else StreamingQuery(found)


def _refuse(query: Any) -> None:
    """Repeated until the query is over: a restarted source may speak for the instance since."""
    wait = threading.Event().wait
    try:
        while query.isActive:
            channels: Sequence[Channel] = channels_of(query) or ()
            for channel in channels:
                if channel.stamp("refusal") is None:
                    channel.put("refusal", {"why": _WHY})
            wait(_REFUSAL_POLL_SECONDS)
    except Exception as error:
        # The session may end meanwhile.
        logger.warning("counterpoise: %s (and telling the query so failed: %s)", _WHY, error)


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

    from counterpoise.spark.channel import channels_of

    found: Any = session.streams._jsqm.get(query_id) if query_id else None
    return found is not None and channels_of(StreamingQuery(found)) != []
