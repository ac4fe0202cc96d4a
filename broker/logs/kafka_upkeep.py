"""What the service does for a log in Kafka, which is little: a topic is Kafka's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.logs.ports import LogOwner
from counterpoise.logs.errors import LogRefused
from counterpoise.logs.kafka.log import KafkaLog


class KafkaUpkeep(KafkaLog):
    """See `ManagedLog`."""

    def trim(self, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        """Does nothing: what a topic keeps, and for how long, is for Kafka to decide."""
        for position in below.values():
            self.number(position)

    def ensure(
        self, partition_count: int, owner: LogOwner, begins: Mapping[int, str] | None = None
    ) -> str:
        """The topic's incarnation. Raises LogNotFound: topics are not made here."""
        return self._topic.shape(self._begin()).incarnation

    def partition_count(self) -> int:
        return self._topic.shape(self._begin()).partition_count

    def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Those of topics of the cluster; topics that are not there or refused are left out."""
        return self._topic.partition_counts(topics, self._begin())

    def set_partition_count(
        self, partition_count: int, revision: int, owner: LogOwner | None = None
    ) -> bool:
        """Raises LogRefused unless that is what the topic has."""
        if partition_count != self.partition_count():
            raise LogRefused(
                f"the partitions of topic {self.name!r} are Kafka's: add them there, "
                "and the queue follows"
            )
        return True

    def discard(self, partitions: Sequence[int], owner: LogOwner | None = None) -> frozenset[int]:
        """Raises LogRefused: a topic never loses partitions."""
        raise LogRefused(
            f"the partitions of topic {self.name!r} are Kafka's; none can be discarded"
        )

    def position_at(self, time: float) -> Mapping[int, str]:
        deadline = self._begin()
        partitions = range(self._topic.shape(deadline).partition_count)
        # Asked before the ends, so that an end given for want of such a message is not before it.
        found = self._topic.offsets_at(partitions, max(0, int(time * 1000)), deadline)
        _, ends = self._topic.bounds(partitions, deadline)
        return {
            partition: str(ends[partition] if offset < 0 else offset)
            for partition, offset in found.items()
        }

    def store_offsets(self, group: str, positions: Mapping[int, str]) -> None:
        """Store the positions as offsets of a consumer group. See `ConsumerGroup.store`."""
        offsets = {partition: self.number(position) for partition, position in positions.items()}
        self.consumer_group(group).store(offsets)

    def drop(self, owner: LogOwner) -> None:
        """Does nothing: the topic is not the queue's."""
