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

A range is read with a `Cursor`: a consumer, and where it is in its partition. Mostly each range
begins where the last one ended, so a cursor that stays assigned between two reads
(`counterpoise.logs.kafka.cursors`) fetches the next range meanwhile, and the next read continues.
Events of librdkafka that a read has taken and does not need are the next one's.

librdkafka's binding makes an object of each record. A record costs little beyond that: what is
looked at is looked at in whole columns (`RecordColumns`).

librdkafka requires a group: no offsets are stored under it, and partitions are assigned, not
subscribed to.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from counterpoise.logs.errors import LogBehind, LogError
from counterpoise.logs.kafka.access import Failures, is_passing
from counterpoise.logs.kafka.rows import RecordColumns
from counterpoise.logs.rows import Rows

CHUNK_MESSAGES = 4096
CHUNK_BYTES = 8 * 1024 * 1024

CONSUMER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # An offset that does not exist any more, or not yet, is an error that the reader handles.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # The requested records exist, so no broker needs to wait for more; and while it waits,
    # librdkafka cannot ask it for another partition.
    "fetch.wait.max.ms": 10,
    # Memory of one cursor: the fetched records, and the records being fetched. One fetch of a
    # partition holds 2 MiB: smaller ones cost more requests, larger ones make the first row late.
    "queued.max.messages.kbytes": 4 * 1024,
    "queued.min.messages": 16 * 1024,
    "fetch.message.max.bytes": 2 * 1024 * 1024,
    # By default a full queue delays the next fetch by a second.
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "topic.metadata.propagation.max.ms": 1000,
}
"""librdkafka's properties for reading, in addition to the access."""

STAYING = {
    **CONSUMER,
    # It waits at the end of its partition, for as long as nobody reads. An assignment waits for
    # the answer.
    "fetch.wait.max.ms": 50,
}
"""The same for a consumer that stays assigned."""

SHARED = {
    **STAYING,
    # Partitions come and go, and each waits for the answer.
    "fetch.wait.max.ms": 25,
    "queued.max.messages.kbytes": 16 * 1024,
}
"""The same for one that stays assigned to many partitions."""

FETCH_WAIT_SECONDS = 4.0

WATCHING = {
    **CONSUMER,
    "enable.partition.eof": False,
    # It waits in the broker. A partition that is not in the fetch waits for its end, so a consumer
    # that is assigned is not relied on for as long (`counterpoise.logs.kafka.watching`).
    "fetch.wait.max.ms": round(FETCH_WAIT_SECONDS * 1000),
    # A partition is left out of the next fetch if so many of its records were not taken yet. The
    # thread that takes them is never as fast as a fetch.
    "queued.min.messages": 1000,
    "fetch.message.max.bytes": 16 * 1024,
}
"""The same for one that is told of records (`counterpoise.logs.kafka.watching`)."""

_LOOK_UP_SECONDS = 2.0
_FILL_SECONDS = 0.02
# After this long without an event the topic itself is checked: it may be gone.
_QUIET_SECONDS = 1.0


def looked_up(consumer: Consumer, topic: str, partitions: Iterable[int], known: int) -> int:
    """How many partitions of the topic a consumer knows that is to be assigned to these; it knew so
    many.

    Partitions that are new to it, as those by which a topic has grown, would wait: librdkafka finds
    out within a second that it does not know them, and asks the broker every 10 s.
    """
    if max(partitions, default=-1) >= known:
        with suppress(KafkaException):  # then they wait
            return len(consumer.list_topics(topic, _LOOK_UP_SECONDS).topics[topic].partitions)
    return known


class Cursor:
    """A consumer of one partition, and what it has taken from librdkafka but not given yet."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer = consumer
        self.pending: list[Message] = []
        """Events that follow, in order."""
        self.following = -1
        """All records below it are given."""
        self.last: Message | None = None
        """The record that was given last."""
        self.used_at = 0.0
        self._topic = topic
        self._partition: int | None = None

    @property
    def is_assigned(self) -> bool:
        """Whether it fetches."""
        return self._partition is not None

    def move(self, partition: int, start: int) -> None:
        """Read from this offset on. One record back is no new assignment: readers that look for
        the position after their messages read one message more, and begin with it the next time.
        After a hole it is one: the end of the partition, which ended the last read, is told once.

        A few records ahead is none either: they are taken and dropped, because an assignment waits
        for the fetch under way. In Spark, partitions move from one Python worker to another.
        """
        if partition == self._partition:
            if 0 <= start - self.following <= CHUNK_MESSAGES:
                self.following = start
                return
            if self.last is not None and start == self.last.offset() == self.following - 1:
                self.pending.insert(0, self.last)
                self.following, self.last = start, None
                return
        self.assign(partition, start)

    def assign(self, partition: int, start: int) -> None:
        """Fetch anew from this offset on."""
        self.forget()
        self.consumer.assign([TopicPartition(self._topic, partition, start)])
        self._partition, self.following = partition, start

    def fill(self, most: int, seconds: float) -> None:
        """Take at most this many events, whatever has come when this time is over."""
        self.pending += self.consumer.consume(most, seconds)

    def give(self, count: int, following: int) -> None:
        """So many of the pending events are done, the last of them a record or the end there."""
        if self.pending[count - 1].error() is None:
            self.last = self.pending[count - 1]
        del self.pending[:count]
        self.following = max(self.following, following)

    def forget(self) -> None:
        """The next read begins with an assignment."""
        self.pending, self.last, self._partition, self.following = [], None, None, -1

    def stop(self) -> None:
        """Fetch nothing more, and forget. Raises KafkaException or RuntimeError if it is closed."""
        assigned = self._partition is not None
        self.forget()
        if assigned:
            self.consumer.unassign()


class RangeReader:
    """Reads one range [start, end) with a cursor that nothing else uses meanwhile."""

    def __init__(
        self,
        cursor: Cursor,
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
        self._cursor = cursor
        self._partition = partition
        self._start = start
        self._end = end
        self._trouble = trouble
        self._explain = explain
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        # The last end that the broker reported below the range's end.
        self._ends_at: int | None = None
        self._complete = start >= end
        self._deadline = self._look_again_at = 0.0
        self._progress()

    def rows(self, max_messages: int, max_bytes: int | None) -> Iterator[Rows]:
        """The records, at most this many, none after the one that fills `max_bytes`.

        Raises PositionTrimmed, PositionAhead, LogNotFound, LogUnavailable, after the records read
        before the error.
        """
        messages_left, bytes_left = max_messages, max_bytes
        cursor = self._cursor
        cursor.move(self._partition, self._start)
        while not self._complete and messages_left > 0 and (bytes_left is None or bytes_left > 0):
            most = min(messages_left, CHUNK_MESSAGES)
            if not cursor.pending:
                # No more records than these can be in the range, so nothing later is waited for.
                cursor.fill(min(most, self._end - cursor.following), _FILL_SECONDS)
            if not cursor.pending:
                self._check_time()
                continue
            records = self._records(most)
            if not records:
                continue
            columns = RecordColumns(records)
            most_bytes = CHUNK_BYTES if bytes_left is None else min(CHUNK_BYTES, bytes_left)
            count = columns.fitting(most_bytes, bytes_left)
            if count < len(records):
                columns = columns.first(count)
            messages_left -= count
            if bytes_left is not None:
                bytes_left -= columns.value_bytes
            self._given(count, columns.following)
            yield columns.rows(self._partition)
            # Time spent by the caller does not count as Kafka's delay.
            self._progress()

    def _records(self, most: int) -> list[Message]:
        """The pending events up to the next one that is no record of the range.

        If there are none, this event is handled. Raises what it means for the read.
        """
        cursor = self._cursor
        of = type(cursor.pending[0])
        errors = [*map(of.error, cursor.pending)]
        count = len(errors)
        if any(errors):
            count = next(place for place, error in enumerate(errors) if error is not None)
        records = cursor.pending[:count]
        offsets = [*map(of.offset, records)]
        # A fetch may begin a little before the requested offset.
        begin = bisect_left(offsets, cursor.following)
        if begin:
            del cursor.pending[:begin]
            return self._records(most) if cursor.pending else []
        end = bisect_left(offsets, self._end)
        if end:
            return records[: min(end, most)]
        if count:
            # A record after the range: it waits for the next read.
            self._complete = True
            cursor.following = max(cursor.following, self._end)
        else:
            self._handle(errors[0])
        return []

    def _given(self, count: int, following: int) -> None:
        self._cursor.give(count, following)
        self._complete = following >= self._end

    def _handle(self, error: KafkaError) -> None:
        """The first pending event is this error."""
        event = self._cursor.pending[0]
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends_at = event.offset()
            self._given(1, event.offset())
            return
        del self._cursor.pending[0]
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            at = self._cursor.following
            failure = self._explain(at, self._deadline)
            if failure is not None:
                raise failure
            # It is in range by now: the broker had not caught up before.
            self._check_time()
            self._cursor.assign(self._partition, at)
        elif is_passing(error):
            self._trouble.note(error)
        else:
            raise self._trouble.told(error)

    def _check_time(self) -> None:
        """No record has come: raises the explanation, or LogUnavailable after the time limit."""
        now = self._monotonic()
        if self._trouble.refused() or (now >= self._deadline and self._ends_at is None):
            raise self._trouble.too_late(f"reading partition {self._partition}")
        if now >= self._deadline:
            raise LogBehind(self._partition, str(self._ends_at), str(self._end))
        if now >= self._look_again_at:
            self._look_again_at = now + _QUIET_SECONDS
            wrong = self._explain(self._cursor.following, self._deadline)
            if wrong is not None:
                raise wrong

    def _progress(self) -> None:
        now = self._monotonic()
        self._deadline = now + self._timeout_seconds
        self._look_again_at = now + _QUIET_SECONDS
