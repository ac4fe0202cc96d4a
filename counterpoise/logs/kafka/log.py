"""The Kafka log: a topic, read and appended to with confluent-kafka (librdkafka).

Positions are offsets in decimal. They have holes (markers of transactions, compaction), so numbers
of messages computed from them are upper limits, and a range may be empty.

How it keeps the promises of `counterpoise.logs`:

1. and 2. *Order and ends.* Readers see up to the last stable offset (`read_committed`), which is
   the end in `bounds`. A leader that has just taken over may report a lower end for a moment.
3. *Once*: while the publisher lives, and after a crash as far as the tails of the topic show
   (`counterpoise.logs.kafka.appender`). An append is not all or nothing for readers.
4. *Partition count.* Kafka cannot refuse an append by the count it was routed with, so the count is
   compared just before. A topic only grows, outside our control: messages that two programs
   publish at that moment under one key may be in two partitions. No partition is ever retiring.
5. *No message skipped*: an offset that retention has removed raises PositionTrimmed, also during a
   read. Records removed by compaction were meant to vanish.
6. *No position twice*, as long as the topic exists; the incarnation is the topic's id.

Partitions are assigned, not subscribed to. Reading commits nothing to Kafka, and no topic is
created. Offsets of consumer groups are read and written only on demand (`consumer_groups`).
Retention is Kafka's own: trimming does nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from counterpoise.logs.address import parse_log
from counterpoise.logs.errors import (
    InvalidMessage,
    LogError,
    LogNotFound,
    PositionAhead,
    PositionTrimmed,
    StaleRouting,
)
from counterpoise.logs.kafka.access import Failures, parse_access
from counterpoise.logs.kafka.answers import Questions
from counterpoise.logs.kafka.appender import Appender, find_appends
from counterpoise.logs.kafka.cluster import (
    SAMPLED_MESSAGES,
    AwaitedBounds,
    Clients,
    Replication,
    Shape,
    Sizes,
    Topic,
    leave_alone,
)
from counterpoise.logs.kafka.consumer_groups import ConsumerGroup
from counterpoise.logs.kafka.cursors import Cursors
from counterpoise.logs.kafka.peeking import PEEK_SHARE, times_at
from counterpoise.logs.kafka.reader import RangeReader
from counterpoise.logs.kafka.watching import KafkaWatching
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog, fair_shares
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Rest
from counterpoise.logs.rows import Rows, microseconds_of

# A read of fewer offsets is light.
LIGHT = 500
# How long partitions that are asked for first are waited for after the others have answered, which
# could be read, and those that the reader waits at; and how long if no other was read yet.
FRESH_SECONDS = 0.05
CONNECT_SECONDS = 1.0


def _is_light(start: int, end: int) -> bool:
    return 0 < end - start < LIGHT


class KafkaLog(NumberedLog):
    """The topic that a log names. See `counterpoise.logs.Log`.

    Threads read in parallel; appends take turns. A forked child makes its own connections, but must
    not continue the publisher of its parent.
    """

    kind = "a Kafka log"
    too_large = TOO_LARGE["kafka"]
    # One producer sends a batch to all brokers at once, and knows what it has sent.
    appends_in_parallel = False

    def __init__(self, log: str, access: str | None = None, *, timeout_seconds: float = 30.0):
        """Nothing is connected yet. `log` is `kafka://host:port[,…]/TOPIC`, `access` a secret.

        Raises LogError if the access has unknown settings.
        """
        reach = parse_access(log, access)
        self.name = parse_log(log).name
        self._timeout_seconds = timeout_seconds
        self._trouble = Failures(reach, self.name)
        self._clients = Clients(reach, self._trouble)
        self._questions = Questions(self._clients.admin, self._clients.replace_admin, self._trouble)
        self._topic = Topic(self.name, self._questions)
        self._cursors = Cursors(
            self.name,
            self._clients.staying_consumer,
            self._clients.shared_consumer,
            self._clients.consumer,
        )
        self._watching = KafkaWatching(
            self.name,
            self._clients.watching_consumer,
            self._ends_soon,
        )
        self._ends: dict[int, int] = {}  # as last answered
        # Of partitions that are asked for first, and of those that the reader waits at.
        self._fresh, self._watched = (
            AwaitedBounds(self._topic.begin_bounds, self._questions.give_up) for _ in range(2)
        )
        self._sizes = Sizes(self._sample)
        self._appending = threading.Lock()
        self._appender = Appender(
            self.name,
            self._clients.producer,
            self._find_appends,
            self._trouble,
            self._most_bytes,
            compresses=reach.of("producer").get("compression.type", "none") != "none",
        )
        _logs.add(self)

    def __repr__(self) -> str:
        return f"KafkaLog({self.name!r})"

    # ------------------------------------------------------------------ publishing

    def append(self, batch: AppendBatch) -> AppendResult:
        """See `Log.append`; here some messages may be visible before the others, or without them.

        Raises InvalidMessage also for messages that only the cluster refuses (its
        `max.message.bytes`): then other messages of the batch may have been appended.
        """
        if not batch.messages:
            return AppendResult(0, 0)
        for message in batch.messages:
            message.size_bytes()
        batch.check_sequences()
        deadline = self._begin()
        with self._appending:
            count = self._topic.shape(deadline).partition_count
            if count != batch.partition_count:
                raise StaleRouting(batch.partition_count, count)
            for partition in batch.partitions:
                if not 0 <= partition < count:
                    raise InvalidMessage(
                        f"partition {partition} is out of range: the log has {count}"
                    )
            return self._appender.append(batch, deadline)

    def next_sequence(self, publisher: str) -> int:
        """See `Log.next_sequence`: found in the last records of the topic; 0 without a record."""
        deadline = self._begin()
        with self._appending:
            return self._appender.next_sequence(publisher, deadline)

    def _most_bytes(self) -> int | None:
        with suppress(LogError):  # a cluster that does not tell it
            return self._topic.most_bytes(time.monotonic() + self._timeout_seconds)
        return None

    def _find_appends(self, publisher: str, deadline: float) -> list[tuple[int, int]]:
        shape = self._topic.shape(deadline)
        partitions = range(shape.partition_count)
        starts, ends = self._topic.bounds(partitions, deadline, committed=False)
        with self._clients.searcher() as consumer:
            return find_appends(
                consumer, self.name, starts, ends, publisher, self._trouble, deadline
            )

    # ------------------------------------------------------------------ reading

    def rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[Rows]:
        """See `Log.rows`. Waits, within the time limit, for an `end` beyond the current one.

        Fetches on behind the end, for the next read (`counterpoise.logs.kafka.cursors`).
        """
        return self._rows(partition, start, end, max_messages, max_bytes, goes_on=True)

    def _rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        max_messages: int,
        max_bytes: int | None = None,
        *,
        goes_on: bool,
    ) -> Iterator[Rows]:
        position = self.number(start)
        if end is None:
            last = self.number(self.bounds([partition]).ends[partition])
            if position > last:
                raise PositionAhead(partition, start, str(last))
        else:
            last = self.number(end)
        if position >= last or max_messages < 1 or (max_bytes is not None and max_bytes < 1):
            return
        self._begin()
        light = _is_light(position, last)
        with self._cursors.of(partition, stays=goes_on, light=light) as cursor:
            yield from RangeReader(
                cursor,
                partition,
                position,
                last,
                trouble=self._trouble,
                explain=lambda at, deadline: self._wrong_with(partition, at, deadline),
                timeout_seconds=self._timeout_seconds,
            ).rows(max_messages, max_bytes)

    def first(
        self, ranges: Mapping[int, tuple[str, str]], *, max_messages: int, max_bytes: int
    ) -> Mapping[int, tuple[Rows, str]]:
        """What was fetched while the reader waited. All other light reads fetch from now on."""
        numbers = {one: (self.number(a), self.number(b)) for one, (a, b) in ranges.items()}
        found = self._watching.first(numbers, max_messages, max_bytes)
        left = {one: places for one, places in numbers.items() if one not in found}
        self._cursors.begin({one: a for one, (a, b) in left.items() if _is_light(a, b)})
        return found

    def begin(self, ranges: Mapping[int, tuple[str, str]]) -> None:
        """See `Log.begin`: the first read of a partition waits for its first fetch."""
        numbers = {one: (self.number(a), self.number(b)) for one, (a, b) in ranges.items()}
        light = {one: a for one, (a, b) in numbers.items() if _is_light(a, b)}
        self._cursors.begin(light)
        self._cursors.begin_own(
            {one: a for one, (a, b) in numbers.items() if one not in light and a < b}
        )

    def _wrong_with(self, partition: int, position: int, deadline: float) -> LogError | None:
        """Why a read from there fails, None if it does not."""
        shape = self._topic.shape(deadline)
        if partition >= shape.partition_count:
            return LogNotFound(f"topic {self.name!r} has no partition {partition}")
        starts, ends = self._topic.bounds([partition], deadline)
        if position < starts[partition]:
            return PositionTrimmed(partition, str(position), str(starts[partition]))
        if position > ends[partition]:
            return PositionAhead(partition, str(position), str(ends[partition]))
        return None

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        """See `Log.bounds`. A log of which only this is asked fetches nothing.

        Count and incarnation may be out of date (`Topic.recent_shape`), unless a partition ends
        earlier than when it was asked for last: then the topic may have been deleted and made
        again.
        With `at_once` partitions without a leader are not waited for, nor is count or incarnation.
        """
        deadline = self._begin()
        self._cursors.stop_stale()
        waiting = set[int]()
        if at_once:
            shape, waiting = self._last_shape(partitions, deadline)
        elif partitions and self._ends.keys() >= {*partitions}:
            shape = self._topic.recent_shape(partitions, deadline)
        else:
            shape = self._topic.shape(deadline)
        existing = {one for one in partitions if one < shape.partition_count} - waiting
        fresh = existing - self._ends.keys() if at_once else set[int]()
        first, following = self._bounds_of([*(existing - fresh)], fresh, deadline)
        if any(end < self._ends.get(one, 0) for one, end in following.items()):
            shape = self._topic.shape(deadline)
        self._ends.update(following)
        unanswered = waiting | (fresh - following.keys())
        answered = [one for one in partitions if one not in unanswered]
        starts = {one: str(first.get(one, 0)) for one in answered}
        ends = {one: str(following.get(one, 0)) for one in answered}
        return Bounds(
            shape.partition_count, shape.incarnation, starts, ends, unanswered=frozenset(unanswered)
        )

    def _last_shape(self, partitions: Sequence[int], deadline: float) -> tuple[Shape, set[int]]:
        """The topic as last answered, and which of these partitions wait: they have no leader, or
        the next answer will say whether they are there. librdkafka would repeat the question for
        their offsets, for all partitions of the topic.
        """
        shape, is_recent = self._topic.last_shape(partitions, deadline)
        if any(one >= shape.partition_count for one in self._ends.keys() & partitions):
            # It was made again with fewer, or the broker that answered did not know it all.
            shape, is_recent = self._topic.shape(deadline), True
        new = {*partitions} - self._ends.keys()
        beyond = set() if is_recent else {one for one in new if one >= shape.partition_count}
        return shape, (new & shape.leaderless) | beyond

    def _bounds_of(
        self, known: Sequence[int], fresh: Collection[int], deadline: float
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Those of all known partitions, and of the fresh ones that answer about as soon."""
        awaited = self._fresh.ask(fresh)
        first, following = self._topic.bounds(known, deadline)
        wait(awaited, FRESH_SECONDS if self._ends else CONNECT_SECONDS)
        for number, (start, end) in self._fresh.answers(fresh).items():
            first[number], following[number] = start, end
        return first, following

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        """See `Log.watch`. Cursors that rest go on fetching for a moment, and then end."""
        rest = self._watching.watch({one: self.number(end) for one, end in ends.items()})
        if rest is None or not (left := self._cursors.rest_seconds()):
            return rest
        return replace(rest, seconds=min(rest.seconds, left))

    def _ends_soon(self, partitions: Collection[int]) -> dict[int, int]:
        self._begin()
        wait(self._watched.ask(partitions), FRESH_SECONDS)
        return {one: end for one, (_, end) in self._watched.answers(partitions).items()}

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        """See `Log.ages`. Fetches a record of each partition, for a fifth of the time limit."""
        offsets = {partition: self.number(position) for partition, position in positions.items()}
        self._begin()
        deadline = time.monotonic() + self._timeout_seconds * PEEK_SHARE
        with self._clients.peeker() as consumer:
            times = times_at(consumer, self.name, offsets, deadline)
        now = time.time()
        return {partition: max(0.0, now - at / 1000) for partition, at in times.items()}

    def first_since(self, partition: int, start: str, end: str, at: datetime) -> str:
        """See `Log.first_since`. Kafka looks the time up."""
        milliseconds = -(-microseconds_of(at) // 1000)
        low, high = self.number(start), self.number(end)
        found = self._topic.offsets_at([partition], max(0, milliseconds), self._begin())[partition]
        return str(high if found < 0 else min(max(low, found), high))

    def consumer_group(self, name: str) -> ConsumerGroup:
        """A consumer group of the cluster, for its offsets in this topic."""
        return ConsumerGroup(name, self.name, self._questions, self._begin)

    def replication(self) -> Replication:
        """The replicas of each partition. Raises LogNotFound, LogUnavailable."""
        return self._topic.replication(self._begin())

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        """`max_bytes` holds on average, by a sample of the waiting messages."""
        if any(backlogs.values()):
            mean_bytes = self._sizes.mean_bytes(begins, backlogs)
            max_messages = min(max_messages, max(1, int(max_bytes / mean_bytes)))
        return fair_shares(backlogs, max_messages)

    def _sample(self, partition: int, position: int) -> list[int]:
        until = str(position + SAMPLED_MESSAGES)
        end = self.bounds([partition]).ends[partition]
        until = min(until, end, key=self.number)
        return [
            len(value)
            for rows in self._rows(partition, str(position), until, SAMPLED_MESSAGES, goes_on=False)
            for value in rows.columns().values
        ]

    def close(self) -> None:
        with self._appending:
            self._appender.close()
        for awaited in (self._fresh, self._watched):
            awaited.forget()
        self._topic.forget()
        self._cursors.close()
        self._watching.close()
        self._clients.close()

    def _forked(self) -> None:
        """In a forked child: do not use or touch any object made before the fork."""
        self._appending = threading.Lock()
        asked = (*self._fresh.forget(), *self._watched.forget(), *self._topic.forget())
        leave_alone(*asked, self._appender.abandon())
        self._cursors.abandon()
        self._watching.abandon()
        self._clients.abandon()

    def _begin(self) -> float:
        """The deadline of the call that begins now; forgets earlier trouble."""
        self._trouble.clear()
        return time.monotonic() + self._timeout_seconds


_logs: weakref.WeakSet[KafkaLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_logs):
        log._forked()


os.register_at_fork(after_in_child=_after_fork)
