"""The cluster's answers about a topic: its id, its partitions, their starts and ends.

Every question is bounded by a deadline. No question creates a topic, even if the cluster would
create one for a question.

The answers are not from one instant, because Kafka has no such query. The count is asked first: a
topic only grows, so all counted partitions have bounds. Starts and ends are asked at once, and an
end is the last stable offset, because records of an open transaction cannot be read yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from counterpoise.logs.errors import LogError
from counterpoise.logs.kafka.failures import Trouble

# The time limits for a question that librdkafka accepts.
_LEAST_SECONDS = 0.1
_MOST_SECONDS = 3600.0
# The answer instead of an offset if no message is as late as requested.
_NONE = -1
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


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

    def __init__(self, name: str, admin: Callable[[], AdminClient], trouble: Trouble) -> None:
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
