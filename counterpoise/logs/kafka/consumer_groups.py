"""Consumer groups of the cluster: their offsets in the log's topic, read and written from outside.

A group's offsets are those that its members have committed. Outside of a queue they mean the same
as a position: the next message to read. So a queue can begin where a group has stopped, and a group
can continue where a queue has stopped.

* **Reading.** Members commit at any time. So ask for the members first: once a group has none, all
  commits of former members are in its offsets. Kafka refuses commits of members that it has given
  up. Offsets of a transaction that is still open are waited for (`require_stable`).
* **Writing.** It is a commit without a member and a generation. Kafka accepts it only while the
  group has no members (classic groups and those of KIP-848 alike); its coordinator checks this, so
  nothing can come in between. All offsets go in one request. Offsets in other topics stay.
* **Consumers without membership** (`assign` and commit, as Flink and Spark's own jobs do) are in no
  list of members, and their commits are accepted at any time. Nothing here can notice them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from counterpoise.logs.errors import LogRefused
from counterpoise.logs.kafka.answers import Attempt, Questions

# What Kafka answers to a commit without a member if the group has members.
_IN_USE = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.NON_EMPTY_GROUP,
    }
)


class ConsumerGroup:
    """One group, and its offsets in one topic. Thread-safe.

    Every call raises LogUnavailable, LogAccessRefused, and LogNotFound without the topic.
    """

    def __init__(
        self, name: str, topic: str, questions: Questions, begin: Callable[[], float]
    ) -> None:
        """`begin` returns the deadline of a call that begins."""
        self.name = name
        self._topic = topic
        self._questions = questions
        self._begin = begin

    def members(self) -> tuple[str, ...]:
        """The active members, each as `CLIENT_ID at HOST`; none if there is no such group."""

        def question(attempt: Attempt) -> tuple[str, ...]:
            asked = attempt.admin.describe_consumer_groups(
                [self.name], request_timeout=attempt.seconds
            )
            described = attempt.answer(asked[self.name])
            return tuple(f"{one.client_id} at {one.host.lstrip('/')}" for one in described.members)

        return self._questions.ask(question, self._begin())

    def offsets(self) -> dict[int, int]:
        """The offset of each partition of the topic that has one."""

        def question(attempt: Attempt) -> dict[int, int]:
            asked = attempt.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self.name)],
                require_stable=True,
                request_timeout=attempt.seconds,
            )
            found: dict[int, int] = {}
            for place in attempt.answer(asked[self.name]).topic_partitions:
                if place.topic == self._topic:
                    if place.error is not None:
                        raise attempt.told(place.error)
                    if place.offset >= 0:
                        found[place.partition] = place.offset
            return found

        return self._questions.ask(question, self._begin())

    def store(self, offsets: Mapping[int, int]) -> None:
        """Store the offsets of these partitions; others keep theirs. A new group is made.

        Raises LogRefused if the group has members; then nothing has changed, unless they came
        within this call.
        """
        places = [TopicPartition(self._topic, *one) for one in sorted(offsets.items())]

        def question(attempt: Attempt) -> None:
            asked = attempt.admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self.name, places)], request_timeout=attempt.seconds
            )
            for place in attempt.answer(asked[self.name]).topic_partitions:
                if place.error is None:
                    continue
                if place.error.code() in _IN_USE:
                    raise LogRefused(
                        f"the consumer group {self.name!r} has active members, so Kafka takes no "
                        "offsets for it: stop these consumers, or choose another group"
                    )
                raise attempt.told(place.error)

        self._questions.ask(question, self._begin())
