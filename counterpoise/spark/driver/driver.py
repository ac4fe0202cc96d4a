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
too early. With it the source learns how many rows Spark's watermark has dropped so far.

*Departures.* A query that an administrator has drained is stopped, so that it ends as after
`query.stop()`. The source hands everything over, leaves the queue and says so (the document
`left`). It could end the query only by an error. So the driver stops it: `awaitTermination`
returns, and the program ends as it does after any other stop. A query of several queues that was
drained from one of them leaves the others first. A thread checks the directory of the driver. It
also sees queries that have no micro-batches, for which Spark posts no events. Once a second it asks
the JVM whether Spark has stopped by itself (`stopping`).

*The end of the program.* Spark posts the end of a query before `awaitTermination` returns, and
calls the listeners on another thread. A program that ends at once would be gone by then, and Spark
would log the failed call as an error. So at the end of Python the events that were posted are
awaited for a moment, and nothing listens after that.

*Chains.* When a query starts, the driver writes down which queue it reads and whether its rows keep
their order (`chains`). A writer of the query needs this, and cannot find it out itself.

*State.* In the same way it writes down above which sources the query keeps state in Spark
(`query_state`), so that the source can watch over it.

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
from collections import Counter
from collections.abc import Callable, Iterator
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

from counterpoise.at_exit import at_exit
from counterpoise.spark.channel.channel import DriverEnd, channels_of, reads_ours
from counterpoise.spark.channel.query_state import drop_state, put_state
from counterpoise.spark.driver.chains import describe, put_chain
from counterpoise.spark.driver.plain_errors import own_words
from counterpoise.spark.driver.refusals import raise_at_start, refuse_if_needed
from counterpoise.spark.driver.stateful import stateful_uses
from counterpoise.spark.driver.stopping import has_stopped, leave, leave_before_stop
from counterpoise.spark.driver.wrapping import wrap_once
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

    def failed(self, query_id: str, error: str) -> None:
        """It has ended with this error; `terminated` comes before."""

    # ------------------------------------------------------------------ called by Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self.started(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self.idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.terminated(str(event.runId))
        if event.exception is not None:
            self.failed(str(event.id), event.exception)

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
            if event.exception().isDefined():
                self._listener.failed(event.id().toString(), event.exception().get())
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
        # Spark's own log says nothing of queries that fail (`plain_errors`).
        self.logs_failures = False
        self._dropped: Counter[str] = Counter()

    def started(self, query_id: str) -> None:
        self._on_start(query_id)

    def progressed(self, progress: Json) -> None:
        run = str(progress["runId"])
        said = self._said.setdefault(run, {})
        for operator in progress.get("stateOperators") or ():
            self._dropped[run] += operator.get("numRowsDroppedByWatermark") or 0
        for source in ours(progress):
            end = source["endOffset"]
            document = {
                "offset": end,
                "batch": progress["batchId"],
                "dropped": self._dropped[run],
                "ended": False,
            }
            said[end["instance"]] = document
            DriverEnd(self._home, end["instance"]).put("done", document)

    def terminated(self, run_id: str) -> None:
        drop_state(self._home, run_id)
        self._dropped.pop(run_id, None)
        for instance, document in self._said.pop(run_id, {}).items():
            DriverEnd(self._home, instance).put("done", {**document, "ended": True})

    def failed(self, query_id: str, error: str) -> None:
        if (said := own_words(error)) or self.logs_failures:
            logger.error("counterpoise: query %s has failed: %s", query_id, said or error)


def listen(spark: SparkSession, home: str | Path) -> None:
    """Add the listener to the session, once, and look for queries that are drained from outside.

    Without it, positions trail by a trigger, a drained query ends with an error, and no query is
    refused.
    """
    if getattr(spark, "_counterpoise_listener", None) is not None:
        return
    listener = DoneListener(home, lambda query_id: _see_start(spark, home, query_id))
    try:
        spark.streams.addListener(listener)
    except Exception as error:
        logger.warning("counterpoise: Spark's events cannot be listened to (%s)", error)
        return
    vars(spark)["_counterpoise_listener"] = listener
    at_exit(lambda: stop_listening(spark, listener))
    raise_at_start()
    leave_before_stop(spark)
    Departures(spark, home).start()


LAST_EVENTS_SECONDS = 5.0


def stop_listening(spark: SparkSession, listener: EventListener) -> None:
    """Await the events that Spark has posted, at most `LAST_EVENTS_SECONDS`, and remove the
    listener. A session that was stopped has done both."""
    context: Any = spark.sparkContext
    if context._jsc is None:
        return
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(round(LAST_EVENTS_SECONDS * 1000))
    except Exception as error:
        logger.debug("counterpoise: the last events of Spark did not come: %s", error)
    try:
        spark.streams.removeListener(listener)
    except Exception as error:  # the JVM has ended
        logger.debug("counterpoise: the listener could not be removed: %s", error)


def _see_start(spark: SparkSession, home: str | Path, query_id: str) -> None:
    query: Any = spark.streams._jsqm.get(query_id)
    plan = None if query is None else query.streamingQuery().analyzedPlan()
    chain = None if plan is None else describe(plan)
    if chain is not None:
        put_chain(home, query_id, chain)
        refuse_if_needed(spark, query)
        uses = stateful_uses(spark, plan)
        put_state(home, query_id, query.runId().toString(), [one.options for one in uses])


DEPARTURE_POLL_SECONDS = 0.25
LOOKS_A_QUESTION = 4


class Departures:
    """Looks for queries of the session that have left their queue."""

    def __init__(self, spark: SparkSession, home: str | Path) -> None:
        self._spark = spark
        self._home = Path(home)
        self._seen: set[Path] = set()
        self._looks = 0

    def start(self) -> None:
        """Look until the driver ends."""
        threading.Thread(target=self._run, name="counterpoise-departures", daemon=True).start()

    def look(self) -> None:
        """Stop the queries whose sources have left since the last look.

        If only some have left, the others leave first.
        """
        left = {path.parent for path in self._home.glob("*/left.json")}
        new = left - self._seen
        if not new:
            return
        for query, directories in self._queries():
            if not directories & new:
                continue
            logger.warning(
                "counterpoise: query %s was drained by an administrator, and is stopped",
                query.name or query.id,
            )
            if directories <= left:
                query.stop()
            else:
                threading.Thread(target=_leave_others, args=(query,), daemon=True).start()
            # If another query cannot be asked, the next look comes back to that one alone.
            self._seen |= directories & left
        self._seen = left

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
                if self._has_stopped():
                    leave(self._spark.sparkContext)
                    return
                self.look()
            except Exception as error:
                if not self._home.exists() or self._spark.sparkContext._jsc is None:
                    return
                logger.warning("counterpoise: a drained query could not be stopped (%s)", error)

    def _has_stopped(self) -> bool:
        """Whether Spark's context has stopped; the JVM is asked once a second."""
        self._looks += 1
        context = self._spark.sparkContext
        if context._jsc is not None and self._looks % LOOKS_A_QUESTION:
            return False
        try:
            return has_stopped(context)
        except Exception:  # so has the JVM, and with it the sources
            return True


def _leave_others(query: StreamingQuery) -> None:
    """Hand over what the query has of its other queues, and stop it."""
    # Each task imports this module, and needs none of it.
    from counterpoise.flow.programs import LONGEST_DRAIN_SECONDS
    from counterpoise.spark.driver.draining import drain

    try:
        # Each queue's max_handoff_time is the limit, as in a query of one queue.
        drain(query, LONGEST_DRAIN_SECONDS)
    except Exception as error:
        logger.warning("counterpoise: query %s: %s", query.name or query.id, error)


_QUERY_ID = "sql.streaming.queryId"


def finish_batches() -> None:
    """Enable it for all Counterpoise queries of this process; `register` calls this once.

    A PySpark with other classes is left unchanged.
    """
    try:
        from pyspark.sql.utils import ForeachBatchFunction

        wrap_once(ForeachBatchFunction, "call", _finishing)
    except (ImportError, AttributeError):
        logger.info("counterpoise: this PySpark has no ForeachBatchFunction to protect")


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
    found: Any = session.streams._jsqm.get(query_id) if query_id else None
    return found is not None and reads_ours(found.streamingQuery())
