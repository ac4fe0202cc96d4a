"""The sink that writes the rows of a queue's messages to another queue: `QueueSink`.

Unlike `format("counterpoise")` it sees the plan of the running micro-batch. So it works for any
query: rows that a shuffle or a join has mixed are brought together again (`sink`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from counterpoise.logs.columns import integers
from counterpoise.spark.channel.running_batch import RunningBatch, batches_by_queue
from counterpoise.spark.errors import InvalidRows, InvalidSink
from counterpoise.spark.sink.batch import BatchRows
from counterpoise.spark.sink.names import used_once
from counterpoise.spark.sink.rows import Remainder, messages
from counterpoise.spark.writer.appender import TargetQueue, append_all, check_columns
from counterpoise.spark.writer.numbering import ByPosition, Input
from counterpoise.spark.writer.options import (
    DEFAULT_NAME,
    WRITE_TIMEOUT_SECONDS,
    WriteOptions,
    check_name,
)
from counterpoise.spark.writer.target import target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

logger = logging.getLogger("counterpoise.spark")

_RESULT_SCHEMA = "written long, dropped long"


@dataclass(frozen=True)
class QueueReport:
    """The outcome of one micro-batch: messages written, and those that the queue had already."""

    batch_id: int
    written: int
    dropped: int


@dataclass(frozen=True)
class QueueTask:
    """All that a task needs; it travels to the executors inside the pickled function."""

    target: TargetQueue
    name: str
    source: Input
    remainder: Remainder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark calls this in each task. Raises InvalidRows, InvalidPosition, and like
        `append_all`.
        """
        own = (batch for rows in messages(batches) for batch in self.remainder(rows).to_batches())
        done = append_all(self.target, ByPosition(self.name, self.source), own)
        yield pa.RecordBatch.from_arrays(
            [integers([done.appended]), integers([done.duplicates])], ["written", "dropped"]
        )


class QueueSink:
    """Writes the rows made of each message once, whichever application reads it:
    `.foreachBatch(QueueSink("results"))`.

    The rows have the columns `partition` and `position` of the source, `value`, and optionally
    `key`, `headers`, `published_at`; of several queues also the column `queue` of `read_queues`,
    which is not written. `name`: the same for all applications that do the same work, another for
    each sink of one application. `url` and `log_url` as for `Publisher`; `timeout_seconds`: how
    long a task tries to write to a log that is away. Raises InvalidSink.
    """

    def __init__(
        self,
        queue: str,
        *,
        name: str = DEFAULT_NAME,
        url: str | None = None,
        log_url: str | None = None,
        timeout_seconds: float = WRITE_TIMEOUT_SECONDS,
    ) -> None:
        try:
            self.name = check_name(name)
        except ValueError as error:
            raise InvalidSink(f"the sink's name {error}") from None
        self.last_report: QueueReport | None = None
        self._options = WriteOptions(
            queue, url, log_url, name, write_timeout_seconds=timeout_seconds
        )

    def __repr__(self) -> str:
        return f"QueueSink({self._options.queue!r}, name={self.name!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; `foreachBatch` calls this.

        Raises InvalidRows, InvalidSink, errors of the client, and what the tasks raise (as
        Spark's exception).
        """
        columns = [one for one in batch.schema.fields if one.name != "queue"]
        if not check_columns(StructType(columns)):
            raise InvalidRows(
                "the rows have no columns partition and position: pass those of the source "
                "through, as in select('partition', 'position', …). Write rows that are made of "
                "several messages with format('counterpoise')"
            )
        where = f" for queue {self._options.queue!r}"
        target = f"{self._options.queue} {self._options.url or ''}"
        with batches_by_queue(batch) as parts, contextlib.ExitStack() as names:
            for running, _ in parts:
                named = f"{running.planned.queue} {target}"
                names.enter_context(
                    used_once(type(self), self.name, named, running.run_id, batch_id, where=where)
                )
            done = [result for running, rows in parts for result in self._write(running, rows)]
        self.last_report = QueueReport(
            batch_id, sum(one.written for one in done), sum(one.dropped for one in done)
        )

    def _write(self, running: RunningBatch, batch: DataFrame) -> list[Row]:
        """Write what was read of one queue; what each task has done."""
        planned = running.planned
        rows = BatchRows(batch, running).together()
        source = Input(planned.queue_id, planned.log)
        remainder = Remainder((one, one.start) for one in planned.read)
        task = QueueTask(target_of(self._options, waits=True), self.name, source, remainder)
        return rows.mapInArrow(task.__call__, _RESULT_SCHEMA).collect()
