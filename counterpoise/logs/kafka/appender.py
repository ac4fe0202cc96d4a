"""Appends to a topic: in order, and once, as far as Kafka allows this promise.

Theory
------
Kafka knows producers, not publishers. Its idempotent producer repeats a request until it is
answered, and the broker drops repetitions, in order within a partition. This holds for one
producer in one process, and only if the producer itself repeats: a message passed to it a
second time is a second message. Hence:

1. *A message is passed to the producer once.* The producer never gives up on a message (no message
   timeout). So when an append runs out of time, its messages are still being sent, and the
   repetition of the append finds them there and only waits for them.
2. *An append begins when the previous one is acknowledged.* So all messages below the first
   sequence of the last append are in the topic. Only messages of the last append may be missing,
   whatever happened to the process.
3. *Each record identifies its append*: the header `counterpoise-append` holds its sequence, the
   first sequence of its append, and the publisher. After a crash `find_appends` searches the tails
   of the partitions, the last records of the topic, for those of the publisher. They show the
   messages of the last append that have arrived (`LandedSequences`), and the others follow: each
   once. The search goes on where readers end: behind an open transaction of another program.

Messages with sequences of their own (`AppendBatch.sequences`) are once as long as their publisher
lives, by 1. After a crash nothing is searched: their publishers are many, and a search for each
takes longer than the append. To tell apart messages with the same sequence, the place among them is
a part of the number under which the appender keeps them.

A broker refuses a batch of records that is larger than the topic takes, and goes on with the next
one. What is sent again would come behind that. So a message that no batch can have is refused
before anything of its append is sent, if the topic tells its limit and nothing is compressed.

docs/logs.md and docs/logs-background.md list the limits: requests of a killed process may arrive
after its successor has looked; a publisher whose last records are not among the last records of the
topic is not found; an append becomes visible message by message; and a partition that is added
between the check of the partition count and the answer is not noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from counterpoise.logs.errors import InvalidMessage, LogError, LogUnavailable
from counterpoise.logs.kafka.access import Failures, is_passing
from counterpoise.logs.kafka.reader import CONSUMER
from counterpoise.logs.kafka.rows import APPEND, Header, headers_of, record_headers
from counterpoise.logs.port import MAX_MESSAGE_BYTES, AppendBatch, AppendResult
from counterpoise.logs.port import Message as Published
from counterpoise.logs.rows import TOMBSTONE, raw_bytes

PRODUCER = {
    "enable.idempotence": True,
    # Theory, 1: the producer repeats as long as it lives.
    "message.timeout.ms": 0,
    # An append arrives completely, so there is nothing to wait for.
    "linger.ms": 1,
    # The largest message, and room for the bytes that Kafka adds.
    "message.max.bytes": MAX_MESSAGE_BYTES + 1024 * 1024,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 128 * 1024,
    "topic.metadata.propagation.max.ms": 1000,
}
"""librdkafka's properties for publishing, in addition to the access."""

SEARCHER = {**CONSUMER, "isolation.level": "read_uncommitted"}
"""The same for the search. Our own records are of no transaction."""

BATCH_BYTES = 1_000_000
"""librdkafka's own limit of a batch of records. A broker refuses one beyond the topic's
`max.message.bytes` as a whole, though each record fits.
"""

_POLL_SECONDS = 0.1
# What a producer says of a partition that it does not know (yet); the cluster has it.
_UNKNOWN = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_PLACES = 2**32
"""The most messages of a batch that can have the same sequence."""

TAIL_RECORDS = 100_000
LEAST_RECORDS_PER_PARTITION = 1_000
_EVENTS = 1000


@dataclass(slots=True)
class LandedSequences:
    """The sequences of one publisher in the topic: all below `below`, and those in `landed`."""

    below: int = 0
    landed: set[int] = field(default_factory=set)

    @staticmethod
    def of(found: Iterable[tuple[int, int]]) -> LandedSequences:
        """From (sequence, first sequence of its append) of the publisher's last records."""
        records = list(found)
        if not records:
            return LandedSequences()
        # An append begins when all before it is in the topic.
        begun = max(first for _, first in records)
        progress = LandedSequences(
            begun, {sequence for sequence, _ in records if sequence >= begun}
        )
        progress.advance()
        return progress

    def advance(self) -> None:
        """Move `below` past the landed sequences."""
        while self.below in self.landed:
            self.landed.remove(self.below)
            self.below += 1


def append_header(publisher: str, sequence: int, first_sequence: int) -> Header:
    """The header that identifies the append of a record."""
    return APPEND, f"{sequence} {first_sequence} {publisher}".encode()


def append_of(message: Message, publisher: str) -> tuple[int, int] | None:
    """(sequence, first sequence of its append) if the record is this publisher's."""
    for name, value in headers_of(message) or ():
        if name == APPEND and value is not None:
            sequence, _, rest = value.partition(b" ")
            first, _, of_publisher = rest.partition(b" ")
            if of_publisher == publisher.encode() and _is_number(sequence) and _is_number(first):
                return int(sequence), int(first)
    return None


def _is_number(text: bytes) -> bool:
    """Whether it is a sequence, and not whatever another program has written."""
    return text.isdigit() and len(text) < 20


class Appender:
    """Appends to one topic. Not thread-safe: its log lets one caller in at a time."""

    def __init__(
        self,
        topic: str,
        make: Callable[[int | None], Producer],
        find: Callable[[str, float], Iterable[tuple[int, int]]],
        trouble: Failures,
        limit: Callable[[], int | None] = lambda: None,
        *,
        compresses: bool = False,
    ) -> None:
        """`limit` says how many bytes a batch of records may have; None: it is not known. `make`
        gives a new producer for that. `find(publisher, deadline)` looks for records of it.
        """
        self._topic = topic
        self._make = make
        self._limit = limit
        self._compresses = compresses
        self._most_bytes: int | None = None
        self._find = find
        self._trouble = trouble
        self._producer: Producer | None = None
        self._progress: dict[str, LandedSequences] = {}
        # Messages that the producer has and whose outcome is unknown.
        self._flying: set[tuple[str, int]] = set()
        self._failures: dict[tuple[str, int], KafkaError] = {}
        self._lost: set[str] = set()

    def next_sequence(self, publisher: str, deadline: float) -> int:
        """The lowest sequence that is not in the topic, by its tails. Raises LogUnavailable."""
        self._await({key for key in self._flying if key[0] == publisher}, deadline)
        self._look(publisher, deadline)
        return self._progress[publisher].below

    def append(self, batch: AppendBatch, deadline: float) -> AppendResult:
        """Append the missing messages of the batch. Raises InvalidMessage, LogUnavailable."""
        encoded = [_encoded(message) for message in batch.messages]
        sequences = _numbers(batch)
        self._refuse_too_large(batch.publisher, sequences, encoded)
        self._failures.clear()  # of calls that have ended
        known = self._progress.get(batch.publisher)
        begun = batch.elsewhere or batch.first_sequence > 0
        lost = batch.publisher in self._lost or (known is None and begun)
        if lost and batch.sequences is None:
            # This append was begun before, by another process or by a closed producer.
            self._look(batch.publisher, deadline)
        progress = self._progress.setdefault(batch.publisher, LandedSequences())
        duplicates = sum(sequence < progress.below for sequence in sequences)
        for sequence, partition, one in zip(sequences, batch.partitions, encoded, strict=True):
            key = (batch.publisher, sequence)
            if (
                sequence >= progress.below
                and sequence not in progress.landed
                and key not in self._flying
            ):
                self._hand_over(key, sequences[0], partition, one, deadline)
        self._await({(batch.publisher, sequence) for sequence in sequences}, deadline)
        progress.below = max(progress.below, sequences[-1] + 1)
        progress.landed = {one for one in progress.landed if one >= progress.below}
        return AppendResult(len(encoded) - duplicates, duplicates)

    def close(self) -> None:
        """Drop the producer; its undelivered messages may have arrived or not."""
        producer, self._producer = self._producer, None
        # Before the producer reports on them: it reports messages in flight as failed, although
        # they may arrive.
        self._lost |= {publisher for publisher, _ in self._flying}
        self._flying.clear()
        if producer is not None:
            producer.purge()
            with suppress(KafkaException):  # a fatal error, of which it would tell now
                producer.poll(0)
        self._failures.clear()

    def abandon(self) -> Producer | None:
        """In a forked child: forget all, without touching a producer without its threads."""
        producer, self._producer = self._producer, None
        self._progress.clear()
        self._flying.clear()
        self._failures.clear()
        self._lost.clear()
        return producer

    def _refuse_too_large(
        self, publisher: str, sequences: Sequence[int], encoded: Sequence[_Encoded]
    ) -> None:
        """Raises InvalidMessage for a message that the topic does not take even alone."""
        self._client()
        for sequence, one in zip(sequences, encoded, strict=True):
            if self._most_bytes is None or self._compresses:
                return
            if one.size_bytes + _ROOM_BYTES <= self._most_bytes:
                continue
            size = _batch_bytes(one, append_header(publisher, sequence, sequences[0]))
            if size > self._most_bytes:
                # It may have been changed.
                self._most_bytes = self._limit()
            if self._most_bytes is not None and size > self._most_bytes:
                raise InvalidMessage(
                    f"topic {self._topic!r} takes {self._most_bytes} bytes at most "
                    f"(max.message.bytes), and this message has {size}"
                )

    def _look(self, publisher: str, deadline: float) -> None:
        self._progress[publisher] = LandedSequences.of(self._find(publisher, deadline))
        self._lost.discard(publisher)

    def _hand_over(
        self,
        key: tuple[str, int],
        first_sequence: int,
        partition: int,
        one: _Encoded,
        deadline: float,
    ) -> None:
        publisher, sequence = key

        def delivered(error: KafkaError | None, _: Message) -> None:
            if key not in self._flying:
                return
            self._flying.discard(key)
            if error is None:
                self._progress[publisher].landed.add(sequence)
            else:
                self._failures[key] = error

        while True:
            try:
                self._client().produce(
                    self._topic,
                    value=one.value,
                    key=one.key,
                    partition=partition,
                    headers=[*one.headers, append_header(publisher, sequence, first_sequence)],
                    timestamp=one.milliseconds,
                    on_delivery=delivered,
                )
            except BufferError:
                # Its queue is full of messages of earlier calls.
                if time.monotonic() >= deadline:
                    raise self._trouble.too_late("handing messages to the producer") from None
                self._poll()
            except KafkaException as refused:
                error = refused.args[0]
                if error.code() not in _UNKNOWN or time.monotonic() >= deadline:
                    raise self._failed([error]) from None
                self._learn_partitions(deadline)
            else:
                self._flying.add(key)
                return

    def _learn_partitions(self, deadline: float) -> None:
        """The topic has grown or was made again. The producer would learn that in five minutes."""
        seconds = max(_POLL_SECONDS, deadline - time.monotonic())
        try:
            self._client().list_topics(self._topic, seconds)
        except KafkaException as failed:
            raise self._failed([failed.args[0]]) from None
        # The broker that has answered may not know it yet.
        self._poll()

    def _await(self, wanted: set[tuple[str, int]], deadline: float) -> None:
        """Return when these have landed. Raises the error, or LogUnavailable at the deadline."""
        while self._flying & wanted:
            self._poll()
            if self._trouble.refused() or time.monotonic() >= deadline:
                if self._failures.keys() & wanted:
                    break
                raise self._trouble.too_late("appending")
        # Those of other messages are for whoever sends these again.
        failures = [self._failures.pop(key) for key in sorted(self._failures.keys() & wanted)]
        if failures:
            raise self._failed(failures)
        self._trouble.clear()

    def _poll(self) -> None:
        """Take reports. Raises the error after which the producer sends nothing more."""
        try:
            self._client().poll(_POLL_SECONDS)
        except KafkaException as ended:
            raise self._failed([ended.args[0]]) from None

    def _failed(self, failures: list[KafkaError]) -> LogError:
        if any(error.fatal() or error.code() == KafkaError._FATAL for error in failures):
            # This producer cannot continue; the next one looks for the arrived messages.
            self.close()
            self._lost |= set(self._progress)
        told = [self._trouble.told(error) for error in failures]
        return next((error for error in told if not isinstance(error, LogUnavailable)), told[0])

    def _client(self) -> Producer:
        if self._producer is None:
            self._most_bytes = self._limit()
            self._producer = self._make(self._most_bytes)
        return self._producer


def _numbers(batch: AppendBatch) -> Sequence[int]:
    """A number for each message of the batch, in ascending order."""
    if batch.sequences is None:
        return range(batch.first_sequence, batch.first_sequence + len(batch.messages))
    numbers: list[int] = []
    for sequence in batch.sequences:
        numbers.append(max(sequence * _PLACES, numbers[-1] + 1 if numbers else 0))
    return numbers


@dataclass(frozen=True, slots=True)
class _Encoded:
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    milliseconds: int
    size_bytes: int
    """Of the message; as a record it has a little more."""


# More than Kafka adds to a message without headers.
_ROOM_BYTES = 1024
# What a batch has before its first record, and a record before its key.
_HEAD_BYTES = 61 + 3


def _batch_bytes(one: _Encoded, append: Header) -> int:
    """How many bytes a batch of this record alone has, in the second version of Kafka's format."""
    headers = [*one.headers, append]
    sized = [one.key or b"", one.value or b""]
    for name, value in headers:
        sized += [name.encode(), value or b""]
    record = sum(map(len, sized)) + sum(_length_bytes(len(part)) for part in sized)
    record += _length_bytes(len(headers))
    return _HEAD_BYTES + _length_bytes(record + 3) + record


def _length_bytes(length: int) -> int:
    """Of a length: seven bits a byte, and one bit more for the sign."""
    return length.bit_length() // 7 + 1


def _encoded(message: Published) -> _Encoded:
    size_bytes = message.size_bytes()
    headers = dict(message.headers or {})
    tombstone = not message.value and headers.pop(TOMBSTONE, None) == "true"
    milliseconds = 0
    if message.published_at is not None:
        milliseconds = (message.published_at - _EPOCH) // _MILLISECOND
        # librdkafka takes 0 for "now", and Kafka holds nothing before.
        if milliseconds <= 0:
            raise InvalidMessage("Kafka holds no times before 1970; published_at must be later")
    return _Encoded(
        None if tombstone else message.value,
        None if message.key is None else raw_bytes(message.key),
        # Without our mark of appends: it would be a stranger's word about any publisher's.
        record_headers(headers),
        milliseconds,
        size_bytes,
    )


def tail_starts(starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """The start of the search in each non-empty partition: about TAIL_RECORDS in all."""
    each = max(LEAST_RECORDS_PER_PARTITION, TAIL_RECORDS // max(1, len(ends)))
    return {
        partition: max(starts[partition], end - each)
        for partition, end in ends.items()
        if end > starts[partition]
    }


def find_appends(
    consumer: Consumer,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    publisher: str,
    trouble: Failures,
    deadline: float,
) -> list[tuple[int, int]]:
    """(sequence, first sequence of its append) of the publisher's records in the tails.

    Raises LogUnavailable after the deadline (monotonic).
    """
    begins = tail_starts(starts, ends)
    waiting = set(begins)
    found = []
    if waiting:
        consumer.assign([TopicPartition(topic, number, at) for number, at in begins.items()])
    while waiting:
        if time.monotonic() >= deadline or trouble.refused():
            raise trouble.too_late(f"looking for the last append of publisher {publisher!r}")
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            continue
        for event in (first, *consumer.consume(_EVENTS, 0)):
            error = event.error()
            if error is None:
                of_publisher = append_of(event, publisher)
                if of_publisher is not None:
                    found.append(of_publisher)
                if event.offset() + 1 >= ends[event.partition()]:
                    waiting.discard(event.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                if event.offset() >= ends[event.partition()]:
                    waiting.discard(event.partition())
            elif is_passing(error):
                trouble.note(error)
            else:
                raise trouble.told(error)
    return found
