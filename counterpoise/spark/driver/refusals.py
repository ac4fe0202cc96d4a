"""Queries that must not run, because they would lose messages: refused at `start()`.

Spark posts the start of a query on the query's own thread, before it calls the source for the first
time, and waits until the listener returns. So the driver looks at the query there. If there is a
reason to refuse it, the query is stopped while it waits. Then it never calls its source: no flow is
bound, and no message counts as read. `start()` raises Unsupported with the reason
(`raise_at_start`); a start from Scala or Java returns a query that has ended, and the log has it.

*Asynchronous progress tracking* (`asyncProgressTrackingEnabled`). With it Spark writes offsets and
commits later, and not all of them, while the source is told that its messages are done. Then
commits to the service are ahead of the checkpoint, and a restart repeats messages that were
committed before. Spark itself refuses it for `foreachBatch`, files and stateful queries. With the
other sinks (Kafka, console, memory, noop) the class of its execution identifies such a query.

*A trigger interval that is not below `maxBatchSeconds`*. The lease ends between two triggers. At
each trigger the flow does not know yet what it holds, so the query would read nothing any more.

*A query that ends by itself, on PySpark 4.0 and 4.1*. Spark does not tell the source about it
(`source.without_limits`). The first answer would be the last one.

*Other queues than those in the checkpoint*, of a query that reads or has read several. Spark keeps
the offsets of its sources by number. With the same number it would give a source the offset of
another: only when some of them are bound, one of them says so. With another number it fails, or
goes on without a word (with the second format of its log of offsets). In a checkpoint that has them
by name (`queues.SOURCES_BY_NAME`) each source finds its own, and some may be added or left out.

*A directory of files that another query writes*. Spark's file sink skips, without an error, every
micro-batch whose number is not above the newest in the directory's `_spark_metadata`. The number
belongs to a checkpoint. So of two applications that share a directory, or after a start with a new
checkpoint in an old directory, the sink writes nothing of micro-batches that count as done. Which
query owns a directory cannot be read from Spark's files. So the driver marks it: an empty file in
`_spark_metadata`, named after the id of the query, which is the same as long as its checkpoint is.
A directory without a mark is taken for the query's own if its newest number is one that this
checkpoint has used. Two queries that start at the same moment see each other's mark, and at least
one of them is refused.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import __version__ as version

from counterpoise.spark.channel.channel import offsets_logged, queues_in, sources_in
from counterpoise.spark.driver.wrapping import wrap_once
from counterpoise.spark.errors import InvalidOffset, SourceError, Unsupported
from counterpoise.spark.options import read_options
from counterpoise.spark.version import has_read_limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("counterpoise.spark")

_POLL_SECONDS = 0.005
_POLLS = 2000
_ASYNCHRONOUS = "AsyncProgressTracking"
_ASYNCHRONOUS_WHY = (
    "asynchronous progress tracking does not go with this source: what it has committed would be "
    "ahead of the checkpoint. Leave the option asyncProgressTrackingEnabled out"
)
ENDS_BY_ITSELF = (
    "trigger(availableNow=True) and once=True need PySpark 4.2 or later, and this is {}: it would "
    "end the query before the queue has given it partitions. Leave the trigger out and stop the "
    "query when the queue has no lag, or upgrade Spark"
)
_TOO_RARE = (
    "the trigger interval of {:g} s is not below the option maxBatchSeconds ({:g}): the query "
    "would lose its lease between two micro-batches each time, and read nothing. Set "
    "maxBatchSeconds well above the interval plus the time of a micro-batch"
)

# Why runs were refused, by run id, until their `start()` has raised it.
_refused: dict[str, SourceError] = {}


def refuse_if_needed(spark: SparkSession, query: Any) -> None:
    """Refuse a query of Spark's that has a Counterpoise source and has just started, if there is a
    reason. Spark waits meanwhile.
    """
    execution = query.streamingQuery()
    if (why := why_not(spark, execution)) is not None:
        _refused[query.runId().toString()] = Unsupported(why)
    elif (why := other_queues(execution)) is not None:
        _refused[query.runId().toString()] = InvalidOffset(why)
    else:
        return
    name = query.name() or query.id().toString()
    logger.error("counterpoise: query %s is refused: %s", name, why)
    # It marks the query as ended, and that is enough. Then it interrupts the thread of the query,
    # which waits for this one.
    threading.Thread(target=query.stop, name="counterpoise-refusal", daemon=True).start()
    _take_interrupt(spark)


def _take_interrupt(spark: SparkSession) -> None:
    """Wait for the interrupt of `stop`, and take it: else Spark would remove the listener.

    Calls from this thread reach the JVM in the thread that waits for it (PySpark pins them).
    """
    context: Any = spark.sparkContext
    thread = context._jvm.java.lang.Thread
    pause = threading.Event()
    for _ in range(_POLLS):
        if thread.interrupted():
            return
        pause.wait(_POLL_SECONDS)
    logger.warning("counterpoise: a query that is refused does not stop")


def why_not(spark: SparkSession, execution: Any) -> str | None:
    """Why the query must not run; None: it may."""
    if _ASYNCHRONOUS in execution.getClass().getName():
        return _ASYNCHRONOUS_WHY
    trigger = execution.trigger()
    kind = trigger.getClass().getSimpleName().rstrip("$")
    if kind in ("AvailableNowTrigger", "OneTimeTrigger") and not has_read_limits(version):
        return ENDS_BY_ITSELF.format(version)
    if kind == "ProcessingTimeTrigger":
        interval = trigger.intervalMs() / 1000
        for source in sources_in(execution.analyzedPlan()):
            longest = read_options(dict(source.extraOptions())).max_batch_seconds
            if interval >= longest:
                return _TOO_RARE.format(interval, longest)
    sink = execution.sink()
    if sink.getClass().getName().endswith(".FileStreamSink"):
        path = sink.toString().removeprefix("FileSink[").removesuffix("]")
        return _Directory(spark, path).claim(
            execution.id().toString(), f"{execution.resolvedCheckpointRoot()}/offsets"
        )
    return None


def other_queues(execution: Any) -> str | None:
    """Why a query of several queues cannot go on from its checkpoint; None: it can."""
    logged = offsets_logged(execution)
    queue_of = {source: str(offset.get("queue")) for source, offset in logged.items()}
    if any(not source.isdecimal() or source == queue for source, queue in queue_of.items()):
        return None  # Spark knows them by name.
    had = {*queue_of.values()}
    reads = queues_in(execution.analyzedPlan())
    if not had or had == reads or len(had) == len(reads) == 1:
        return None
    return (
        f"the checkpoint is of a query on the queues {', '.join(sorted(had))}, and this one reads "
        f"{', '.join(sorted(reads))}: Spark's checkpoint cannot add or remove a source. Choose "
        "another checkpointLocation. The queues keep their positions, so nothing is lost; drain "
        "the query before, and nothing comes twice"
    )


_MARK = "_counterpoise-"


class _Directory:
    """A directory of Spark's file sink, on any file system that Spark knows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        context: Any = spark.sparkContext
        self._path = path
        self._as_path = context._jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._metadata = f"{path}/_spark_metadata"

    def claim(self, query_id: str, offsets: str) -> str | None:
        """Mark it as this query's; or say why another query's it is. `offsets`: of its checkpoint.

        Raises Py4JJavaError if the file system refuses.
        """
        names = self._names(self._metadata)
        mark = f"{_MARK}{query_id}"
        marks = {name for name in names if name.startswith(_MARK)}
        if not marks:
            newest = newest_batch(names)
            own = newest_batch(self._names(offsets))
            if newest is not None and (own is None or own < newest):
                return self._why(f"batches up to {newest}, which this checkpoint did not write")
        if not marks - {mark}:
            if mark in marks:
                return None
            place = self._as_path(self._metadata, mark)
            files = place.getFileSystem(self._conf)
            files.create(place, True).close()
            if not {one for one in self._names(self._metadata) if one.startswith(_MARK)} - {mark}:
                return None
            files.delete(place, False)
        return self._why("the mark of a query with another checkpoint")

    def _why(self, found: str) -> str:
        return (
            f"the directory {self._path} belongs to another query: its _spark_metadata has "
            f"{found}. Spark's file sink skips numbers of micro-batches that are there already, so "
            "messages would be lost without an error. Give each application a directory of its "
            "own, and read them together; or use FencedSink"
        )

    def _names(self, directory: str) -> list[str]:
        """The names in a directory; none if it is not there."""
        place = self._as_path(directory)
        files = place.getFileSystem(self._conf)
        if not files.exists(place):
            return []
        return [status.getPath().getName() for status in files.listStatus(place)]


def newest_batch(names: list[str]) -> int | None:
    """The highest number among files of Spark's logs: `7`, or `9.compact`."""
    numbers = [name.removesuffix(".compact") for name in names]
    return max((int(one) for one in numbers if one.isascii() and one.isdecimal()), default=None)


def raise_at_start() -> None:
    """Let `DataStreamWriter.start` and `toTable` raise why a run was refused, from now on.

    A PySpark with other classes is left unchanged.
    """
    try:
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        wrap_once(DataStreamWriter, "_sq", _raising)
    except (ImportError, AttributeError):
        logger.info("counterpoise: this PySpark has no DataStreamWriter that can refuse a query")


def _raising(wrap: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrap)
    def started(self: Any, jsq: Any) -> Any:
        if (why := _refused.pop(jsq.runId().toString(), None)) is not None:
            raise why
        return wrap(self, jsq)

    return started
