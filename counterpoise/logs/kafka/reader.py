"""Reads a range of a partition: all records in [start, end), also if the end is in a hole.

Theory
------
Offsets have holes: each marker that ends a transaction takes one; compaction and aborted
transactions leave holes. So records of a range cannot be counted, and the last offset of a range
need not be a record. A range has been read completely when a record at or after its end comes, or
when the broker reports an end of the partition at or after the range's end (`enable.partition.eof`;
with `read_committed` this is the last stable offset). The broker sends both in order, after all
earlier records.

If the broker reports an end *before* the range's end, the current leader has not caught up with the
end that an earlier leader had reported. It may still do so. So the read waits, and at its deadline
it fails instead of leaving records out.

librdkafka requires a group: no offsets are stored under it, and partitions are assigned, not
subscribed to. A consumer serves one range at a time and is used again for the next one, because
connecting costs more than reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from counterpoise.logs.errors import LogBehind, LogError
from counterpoise.logs.kafka.access import Failures, is_passing
from counterpoise.logs.kafka.rows import memory_bytes, record_batch

CHUNK_MESSAGES = 8192
CHUNK_BYTES = 8 * 1024 * 1024

CONSUMER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # An offset that does not exist any more, or not yet, is an error that this module handles.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # The requested records exist, so no broker needs to wait for more; and while it waits,
    # librdkafka cannot ask it for another partition.
    "fetch.wait.max.ms": 10,
    # Memory of one read: the fetched records, and the records being fetched.
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # By default a full queue delays the next fetch by a second.
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "topic.metadata.propagation.max.ms": 1000,
}
"""librdkafka's properties for reading, in addition to the access."""

_POLL_SECONDS = 0.1
# After this long without an event the topic itself is checked: it may be gone.
_QUIET_SECONDS = 1.0


class RangeReader:
    """Reads one range [start, end) with a consumer of its own."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        trouble: Failures,
        explain: Callable[[int, float], LogError | None],
        timeout_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`explain(position, deadline)`: the error of a read from there, None if there is none.

        The read fails when `timeout_seconds` pass without any progress.
        """
        self._consumer = consumer
        self._topic = topic
        self._partition = partition
        self._following = start
        self._end = end
        self._trouble = trouble
        self._explain = explain
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        # The last end that the broker reported below the range's end.
        self._ends_at: int | None = None
        self._complete = start >= end
        self._failure: LogError | None = None
        self._deadline = self._look_again_at = 0.0
        self._progress()

    def batches(self, max_messages: int, max_bytes: int | None) -> Iterator[pa.RecordBatch]:
        """The records as batches, at most this many, none after the one that fills `max_bytes`.

        Raises PositionTrimmed, PositionAhead, LogNotFound, LogUnavailable, after the records read
        before the error.
        """
        messages_left = max_messages
        bytes_left = max_bytes
        chunk: list[Message] = []
        chunk_bytes = 0
        self._assign()
        while not self._complete and messages_left > 0:
            room = min(messages_left, CHUNK_MESSAGES) - len(chunk)
            found = self._next(room, wait=not chunk)
            if not found and chunk:
                # No more records for now: do not delay the ones that are there.
                messages_left -= len(chunk)
                yield record_batch(self._partition, chunk)
                chunk, chunk_bytes = [], 0
                self._progress()
            for message in found:
                size = len(message.value() or b"")
                chunk.append(message)
                chunk_bytes += memory_bytes(message)
                if bytes_left is not None:
                    bytes_left -= size
                    if bytes_left <= 0:
                        messages_left = len(chunk)
                if len(chunk) >= min(messages_left, CHUNK_MESSAGES) or chunk_bytes >= CHUNK_BYTES:
                    messages_left -= len(chunk)
                    yield record_batch(self._partition, chunk)
                    chunk, chunk_bytes = [], 0
                    # Time spent by the caller does not count as Kafka's delay.
                    self._progress()
                if messages_left == 0:
                    return
        if chunk:
            yield record_batch(self._partition, chunk)

    def _next(self, most: int, *, wait: bool) -> list[Message]:
        """The next records, at most this many; none when the range is complete, or not `wait`."""
        while not self._complete:
            if self._failure is not None and wait:
                raise self._failure
            first = None if self._failure is not None else self._consumer.poll(_POLL_SECONDS)
            if first is not None:
                # Take the records that librdkafka has already, without waiting for more.
                more = self._consumer.consume(most - 1, 0) if most > 1 else []
                records = self._records([first, *more])
                if records:
                    self._progress()
                    return records
            elif not wait:
                return []
            else:
                self._check_time()
        return []

    def _records(self, events: list[Message]) -> list[Message]:
        """The events that are records of the range, up to its end or to a failure."""
        records = []
        for event in events:
            error = event.error()
            if error is None:
                if event.offset() >= self._end:
                    self._complete = True
                    break
                # A fetch may begin a little before the requested offset.
                if event.offset() >= self._following:
                    records.append(event)
                    self._following = event.offset() + 1
                    self._complete = self._following >= self._end
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends_at = event.offset()
                self._complete = self._complete or event.offset() >= self._end
            else:
                self._fail(error)
            if self._complete or self._failure is not None:
                break
        return records

    def _fail(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            try:
                self._failure = self._explain(self._following, self._deadline)
            except LogError as unexplained:
                self._failure = unexplained
            if self._failure is None:
                # It is in range by now: the broker had not caught up before.
                self._check_time()
                self._assign()
        elif is_passing(error):
            self._trouble.note(error)
        else:
            self._failure = self._trouble.told(error)

    def _check_time(self) -> None:
        """No record has come: raises the explanation, or LogUnavailable after the time limit."""
        now = self._monotonic()
        if self._trouble.refused() or (now >= self._deadline and self._ends_at is None):
            raise self._trouble.too_late(f"reading partition {self._partition}")
        if now >= self._deadline:
            raise LogBehind(self._partition, str(self._ends_at), str(self._end))
        if now >= self._look_again_at:
            self._look_again_at = now + _QUIET_SECONDS
            wrong = self._explain(self._following, self._deadline)
            if wrong is not None:
                raise wrong

    def _progress(self) -> None:
        now = self._monotonic()
        self._deadline = now + self._timeout_seconds
        self._look_again_at = now + _QUIET_SECONDS

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, self._partition, self._following)])
