"""The cluster of one log: librdkafka's clients, and the cluster's answers about the topic.

The clients are made when needed, shared if possible, and never used after a fork. A client has
several threads and connections. Threads do not survive a fork, and closing a client without its
threads blocks for ever. So a forked child does not use inherited clients and never deallocates them
(`leave_alone`); it makes its own clients.

The answers are the topic's id, its partitions, their starts and ends. Every question is bounded by
a deadline. No question creates a topic, even if the cluster would create one for a question. The
answers are not from one instant, because Kafka has no such query. The count is asked first: a topic
only grows, so all counted partitions have bounds. Starts and ends are asked at once, and an end is
the last stable offset, because records of an open transaction cannot be read yet. The cluster does
not tell the sizes of messages, so they are estimated from samples (`Sizes`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
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
from confluent_kafka.admin import AdminClient, OffsetSpec

from counterpoise.logs.errors import LogError
from counterpoise.logs.kafka.access import Access, Failures, librdkafka_logger
from counterpoise.logs.kafka.appender import PRODUCER
from counterpoise.logs.kafka.reader import CONSUMER

# There are few reads at a time, and an idle consumer costs little.
IDLE_CONSUMERS = 4
_GROUP = "counterpoise"

# The time limits for a question that librdkafka accepts.
_LEAST_SECONDS = 0.1
_MOST_SECONDS = 3600.0
# The answer instead of an offset if no message is as late as requested.
_NONE = -1
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

SAMPLED_PARTITIONS = 3
SAMPLED_MESSAGES = 20
_SAMPLE_EVERY_SECONDS = 10.0


class Clients:
    """The clients of one log. Thread-safe."""

    def __init__(self, access: Access, trouble: Failures) -> None:
        self._access = access
        self._trouble = trouble
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._idle: list[Consumer] = []

    def admin(self) -> AdminClient:
        """The client for questions. Raises LogError if the access is not valid."""
        with self._lock:
            if self._admin is None:
                self._admin = self._make(AdminClient, "admin", {})
            return self._admin

    def producer(self) -> Producer:
        """A new producer, which the caller keeps. Raises LogError if the access is not valid."""
        producer: Producer = self._make(Producer, "producer", PRODUCER)
        return producer

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A consumer for one reader at a time; it is unassigned afterwards."""
        with self._lock:
            consumer = self._idle.pop() if self._idle else None
        if consumer is None:
            consumer = self._make(Consumer, "consumer", {"group.id": _GROUP, **CONSUMER})
        made_in = os.getpid()
        try:
            yield consumer
        finally:
            if os.getpid() != made_in:
                # The fork happened during a read.
                leave_alone(consumer)
            else:
                self._give_back(consumer)

    def close(self) -> None:
        """Close unused clients. Clients are made anew when needed."""
        with self._lock:
            idle, self._idle = self._idle, []
            # An admin client ends when the last question is answered.
            self._admin = None
        for consumer in idle:
            consumer.close()

    def abandon(self) -> None:
        """In a forked child: forget all clients without touching them."""
        self._lock = threading.Lock()
        leave_alone(self._admin, *self._idle)
        self._admin = None
        self._idle = []

    def _give_back(self, consumer: Consumer) -> None:
        try:
            consumer.unassign()
        except (KafkaException, RuntimeError):
            consumer.close()
            return
        with self._lock:
            if len(self._idle) < IDLE_CONSUMERS:
                self._idle.append(consumer)
                return
        consumer.close()

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
    """The topic's partition count and incarnation.

    `incarnation` is the topic's id. Clusters before Kafka 2.8 have no such id; then it is the
    cluster's id and the topic's name, which do not change if the topic is made again.
    """

    partition_count: int
    incarnation: str


class Topic:
    """One topic, asked through an admin client. Thread-safe."""

    def __init__(self, name: str, admin: Callable[[], AdminClient], trouble: Failures) -> None:
        """`admin` returns the client for questions; it may make a new one."""
        self.name = name
        self._admin = admin
        self._trouble = trouble

    def shape(self, deadline: float) -> Shape:
        """The current topic. Raises LogNotFound, and LogUnavailable at the deadline (monotonic)."""
        admin = self._admin()
        asked = admin.describe_topics(TopicCollection([self.name]), request_timeout=_left(deadline))
        topic = self._answer(asked[self.name], deadline)
        topic_id = "" if topic.topic_id is None else str(topic.topic_id)
        if not topic_id or topic_id == _NO_TOPIC_ID:
            cluster = self._answer(
                admin.describe_cluster(request_timeout=_left(deadline)), deadline
            )
            topic_id = f"{cluster.cluster_id}/{self.name}"
        return Shape(len(topic.partitions), topic_id)

    def bounds(
        self, partitions: Iterable[int], deadline: float
    ) -> tuple[dict[int, int], dict[int, int]]:
        """First and end offset of each of these partitions, which must exist."""
        wanted = list(partitions)
        starts = self._ask(wanted, OffsetSpec.earliest(), deadline)
        ends = self._ask(wanted, OffsetSpec.latest(), deadline)
        return self._gather(starts, deadline), self._gather(ends, deadline)

    def offsets_at(
        self, partitions: Iterable[int], milliseconds: int, deadline: float
    ) -> dict[int, int]:
        """The first offset at or after a time; -1 if there is none."""
        spec = OffsetSpec.for_timestamp(milliseconds)
        return self._gather(self._ask(list(partitions), spec, deadline), deadline, least=_NONE)

    def _ask(
        self, partitions: list[int], spec: OffsetSpec, deadline: float
    ) -> Mapping[TopicPartition, Future[Any]]:
        if not partitions:
            return {}
        asked: Mapping[TopicPartition, Future[Any]] = self._admin().list_offsets(
            {TopicPartition(self.name, partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_left(deadline),
        )
        return asked

    def _gather(
        self, asked: Mapping[TopicPartition, Future[Any]], deadline: float, *, least: int = 0
    ) -> dict[int, int]:
        found = {
            place.partition: int(self._answer(future, deadline).offset)
            for place, future in asked.items()
        }
        if any(offset < least for offset in found.values()):
            # If a broker goes away before it answers, librdkafka returns OFFSET_INVALID and no
            # error. Used as an offset it would become a position, and be committed.
            raise self._told(KafkaException(KafkaError(KafkaError._TRANSPORT)))
        return found

    def _answer(self, future: Future[Any], deadline: float) -> Any:
        try:
            # librdkafka answers by the deadline; a little after it, no answer will come.
            answer = future.result(_left(deadline) + 1.0)
        except KafkaException as failed:
            raise self._told(failed) from None
        except TimeoutError:
            raise self._trouble.too_late("an answer about the topic") from None
        self._trouble.clear()
        return answer

    def _told(self, failed: KafkaException) -> LogError:
        # Connection errors come as events, and this call serves events.
        self._admin().poll(0)
        return self._trouble.told(failed.args[0])


def _left(deadline: float) -> float:
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, deadline - time.monotonic()))


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
