"""The sizes of a topic's messages, estimated from samples, because Kafka does not tell them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

SAMPLED_PARTITIONS = 3
SAMPLED_MESSAGES = 20
_SAMPLE_EVERY_SECONDS = 10.0


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
