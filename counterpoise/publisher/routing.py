"""Which partition a message goes to, by what the log last said of its partitions."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.logs import Message
from counterpoise.logs.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Routing:
    """The log's partition count, or the hash ranges of a dynamic log."""

    partition_count: int
    ranges: Ranges | None = None

    def partition(self, message: Message, number: int) -> int:
        """`number`: the hash of the message's key (`hash_of`), or its turn if it has none."""
        if self.ranges is None:
            return number % self.partition_count
        if message.key is None:
            return self.ranges.nth(number)
        return self.ranges.of_hash(number).partition
