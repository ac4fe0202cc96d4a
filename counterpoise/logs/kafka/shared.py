"""One consumer of librdkafka for the partitions of a log that are read a little at a time.

Theory
------
A consumer that has read all there is gets a few messages at a time, from many partitions. A
consumer of librdkafka for each of them has connections and threads of its own and asks the broker
for more twenty times a second; if there are more partitions than may stay assigned, each read waits
for an assignment. So light reads share one consumer, which is assigned to all their partitions.

What it fetches is sorted into the cursors of the partitions, whoever has asked: events of a
partition stay in order, and a reader of another partition finds its own without waiting. Only one
reader at a time asks the consumer; the others wait for it, for `_FILL_SECONDS` at most.

A partition whose events nobody takes must not fill the memory: with more than its share of
`MOST_WAITING_BYTES` it is unassigned, keeps what it has, and is assigned again, behind that, when a
reader needs more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from counterpoise.logs.kafka.reader import Cursor, looked_up

MOST_EVENTS = 4096
MOST_WAITING_BYTES = 16 * 1024 * 1024
# An event has a size, too.
EVENT_BYTES = 256


class SharedCursor(Cursor):
    """Where the reads of one partition of a shared consumer are."""

    def __init__(self, shared: SharedConsumer, topic: str) -> None:
        super().__init__(shared.consumer, topic)
        self.shared = shared
        self.waiting_bytes = 0
        """Of the events that came since there were none."""

    def assign(self, partition: int, start: int) -> None:
        """Fetch anew from this offset on."""
        self.shared.assign([(self, partition, start)])

    def assigned(self, partition: int, start: int) -> None:
        """The shared consumer has assigned it there; what came before is forgotten."""
        self.forget()
        self._partition, self.following = partition, start

    def fill(self, most: int, seconds: float) -> None:
        """Wait until there is an event, at most so long; more than `most` may come."""
        self.waiting_bytes = 0
        assert self._partition is not None
        self.shared.fill(self, self._partition, seconds)

    def stop(self) -> None:
        """Fetch nothing more, and forget. Raises KafkaException or RuntimeError if it is closed."""
        if self._partition is not None:
            self.shared.stop(self, self._partition)

    def forget(self) -> None:
        """The next read begins with an assignment."""
        super().forget()
        self.waiting_bytes = 0


class SharedConsumer:
    """Assigned to many partitions of a topic. Thread-safe; a cursor has one reader at a time."""

    def __init__(
        self, consumer: Consumer, topic: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`consumer` is not assigned to anything yet."""
        self.consumer = consumer
        self.readers = 0
        """How many of its cursors are in use."""
        self._topic = topic
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known = 0
        # Those that are assigned, by partition.
        self._assigned: dict[int, SharedCursor] = {}

    def assign(self, places: Sequence[tuple[SharedCursor, int, int]]) -> None:
        """Fetch for these cursors from these (partition, offset) on, all at once.

        Raises KafkaException, RuntimeError.
        """
        with self._lock:
            numbers = [partition for _, partition, _ in places]
            self._leave(numbers)
            self._known = looked_up(self.consumer, self._topic, numbers, self._known)
            self.consumer.incremental_assign(
                [TopicPartition(self._topic, partition, start) for _, partition, start in places]
            )
            for cursor, partition, start in places:
                cursor.assigned(partition, start)
                self._assigned[partition] = cursor

    def stop(self, cursor: SharedCursor, partition: int) -> None:
        """Fetch nothing more for this cursor, which forgets."""
        with self._lock:
            if self._assigned.get(partition) is cursor:
                self._leave([partition])
            cursor.forget()

    def fill(self, cursor: SharedCursor, partition: int, seconds: float) -> None:
        """Wait until the cursor of the partition has an event, at most so long."""
        until = self._monotonic() + seconds
        if self._assigned.get(partition) is not cursor:
            # Too much was waiting. It is all taken now.
            self.assign([(cursor, partition, cursor.following)])
        with self._lock:
            while not cursor.pending:
                left = until - self._monotonic()
                # A poll for many would wait for many.
                self._sort(self.consumer.consume(1, max(left, 0.0)), cursor)
                self._sort(self.consumer.consume(MOST_EVENTS, 0.0), cursor)
                if left <= 0:
                    break

    def _sort(self, events: Iterable[Message], asking: SharedCursor) -> None:
        """Into the cursors. An event of no partition concerns whoever has asked."""
        share = MOST_WAITING_BYTES // max(1, len(self._assigned))
        crowded = set[int]()
        for event in events:
            partition = event.partition()
            cursor = asking if partition is None else self._assigned.get(partition)
            if cursor is None:
                continue  # it was unassigned meanwhile
            cursor.pending.append(event)
            cursor.waiting_bytes += EVENT_BYTES
            if event.error() is None:
                cursor.waiting_bytes += len(event)
            if partition is not None and cursor.waiting_bytes > share:
                crowded.add(partition)
        self._leave(crowded)

    def _leave(self, partitions: Iterable[int]) -> None:
        places = [
            TopicPartition(self._topic, one)
            for one in partitions
            if self._assigned.pop(one, None) is not None
        ]
        if places:
            self.consumer.incremental_unassign(places)


class SharedCursors:
    """The shared cursors of one log, and their consumer. Thread-safe."""

    def __init__(
        self,
        topic: str,
        make: Callable[[], Consumer],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` makes a consumer that is not assigned to anything."""
        self._topic = topic
        self._make = make
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._shared: SharedConsumer | None = None
        self._resting: dict[int, SharedCursor] = {}
        self._in_use: set[int] = set()

    def begin(self, starts: Mapping[int, int]) -> None:
        """Fetch for these partitions, which are read from there next, all at once.

        Those that have a cursor are left alone. Raises LogError if the access is not valid, and
        KafkaException.
        """
        with self._lock:
            shared = self._open()
            places = [
                (SharedCursor(shared, self._topic), partition, start)
                for partition, start in starts.items()
                if partition not in self._resting and partition not in self._in_use
            ]
            if places:
                shared.assign(places)
            for cursor, partition, _ in places:
                cursor.used_at = self._monotonic()
                self._resting[partition] = cursor

    def take(self, partition: int) -> SharedCursor | None:
        """The partition's cursor, until `give_back`; None if another reader has it.

        Raises LogError if the access is not valid.
        """
        with self._lock:
            if partition in self._in_use:
                return None
            shared = self._open()
            cursor = self._resting.pop(partition, None) or SharedCursor(shared, self._topic)
            self._in_use.add(partition)
            shared.readers += 1
            return cursor

    def give_back(self, partition: int, cursor: SharedCursor, *, failed: bool) -> None:
        """It stays where it is; after a failure the next read begins with an assignment."""
        cursor.used_at = self._monotonic()
        shared = cursor.shared
        with self._lock:
            shared.readers -= 1
            if shared is self._shared:
                self._in_use.discard(partition)
                if failed:
                    self._stop([cursor])
                else:
                    self._resting[partition] = cursor
                return
        # The log was closed meanwhile, which left the consumer to its readers.
        if shared.readers == 0:
            shared.consumer.close()

    def forget(self, unused_since: float) -> None:
        """Those that nobody has used since then fetch nothing more."""
        with self._lock:
            old = [one for one, c in self._resting.items() if c.used_at < unused_since]
            self._stop([self._resting.pop(one) for one in old])

    @property
    def fetches(self) -> bool:
        """Whether there are cursors that may fetch."""
        return bool(self._resting or self._in_use)

    def close(self) -> None:
        """Close the consumer, or leave it to the last reader of its cursors."""
        with self._lock:
            self._leave_consumer()

    def abandon(self) -> Consumer | None:
        """In a forked child: forget all without touching it. Returns the consumer."""
        self._lock = threading.Lock()
        shared, self._shared = self._shared, None
        self._resting, self._in_use = {}, set()
        return None if shared is None else shared.consumer

    def _open(self) -> SharedConsumer:
        if self._shared is None:
            self._shared = SharedConsumer(self._make(), self._topic, self._monotonic)
        return self._shared

    def _stop(self, cursors: Sequence[SharedCursor]) -> None:
        try:
            for one in cursors:
                one.stop()
        except (KafkaException, RuntimeError):
            self._leave_consumer()

    def _leave_consumer(self) -> None:
        """The next read begins with another one; this one is closed when it has no reader."""
        shared, self._shared = self._shared, None
        self._resting, self._in_use = {}, set()
        if shared is not None and shared.readers == 0:
            shared.consumer.close()
