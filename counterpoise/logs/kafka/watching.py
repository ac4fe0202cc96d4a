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
fetches no more. Partitions that the reader did not wait for before, or of which it has read a
backlog meanwhile, are assigned beside the others. The next fetch has them, but the one under way
may wait for long. So until they are surely fetched, the reader asks for the ends of these often.
Partitions that it does not wait for are given up as soon as a message of them comes. The thread
does all this: librdkafka's binding serves one call at a time, so another thread would wait for it.

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
from counterpoise.logs.kafka.reader import FETCH_WAIT_SECONDS, looked_up
from counterpoise.logs.kafka.rows import RecordColumns
from counterpoise.logs.port import Rest
from counterpoise.logs.rows import Rows

LOOK_SECONDS = 15.0
_POLL_SECONDS = 0.25
# A fetch that has not got a new partition is under way: longer than it waits.
NEW_SECONDS = FETCH_WAIT_SECONDS + 2 * _POLL_SECONDS
NEW_LOOK = Backoff(0.01, 0.05)
# It rests so many times as long as the last question took, but no longer than this: all consumers
# may ask at once, as after a topic has grown.
LOOK_REST = 10
LONGEST_LOOK_REST = 1.0
SHORTEST_REST = 0.001
# So long the reader asks now and then after an error of its consumer.
FAILED_SECONDS = 5.0
# A partition of which it is further behind is assigned anew.
MOST_BEHIND = 100
# With more it forgets the records.
MOST_BYTES = 4 * 1024 * 1024
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
        """`make` makes a consumer with `WATCHING`. `ends` asks for the ends of partitions at such
        ends, and returns those that it has at once.
        """
        self._topic = topic
        self._make = make
        self._asked_ends = ends
        self._monotonic = monotonic
        self._waiter: _Waiter | None = None
        self._ends: Mapping[int, int] = {}
        # Until when a partition may not be fetched yet; how often these were asked for, and when
        # they are the next time.
        self._new: dict[int, float] = {}
        self._looks, self._look_new_at = 0, 0.0
        self._look_at = self._not_before = 0.0

    def watch(self, ends: Mapping[int, int]) -> Rest | None:
        """See `Log.watch`."""
        now = self._monotonic()
        if now < self._not_before:
            return None
        if self._waiter is None:
            self._waiter = _Waiter(self._make(), self._topic)
        waiter = self._waiter
        try:
            moved, new = waiter.wait(ends)
        except KafkaException:
            self.close()
            self._not_before = now + FAILED_SECONDS
            return None
        if new:
            self._new.update(dict.fromkeys(new, now + NEW_SECONDS))
            self._looks, self._look_new_at = 0, now
        if ends != self._ends:
            self._ends, self._look_at = ends, now + LOOK_SECONDS
        self._new = {one: until for one, until in self._new.items() if now < until}
        unsure = {one: end for one, end in ends.items() if one in self._new}
        if unsure and now >= self._look_new_at:
            asked = self._asked_ends(unsure)
            beyond = {one: str(end) for one, end in asked.items() if end > unsure[one]}
            moved = {**beyond, **moved}
            took, self._looks = self._monotonic() - now, self._looks + 1
            rest = max(NEW_LOOK.after(self._looks), min(LOOK_REST * took, LONGEST_LOOK_REST))
            self._look_new_at = now + took + rest
        if moved:
            return Rest(0.0, moved=moved)
        if now >= self._look_at:
            self._ends = {}
            return _NOW
        look_at = min(self._look_at, self._look_new_at) if unsure else self._look_at
        return Rest(max(look_at - self._monotonic(), SHORTEST_REST), (waiter.bell,))

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
        waiter, self._waiter, self._ends, self._new = self._waiter, None, {}, {}
        if waiter is not None:
            waiter.close()

    def abandon(self) -> None:
        """In a forked child: forget the consumer without touching it."""
        waiter, self._waiter, self._ends, self._new = self._waiter, None, {}, {}
        if waiter is not None:
            leave_alone(waiter.consumer)


class _Waiter:
    """A consumer that is assigned to partitions, and the thread that takes its events."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer = consumer
        self._topic = topic
        self._heard, self._bell = socket.socketpair()
        for one in (self._heard, self._bell):
            one.setblocking(False)
        self._changed = threading.Condition()
        # By partition, the offset after the last record that was taken; and all records that were
        # taken from an offset on.
        self._following: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._records: dict[int, list[Message]] = {}
        self._bytes = 0
        # Of which messages came while nobody waited for them.
        self._useless: set[int] = set()
        # Where its thread is to assign partitions; None: nowhere any more. Then what it has
        # assigned, and how many partitions its consumer knows.
        self._places: dict[int, int | None] = {}
        self._assigned: set[int] = set()
        self._known = 0
        self._ends: Mapping[int, int] | None = None
        self._failure: KafkaException | None = None
        self._closed = False
        threading.Thread(target=self._run, name=f"kafka-watching-{topic}", daemon=True).start()

    @property
    def bell(self) -> int:
        """The descriptor of a socket that can be read when events have come."""
        return self._heard.fileno()

    def wait(self, ends: Mapping[int, int]) -> tuple[dict[int, str | None], set[int]]:
        """Fetch these partitions. Returns how far there are records behind these ends, and which of
        the partitions will be fetched from there on only soon. The bell rings when there are any.

        Raises the error of the consumer.
        """
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            new = self._follow(ends)
            moved = self._past(ends)
            if not moved:
                self._forget()
                self._ends = ends
            self._changed.notify()
            return moved, new

    def _follow(self, ends: Mapping[int, int]) -> set[int]:
        following = self._following
        new = {
            one
            for one, end in ends.items()
            if one not in following or end - following[one] > MOST_BEHIND
        }
        useless, self._useless = self._useless - ends.keys(), set()
        for one in useless:
            del following[one], self._begins[one], self._records[one]
            self._places[one] = None
        for one in new:
            following[one] = self._begins[one] = self._places[one] = ends[one]
            self._records[one] = []
        return new

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
        while self._is_called():
            try:
                self._assign()
                events = []
                if self._ends is not None:
                    events = self.consumer.consume(1, _POLL_SECONDS)
                    events += self.consumer.consume(_MOST_EVENTS, 0.0)
            except (KafkaException, RuntimeError) as error:
                self._take([], KafkaException(*error.args))
            else:
                self._take(events)
        if os.getpid() == made_in:
            self.consumer.close()

    def _is_called(self) -> bool:
        """Wait until somebody waits, or partitions are to be assigned; False if it is closed."""
        with self._changed:
            while self._ends is None and not self._places and not self._closed:
                self._changed.wait()
            return not self._closed

    def _assign(self) -> None:
        """Raises KafkaException, RuntimeError."""
        with self._changed:
            places, self._places = self._places, {}
        left = self._assigned & places.keys()
        new = {one: at for one, at in places.items() if at is not None}
        if left:
            self.consumer.incremental_unassign([TopicPartition(self._topic, one) for one in left])
        if new:
            self._known = looked_up(self.consumer, self._topic, new, self._known)
            self.consumer.incremental_assign(
                [TopicPartition(self._topic, one, at) for one, at in new.items()]
            )
        self._assigned = self._assigned - left | new.keys()

    def _take(self, events: list[Message], failure: KafkaException | None = None) -> None:
        with self._changed:
            for event in events:
                if (error := event.error()) is not None:
                    failure = KafkaException(error)
                else:
                    partition, offset = event.partition(), event.offset()
                    assert partition is not None
                    assert offset is not None
                    if offset < self._following.get(partition, offset + 1):
                        continue  # it was given up meanwhile, or begins elsewhere
                    self._following[partition] = offset + 1
                    if self._ends is not None and partition not in self._ends:
                        self._useless.add(partition)
                        self._begins[partition], self._records[partition] = offset + 1, []
                        continue
                    self._records[partition].append(event)
                    self._bytes += len(event)
                    if self._bytes > MOST_BYTES:
                        self._forget()
            self._failure = failure or self._failure
            if self._ends is None or self._closed:
                return
            if self._failure is not None or self._past(self._ends):
                self._ends = None
                with suppress(BlockingIOError):
                    self._bell.send(b"\0")

    def _forget(self) -> None:
        self._begins = dict(self._following)
        self._records = {one: [] for one in self._begins}
        self._bytes = 0

    def _past(self, ends: Mapping[int, int]) -> dict[int, str | None]:
        following = self._following
        return {
            one: str(following[one]) for one, end in ends.items() if following.get(one, end) > end
        }
