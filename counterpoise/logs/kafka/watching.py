"""Waits at the ends of partitions of a topic: a consumer of librdkafka whose fetch waits.

Theory
------
A broker answers a fetch when there are records, or after `fetch.wait.max.ms`. While it waits,
librdkafka cannot ask it for another partition, so the consumers that read wait for a moment only
(`counterpoise.logs.kafka.reader`), and ask all the time. A reader that waits has another consumer,
whose fetch waits for long, and a thread that takes its events, because librdkafka wakes threads and
no sockets. The reader that is woken gets these records at once (`first`), and reads what else there
is as always.

The consumer goes on from what it has fetched. So as long as messages come one by one, it stays with
the reader, and is never assigned anew. While nobody waits its thread takes nothing, and it soon
fetches no more. A reader that has read a backlog meanwhile, or waits for
more partitions than before, gets a new consumer, because an assignment would wait for the fetch
under way. Until that one is surely connected, the reader asks for the ends often.

A broker that is gone without a word answers no fetch. So the reader asks for the ends now and then.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from counterpoise.backoff import Backoff
from counterpoise.logs.kafka.cluster import leave_alone
from counterpoise.logs.kafka.reader import FETCH_WAIT_SECONDS
from counterpoise.logs.kafka.rows import RecordColumns
from counterpoise.logs.port import Rest
from counterpoise.logs.rows import Rows

LOOK_SECONDS = 15.0
# A new consumer connects, and its first fetch may lack partitions: longer than a fetch waits.
NEW_SECONDS = FETCH_WAIT_SECONDS + 0.5
NEW_LOOK = Backoff(0.01, 0.05)
# So long the reader asks now and then after an error of its consumer.
FAILED_SECONDS = 5.0
# A consumer that is further behind is replaced.
MOST_BEHIND = 100
# With more it forgets the records.
MOST_BYTES = 4 * 1024 * 1024
_POLL_SECONDS = 1.0
_MOST_EVENTS = 1000
_NOW = Rest(0.0)


class KafkaWatching:
    """Of one reader of a log."""

    def __init__(
        self,
        topic: str,
        make: Callable[[], Consumer],
        ends: Callable[[Mapping[int, int]], Mapping[int, int]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` makes a consumer with `WATCHING`; `ends` asks for the ends of such partitions."""
        self._topic = topic
        self._make = make
        self._asked_ends = ends
        self._monotonic = monotonic
        self._waiter: _Waiter | None = None
        self._ends: Mapping[int, int] = {}
        self._new_until = self._look_at = self._not_before = 0.0
        self._looks = 0

    def watch(self, ends: Mapping[int, int]) -> Rest | None:
        """See `Log.watch`."""
        now = self._monotonic()
        if now < self._not_before:
            return None
        if ends != self._ends:
            self._begin(ends, now)
        waiter = self._waiter
        assert waiter is not None
        try:
            if waiter.has_moved(ends):
                return _NOW
        except KafkaException:
            self.close()
            self._not_before = now + FAILED_SECONDS
            return None
        if now < self._new_until:
            if any(end > ends[one] for one, end in self._asked_ends(ends).items()):
                return _NOW
            self._looks += 1
            return Rest(NEW_LOOK.after(self._looks), (waiter.bell,))
        if now >= self._look_at:
            self._ends = {}
            return _NOW
        return Rest(self._look_at - now, (waiter.bell,))

    def first(
        self, ranges: Mapping[int, tuple[int, int]], max_messages: int, max_bytes: int
    ) -> dict[int, tuple[Rows, str]]:
        """The first messages of those of these ranges that have been fetched: see `Log.first`."""
        found: dict[int, tuple[Rows, str]] = {}
        waiter = self._waiter
        if waiter is None:
            return found
        for partition, (start, end) in ranges.items():
            if records := waiter.records(partition, start, end)[:max_messages]:
                columns = RecordColumns(records)
                columns = columns.first(columns.fitting(max_bytes // len(ranges), None))
                found[partition] = columns.rows(partition), str(columns.following)
        waiter.forget()
        return found

    def close(self) -> None:
        """Fetch nothing more."""
        waiter, self._waiter, self._ends = self._waiter, None, {}
        if waiter is not None:
            waiter.close()

    def abandon(self) -> None:
        """In a forked child: forget the consumer without touching it."""
        waiter, self._waiter, self._ends = self._waiter, None, {}
        if waiter is not None:
            leave_alone(waiter.consumer)

    def _begin(self, ends: Mapping[int, int], now: float) -> None:
        if self._waiter is None or not self._waiter.can_follow(ends):
            self.close()
            self._waiter = _Waiter(self._make(), self._topic, ends)
            self._new_until, self._looks = now + NEW_SECONDS, 0
        self._ends, self._look_at = ends, now + LOOK_SECONDS


class _Waiter:
    """A consumer that is assigned to partitions, and the thread that takes its events."""

    def __init__(self, consumer: Consumer, topic: str, ends: Mapping[int, int]) -> None:
        self.consumer = consumer
        self._heard, self._bell = socket.socketpair()
        for one in (self._heard, self._bell):
            one.setblocking(False)
        self._changed = threading.Condition()
        # By partition, the offset after the last record that was taken; and all records that were
        # taken from an offset on.
        self._following, self._begins = dict(ends), dict(ends)
        self._records: dict[int, list[Message]] = {one: [] for one in ends}
        self._bytes = 0
        self._ends: Mapping[int, int] | None = None
        self._failure: KafkaException | None = None
        self._closed = False
        consumer.assign([TopicPartition(topic, one, end) for one, end in ends.items()])
        threading.Thread(target=self._run, name=f"kafka-watching-{topic}", daemon=True).start()

    @property
    def bell(self) -> int:
        """The descriptor of a socket that can be read when events have come."""
        return self._heard.fileno()

    def can_follow(self, ends: Mapping[int, int]) -> bool:
        """Whether it is near these ends, of partitions that it is assigned to."""
        with self._changed:
            following = self._following
            return self._failure is None and all(
                one in following and end - following[one] <= MOST_BEHIND
                for one, end in ends.items()
            )

    def has_moved(self, ends: Mapping[int, int]) -> bool:
        """Whether there are records at these ends; else the bell rings when there are some.

        Raises the error of the consumer.
        """
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._are_past(ends):
                return True
            self._forget()
            self._ends = ends
            self._changed.notify()
            return False

    def forget(self) -> None:
        """Keep no record that was taken."""
        with self._changed:
            self._forget()

    def records(self, partition: int, start: int, end: int) -> list[Message]:
        """All of [start, end) that have been taken; none if some before them have not."""
        with self._changed:
            if start < self._begins.get(partition, end):
                return []
            return [one for one in self._records[partition] if start <= (one.offset() or 0) < end]

    def close(self) -> None:
        """Its thread closes the consumer soon."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            self._heard.close()
            self._bell.close()

    def _run(self) -> None:
        made_in = os.getpid()
        while self._is_waited_for():
            try:
                events = self.consumer.consume(1, _POLL_SECONDS)
                events += self.consumer.consume(_MOST_EVENTS, 0.0)
            except (KafkaException, RuntimeError) as error:
                self._take([], KafkaException(*error.args))
            else:
                self._take(events)
        if os.getpid() == made_in:
            self.consumer.close()

    def _is_waited_for(self) -> bool:
        """Wait until somebody waits; False if it is closed."""
        with self._changed:
            while self._ends is None and not self._closed:
                self._changed.wait()
            return not self._closed

    def _take(self, events: list[Message], failure: KafkaException | None = None) -> None:
        with self._changed:
            for event in events:
                if (error := event.error()) is not None:
                    failure = KafkaException(error)
                else:
                    partition, offset = event.partition(), event.offset()
                    assert partition is not None
                    assert offset is not None
                    self._following[partition] = offset + 1
                    self._records[partition].append(event)
                    self._bytes += len(event)
                    if self._bytes > MOST_BYTES:
                        self._forget()
            self._failure = failure or self._failure
            if self._ends is None or self._closed:
                return
            if self._failure is not None or self._are_past(self._ends):
                self._ends = None
                with suppress(BlockingIOError):
                    self._bell.send(b"\0")

    def _forget(self) -> None:
        self._begins = dict(self._following)
        self._records = {one: [] for one in self._begins}
        self._bytes = 0

    def _are_past(self, ends: Mapping[int, int]) -> bool:
        return any(self._following[one] > end for one, end in ends.items())
