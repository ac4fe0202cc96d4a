"""The writers that Spark drives: of a stream and of a batch, `format("counterpoise")`.

For each job, and for each micro-batch, Spark makes a writer in a process of its own next to the
driver, and pickles it for the tasks. So the constructor of a task's `target` asks the service for
the way to the log once for each: credentials are never old.

Tasks append as they go, and the log keeps what they appended also if the job fails later: `commit`
only counts, and `abort` takes nothing back. What a repeated task appends again is known by its
`numbering`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import __version__ as version
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from counterpoise.spark.driver.chains import Chain
from counterpoise.spark.errors import InvalidOption, InvalidRows, Unsupported
from counterpoise.spark.version import streams_batches
from counterpoise.spark.writer.appender import TargetQueue, append_all, check_columns
from counterpoise.spark.writer.numbering import (
    AtLeastOnce,
    ByPosition,
    ByRow,
    Input,
    Numbering,
)
from counterpoise.spark.writer.options import DEFAULT_NAME, WriteOptions
from counterpoise.spark.writer.target import target_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

if TYPE_CHECKING or streams_batches(version):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """To 4.0 a writer of batches is one that gets Arrow's, and it asks nothing else of one that
        is made for a stream.
        """


logger = logging.getLogger("counterpoise.spark")

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has appended, and what the log had already."""

    appended: int
    duplicates: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("counterpoise")`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Raises InvalidOption, InvalidRows, and errors of the client."""
        _check_mode(overwrite)
        if check_columns(schema):
            raise InvalidRows(
                "a batch write does not use the columns partition and position: within "
                "foreachBatch write with counterpoise.spark.QueueSink, which writes each message "
                "once by them, and else drop them"
            )
        if options.name is not None and not options.repeatable:
            raise InvalidOption(
                "the option 'name' of a batch write needs 'repeatable': a job that is started "
                "again writes nothing twice only if its tasks get the same rows in the same order"
            )
        if not options.repeatable:
            logger.warning(
                "counterpoise: a task that fails and is repeated writes its rows to queue %s "
                "twice: set the option repeatable to true if it gets the same rows in the same "
                "order",
                options.queue,
            )
        self._queue = options.queue
        self._job = (options.name or uuid.uuid4().hex) if options.repeatable else None
        self._target = target_of(options, waits=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Spark calls this in each task."""
        task = _property(None)
        numbering: Numbering = ByRow(f"{self._job}/{task}") if self._job else AtLeastOnce()
        return _written(self._target, numbering, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_written(self._queue, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_aborted(self._queue)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("counterpoise")`: writes one micro-batch.

    `chains`: those of the driver's queries, by the id of the query. A task finds its own.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool,
        chains: Mapping[str, Chain],
    ) -> None:
        """Raises InvalidOption, InvalidRows, and errors of the client."""
        _check_mode(overwrite)
        self._options = options
        self._has_positions = check_columns(schema)
        if self._has_positions and options.repeatable:
            raise InvalidOption(
                "the option 'repeatable' is for rows without the columns partition and position: "
                "with them each message is written once anyway, so leave it out"
            )
        if options.name is not None and not self._has_positions:
            raise InvalidOption(
                "the option 'name' is for rows with the columns partition and position: other rows "
                "are known by the query's checkpoint, so leave it out"
            )
        self._chains = chains if self._has_positions else {}
        self._target = target_of(options, waits=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Spark calls this in each task."""
        return _written(self._target, self._numbering(), iterator)

    def _numbering(self) -> Numbering:
        query, batch = _property(_QUERY_ID), int(_property(_BATCH_ID))
        if self._has_positions:
            return ByPosition(self._options.name or DEFAULT_NAME, input_of(query, self._chains))
        if self._options.repeatable:
            return ByRow(f"{query}/{_property(None)}", batch)
        return AtLeastOnce()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId == 0 and not self._has_positions and not self._options.repeatable:
            logger.warning(
                "counterpoise: what is repeated after a failure is written to queue %s twice: pass "
                "the columns partition and position of a counterpoise source through, or set the "
                "option repeatable to true if a repeated task gets the same rows in the same order",
                self._options.queue,
            )
        _log_written(self._options.queue, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log_aborted(self._options.queue)


def input_of(query: str, chains: Mapping[str, Chain]) -> Input:
    """The queue that the query's rows come from. Raises Unsupported."""
    chain = chains.get(query)
    if chain is None:
        raise Unsupported(
            "the rows have the columns partition and position, but the query reads no counterpoise "
            "source that this session has registered: drop the two columns, or make the session "
            "with counterpoise.spark.session or register"
        )
    if chain.unfit is not None:
        raise Unsupported(
            f"{chain.unfit}, so rows cannot be written once by their positions: write them with "
            ".foreachBatch(counterpoise.spark.QueueSink(…)), which brings them together again, or "
            "drop the columns partition and position (and rows may be written twice)"
        )
    if chain.queue_id is None or chain.log is None:
        raise Unsupported(
            "the source has not written the plan of this micro-batch: is the directory for "
            "temporary files full?"
        )
    return Input(chain.queue_id, chain.log)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise Unsupported(
            "a queue is only appended to: write with .mode('append') or .outputMode('append')"
        )


def _property(name: str | None) -> str:
    """A property of the running task's job; None: the number of the task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    found = context.partitionId() if name is None else context.getLocalProperty(name)
    assert found is not None, name
    return str(found)


def _written(
    target: TargetQueue, numbering: Numbering, batches: Iterator[pa.RecordBatch]
) -> Written:
    done = append_all(target, numbering, batches)
    return Written(done.appended, done.duplicates)


def _log_written(queue: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [one for one in messages if isinstance(one, Written)]
    logger.info(
        "counterpoise: %d messages written to queue %s, and %d that it had already",
        sum(one.appended for one in done),
        queue,
        sum(one.duplicates for one in done),
    )


def _log_aborted(queue: str) -> None:
    logger.warning(
        "counterpoise: a write to queue %s has failed; what its tasks have appended stays", queue
    )
