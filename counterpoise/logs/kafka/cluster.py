"""The cluster of one log: librdkafka's clients, and the cluster's answers about the topic.

The clients are made when needed, shared if possible, and never used after a fork. A client has
several threads and connections. Threads do not survive a fork, and closing a client without its
threads blocks for ever. So a forked child does not use inherited clients and never deallocates them
(`leave_alone`); it makes its own clients.

The answers are the topic's id, its partitions, their replicas, starts and ends
(`counterpoise.logs.kafka.answers`). No question creates a topic, even if the cluster would
create one for a question. The answers are not from one instant, because Kafka has no such query.
The count is asked first: a topic only grows, so all counted partitions have bounds. Starts and ends
are asked at once, and an end is the last stable offset, because records of an open transaction
cannot be read yet. The cluster does not tell the sizes of messages, so they are estimated from
samples (`Sizes`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from counterpoise.logs.errors import LogAccessRefused, LogNotFound, LogUnavailable
from counterpoise.logs.kafka.access import Access, Failures, librdkafka_logger
from counterpoise.logs.kafka.answers import Attempt, NoAnswer, Questions, has_passing_error
from counterpoise.logs.kafka.appender import BATCH_BYTES, PRODUCER, SEARCHER
from counterpoise.logs.kafka.peeking import PEEKER
from counterpoise.logs.kafka.reader import CONSUMER, SHARED, STAYING, WATCHING

# There are few reads at a time, and an idle consumer costs little.
IDLE_CONSUMERS = 4
_GROUP = "counterpoise"

# The answer instead of an offset if no message is as late as requested.
_NONE = -1
# For how long an answer about the topic will do: for so many times as long as the question took,
# but at least and at most so many seconds.
SHAPE_TIMES = 10
SHAPE_SECONDS = 1.0
LONGEST_SHAPE_SECONDS = 10.0
# How long librdkafka may take for a question that nobody waits for. One for bounds has half as long
# again after each that had no answer.
AWAITED_SECONDS = 2.0
AWAITED_GROWTH, LONGEST_AWAITED_SECONDS = 1.5, 30.0
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

SAMPLED_PARTITIONS = 3
SAMPLED_MESSAGES = 20
_SAMPLE_EVERY_SECONDS = 10.0

_NEEDED = "min.insync.replicas"
_MOST_BYTES = "max.message.bytes"
_Asked = Mapping[TopicPartition, Future[Any]]


class Clients:
    """The clients of one log. Thread-safe."""

    def __init__(self, access: Access, trouble: Failures) -> None:
        self._access = access
        self._trouble = trouble
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._idle: list[Consumer] = []
        self._idle_peekers: list[Consumer] = []
        self._idle_searchers: list[Consumer] = []

    def admin(self) -> AdminClient:
        """The client for questions. Raises LogError if the access is not valid."""
        with self._lock:
            if self._admin is None:
                self._admin = self._make(AdminClient, "admin", {})
            return self._admin

    def replace_admin(self, admin: AdminClient) -> None:
        """`admin` goes on asking a broker that is lost: the next `admin()` is another client.

        Questions of other threads that `admin` has taken still get their answers.
        """
        with self._lock:
            if self._admin is admin:
                self._admin = None

    def producer(self, most_bytes: int | None = None) -> Producer:
        """A new producer, which the caller keeps, for a topic that takes so many bytes at once.

        Raises LogError if the access is not valid.
        """
        size = {} if most_bytes is None else {"batch.size": min(BATCH_BYTES, most_bytes)}
        producer: Producer = self._make(Producer, "producer", {**PRODUCER, **size})
        return producer

    def consumer(self) -> AbstractContextManager[Consumer]:
        """A consumer for one reader at a time; it is unassigned afterwards."""
        return self._lent(self._idle, CONSUMER)

    def peeker(self) -> AbstractContextManager[Consumer]:
        """The same, for `counterpoise.logs.kafka.peeking`."""
        return self._lent(self._idle_peekers, PEEKER)

    def searcher(self) -> AbstractContextManager[Consumer]:
        """The same, for `counterpoise.logs.kafka.appender`."""
        return self._lent(self._idle_searchers, SEARCHER)

    def staying_consumer(self) -> Consumer:
        """A new consumer that stays assigned; the caller keeps it. Raises as `producer`."""
        return self._consumer(STAYING)

    def shared_consumer(self) -> Consumer:
        """The same, for `counterpoise.logs.kafka.shared`."""
        return self._consumer(SHARED)

    def watching_consumer(self) -> Consumer:
        """The same, for `counterpoise.logs.kafka.watching`."""
        return self._consumer(WATCHING)

    @contextmanager
    def _lent(self, idle: list[Consumer], properties: Mapping[str, Any]) -> Iterator[Consumer]:
        with self._lock:
            consumer = idle.pop() if idle else None
        if consumer is None:
            consumer = self._consumer(properties)
        made_in = os.getpid()
        try:
            yield consumer
        finally:
            if os.getpid() != made_in:
                # The fork happened during a read.
                leave_alone(consumer)
            else:
                self._give_back(consumer, idle)

    def close(self) -> None:
        """Close unused clients. Clients are made anew when needed."""
        with self._lock:
            every = (self._idle, self._idle_peekers, self._idle_searchers)
            unused = [consumer for idle in every for consumer in idle]
            for idle in every:
                idle.clear()
            # An admin client ends when the last question is answered.
            self._admin = None
        for consumer in unused:
            consumer.close()

    def abandon(self) -> None:
        """In a forked child: forget all clients without touching them."""
        self._lock = threading.Lock()
        leave_alone(self._admin, *self._idle, *self._idle_peekers, *self._idle_searchers)
        self._admin = None
        self._idle, self._idle_peekers, self._idle_searchers = [], [], []

    def _give_back(self, consumer: Consumer, idle: list[Consumer]) -> None:
        try:
            consumer.unassign()
        except (KafkaException, RuntimeError):
            consumer.close()
            return
        with self._lock:
            if len(idle) < IDLE_CONSUMERS:
                idle.append(consumer)
                return
        consumer.close()

    def _consumer(self, properties: Mapping[str, Any]) -> Consumer:
        made: Consumer = self._make(Consumer, "consumer", {"group.id": _GROUP, **properties})
        return made

    def _make(self, kind: Callable[..., Any], role: str, properties: dict[str, Any]) -> Any:
        settings = {
            "client.id": "counterpoise",
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            **properties,
            **self._access.of(role),
            "error_cb": self._trouble.note,
            "logger": librdkafka_logger,
        }
        try:
            return kind(settings)
        except KafkaException as wrong:
            raise self._trouble.invalid(wrong) from None


def leave_alone(*clients: object) -> None:
    """Keep these from ever being deallocated in this process."""
    for client in clients:
        if client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


@dataclass(frozen=True, slots=True)
class Shape:
    """The topic's partition count and incarnation, and which partitions have no leader.

    `incarnation` is the topic's id. Clusters before Kafka 2.8 have no such id; then it is the
    cluster's id and the topic's name, which do not change if the topic is made again.
    """

    partition_count: int
    incarnation: str
    leaderless: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas of each partition are in sync, and how many should be.

    `needed`: as many must be in sync for an append (`min.insync.replicas`); None if the access may
    not read the topic's settings.
    """

    replicas: Mapping[int, int]
    in_sync: Mapping[int, int]
    needed: int | None

    def behind(self) -> list[int]:
        """The partitions with a replica that is not in sync."""
        return [one for one, count in self.replicas.items() if self.in_sync[one] < count]

    def closed(self) -> list[int]:
        """Those of them that take no append, because too few replicas are in sync."""
        return [one for one in self.behind() if self.in_sync[one] < (self.needed or 1)]


class Topic:
    """One topic, and the questions about it. Thread-safe.

    Each raises LogNotFound, LogAccessRefused, and LogUnavailable at the deadline (monotonic).
    """

    def __init__(
        self, name: str, questions: Questions, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._questions = questions
        self._monotonic = monotonic
        # The last answer, and until when it will do; and the question for the next one, if nobody
        # waits for it.
        self._shape: tuple[Shape, float] | None = None
        self._asking: _Described | None = None
        # Partitions that the topic did not have when it was asked for them.
        self._absent = frozenset[int]()
        self._cluster_id: str | None = None

    def recent_shape(self, partitions: Iterable[int], deadline: float) -> Shape:
        """The topic of a moment ago; the current one if it had not all of these.

        An answer names all partitions with all their replicas: in a large topic it takes longer
        than any question about the few partitions of one owner. So it is asked for once a second,
        and less often where that would be a tenth of the time.
        """
        if (last := self._shape) is not None:
            shape, until = last
            complete = all(one < shape.partition_count for one in partitions)
            if complete and self._monotonic() < until:
                return shape
        return self.shape(deadline)

    def last_shape(self, partitions: Collection[int], deadline: float) -> tuple[Shape, bool]:
        """The last answer, and whether it is as recent as `recent_shape` and has all of these, or
        was asked for since they were lacking. If it is not, or one of them has no leader, the topic
        is asked, and nobody waits; the first time, and for an answer that is much older, the caller
        does. For one thread at a time.
        """
        self._take_answer(deadline)
        last, now = self._shape, self._monotonic()
        if last is None or now >= last[1] + LONGEST_SHAPE_SECONDS:
            return self.shape(deadline), True
        shape, until = last
        beyond = frozenset(one for one in partitions if one >= shape.partition_count)
        is_recent = beyond <= self._absent and now < until
        is_complete = is_recent and shape.leaderless.isdisjoint(partitions)
        if not is_complete and self._asking is None:
            attempt = self._questions.attempt(AWAITED_SECONDS)
            asking = self._asking = _Described(attempt, self._describe(attempt), now, beyond)
            asking.future.add_done_callback(lambda _: asking.answered(self._monotonic()))
        return shape, is_recent

    def _take_answer(self, deadline: float) -> None:
        asking = self._asking
        if asking is None or not (asking.future.done() or asking.attempt.is_late):
            return
        self._asking = None
        try:
            if not asking.future.done():
                raise NoAnswer("no answer in time")
            shape = self._shape_of(asking.attempt, asking.future)
            self._keep(shape, asking.at, asking.took_seconds)
        except (LogUnavailable, LogNotFound) as error:
            if isinstance(error, NoAnswer):
                self._questions.give_up(asking.attempt)
            self.shape(deadline)
        self._absent = asking.beyond

    def forget(self) -> list[AdminClient]:
        """Awaits no answer any more. Returns the clients that were asked."""
        asking, self._asking = self._asking, None
        return [] if asking is None else [asking.attempt.admin]

    def shape(self, deadline: float) -> Shape:
        """The current topic."""
        asked_at, self._shape = self._monotonic(), None
        shape = self._questions.ask(
            lambda attempt: self._shape_of(attempt, self._describe(attempt)), deadline
        )
        self._keep(shape, asked_at, self._monotonic() - asked_at)
        return shape

    def _keep(self, shape: Shape, asked_at: float, took: float) -> None:
        lasts = max(SHAPE_SECONDS, min(SHAPE_TIMES * took, LONGEST_SHAPE_SECONDS))
        self._shape, self._absent = (shape, asked_at + lasts), frozenset()

    def _shape_of(self, attempt: Attempt, described: Future[Any]) -> Shape:
        topic = attempt.answer(described)
        topic_id = "" if topic.topic_id is None else str(topic.topic_id)
        if not topic_id or topic_id == _NO_TOPIC_ID:
            if self._cluster_id is None:
                asked = attempt.admin.describe_cluster(request_timeout=attempt.seconds)
                self._cluster_id = attempt.answer(asked).cluster_id
            topic_id = f"{self._cluster_id}/{self.name}"
        partitions = topic.partitions
        leaderless = frozenset(one.id for one in partitions if one.leader is None)
        return Shape(len(partitions), topic_id, leaderless)

    def partition_counts(self, names: Sequence[str], deadline: float) -> dict[str, int]:
        """Those of topics of the cluster; topics that are not there or refused are left out."""

        def question(attempt: Attempt) -> dict[str, int]:
            asked = attempt.admin.describe_topics(
                TopicCollection([*names]), request_timeout=attempt.seconds
            )
            counts = {}
            for name, answer in asked.items():
                with suppress(LogNotFound, LogAccessRefused):
                    counts[name] = len(attempt.answer(answer).partitions)
            return counts

        return self._questions.ask(question, deadline)

    def bounds(
        self, partitions: Iterable[int], deadline: float, *, committed: bool = True
    ) -> tuple[dict[int, int], dict[int, int]]:
        """First and end offset of each of these partitions, which must exist.

        Not `committed`: the end behind records of transactions that are open.
        """
        wanted = list(partitions)

        def question(attempt: Attempt) -> tuple[dict[int, int], dict[int, int]]:
            starts = self._asked(attempt, wanted, OffsetSpec.earliest())
            ends = self._asked(attempt, wanted, OffsetSpec.latest(), committed=committed)
            return _gathered(attempt, starts), _gathered(attempt, ends)

        return self._questions.ask(question, deadline)

    def begin_bounds(self, partitions: Collection[int], seconds: float) -> Mapping[int, Awaited]:
        """Asks for the same without waiting, for so long. Raises LogError if the access is not
        valid.
        """
        wanted = list(partitions)
        attempt = self._questions.attempt(seconds)
        starts = self._asked(attempt, wanted, OffsetSpec.earliest())
        ends = self._asked(attempt, wanted, OffsetSpec.latest())
        return {
            place.partition: Awaited(attempt, start, ends[place]) for place, start in starts.items()
        }

    def offsets_at(
        self, partitions: Iterable[int], milliseconds: int, deadline: float
    ) -> dict[int, int]:
        """The first offset at or after a time; -1 if there is none."""
        wanted, spec = list(partitions), OffsetSpec.for_timestamp(milliseconds)
        return self._questions.ask(
            lambda attempt: _gathered(attempt, self._asked(attempt, wanted, spec), least=_NONE),
            deadline,
        )

    def replication(self, deadline: float) -> Replication:
        """The replicas of each partition."""

        def question(attempt: Attempt) -> Replication:
            partitions = attempt.answer(self._describe(attempt)).partitions
            return Replication(
                {one.id: len(one.replicas) for one in partitions},
                {one.id: len(one.isr) for one in partitions},
                self._setting(attempt, _NEEDED),
            )

        return self._questions.ask(question, deadline)

    def most_bytes(self, deadline: float) -> int | None:
        """How large a batch of records may be; None if the access may not read that."""
        return self._questions.ask(lambda attempt: self._setting(attempt, _MOST_BYTES), deadline)

    def _setting(self, attempt: Attempt, name: str) -> int | None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        asked = attempt.admin.describe_configs([resource], request_timeout=attempt.seconds)
        # It takes a right of its own.
        with suppress(LogAccessRefused):
            return int(attempt.answer(asked[resource])[name].value)
        return None

    def _describe(self, attempt: Attempt) -> Future[Any]:
        asked: Mapping[str, Future[Any]] = attempt.admin.describe_topics(
            TopicCollection([self.name]), request_timeout=attempt.seconds
        )
        return asked[self.name]

    def _asked(
        self,
        attempt: Attempt,
        partitions: list[int],
        spec: OffsetSpec,
        *,
        committed: bool = True,
    ) -> _Asked:
        if not partitions:
            return {}
        asked: _Asked = attempt.admin.list_offsets(
            {TopicPartition(self.name, partition): spec for partition in partitions},
            isolation_level=(
                IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
            ),
            request_timeout=attempt.seconds,
        )
        return asked


@dataclass(slots=True)
class _Described:
    """The question for the topic, asked at this time (monotonic) for partitions `beyond` its last
    count too.
    """

    attempt: Attempt
    future: Future[Any]
    at: float
    beyond: frozenset[int]
    took_seconds: float = 0.0

    def answered(self, at: float) -> None:
        """The answer has come. It is taken later."""
        self.took_seconds = at - self.at


def _gathered(attempt: Attempt, asked: _Asked, *, least: int = 0) -> dict[int, int]:
    found = {place.partition: int(attempt.answer(future).offset) for place, future in asked.items()}
    if any(offset < least for offset in found.values()):
        # If a broker goes away before it answers, librdkafka returns OFFSET_INVALID and no error.
        # Used as an offset it would become a position, and be committed.
        raise attempt.told(KafkaError(KafkaError._TRANSPORT))
    return found


@dataclass(frozen=True, slots=True)
class Awaited:
    """The question for the bounds of one partition, under way or answered."""

    attempt: Attempt
    start: Future[Any]
    end: Future[Any]

    @property
    def is_over(self) -> bool:
        """Whether both answers are there."""
        return self.start.done() and self.end.done()

    def answer(self) -> tuple[int, int] | None:
        """First and end offset; None: the partition has no leader, or the leader does not know it.

        To be called when it is over. Raises NoAnswer, LogAccessRefused.
        """
        if has_passing_error(self.start) or has_passing_error(self.end):
            return None
        try:
            found = [int(self.attempt.answer(one).offset) for one in (self.start, self.end)]
        except (LogUnavailable, LogNotFound) as error:
            if isinstance(error, NoAnswer | LogAccessRefused):
                raise
            return None
        if min(found) < 0:  # as `_gathered` finds
            raise NoAnswer("a broker went away before it answered")
        return found[0], found[1]


class AwaitedBounds:
    """Bounds of partitions, got without waiting for any of them for long.

    The partitions by which a topic has grown have no leader for a while, each for another one, and
    the brokers that make them answer late. Who waited for them would read nothing of all others
    meanwhile. librdkafka gives all answers of a question together: if a broker is lost, at the end
    of the attempt. For one thread at a time.
    """

    def __init__(
        self,
        begin: Callable[[Collection[int], float], Mapping[int, Awaited]],
        give_up: Callable[[Attempt], None],
    ) -> None:
        """`begin` asks. `give_up`: an attempt had no answer (`counterpoise.logs.kafka.answers`)."""
        self._begin = begin
        self._give_up = give_up
        self._asked: dict[int, Awaited] = {}
        self._seconds = AWAITED_SECONDS

    def ask(self, partitions: Iterable[int]) -> Iterable[Future[Any]]:
        """Asks for those of which no answer is awaited. Returns the answers to wait for.

        These are of new questions: others have been waited for.
        """
        late = {n: one for n, one in self._asked.items() if one.attempt.is_late}
        self._had_no_answer(one.attempt for one in late.values() if not one.is_over)
        for number, one in late.items():
            # The answers of a question that a lost broker held up come at its end.
            if not one.is_over or time.monotonic() >= one.attempt.until + AWAITED_SECONDS:
                del self._asked[number]
        new = [one for one in partitions if one not in self._asked]
        began = self._begin(new, self._seconds) if new else {}
        self._asked.update(began)
        return [future for one in began.values() for future in (one.start, one.end)]

    def answers(self, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """First and end offset of those that have answered. Raises LogAccessRefused."""
        found = {}
        without: list[Attempt] = []
        for number in partitions:
            one = self._asked[number]
            if not one.is_over:
                continue
            del self._asked[number]
            try:
                answer = one.answer()
            except NoAnswer:
                without.append(one.attempt)
            else:
                if answer is not None:
                    found[number] = answer
        self._had_no_answer(without)
        if found and not without:
            self._seconds = AWAITED_SECONDS
        return found

    def _had_no_answer(self, attempts: Iterable[Attempt]) -> None:
        for attempt in {*attempts}:
            self._give_up(attempt)
            self._seconds = min(AWAITED_GROWTH * self._seconds, LONGEST_AWAITED_SECONDS)

    def forget(self) -> list[AdminClient]:
        """Awaits no answer any more. Returns the clients that were asked."""
        asked, self._asked = self._asked, {}
        return [one.attempt.admin for one in asked.values()]


class Sizes:
    """The mean size in bytes of the values that wait to be read. A race between threads only
    costs a sample.
    """

    def __init__(
        self,
        sample: Callable[[int, int], list[int]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sample(partition, position)`: the sizes of a few messages from there."""
        self._sample = sample
        self._monotonic = monotonic
        self._mean_bytes: float | None = None
        self._sampled_at = 0.0

    def mean_bytes(self, begins: Mapping[int, int], backlogs: Mapping[int, int]) -> float:
        """At least 1. Takes a sample of the longest backlogs if the last sample is old."""
        now = self._monotonic()
        if self._mean_bytes is None or now >= self._sampled_at + _SAMPLE_EVERY_SECONDS:
            longest = sorted(
                (partition for partition in backlogs if backlogs[partition] > 0),
                key=lambda partition: (-backlogs[partition], partition),
            )[:SAMPLED_PARTITIONS]
            sizes = [
                size for partition in longest for size in self._sample(partition, begins[partition])
            ]
            if not sizes:
                return self._mean_bytes or 1.0
            self._mean_bytes = max(1.0, sum(sizes) / len(sizes))
            self._sampled_at = now
        return self._mean_bytes
