"""Flows in the order in which the greedy balance takes from them and gives to them.

A ranking knows how many partitions count for each flow and finds, without looking at all flows, the
flow with the fewest and the flow with the most, ties to the earliest bound (the contract,
*Balance*, *Determinism*). Flows are known by their bind
number, their place in the order of binding.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Ranking:
    """Counts by bind number, bucketed by count.

    Each bucket is a heap of bind numbers; stale entries are skipped when met.
    """

    __slots__ = ("_bind_numbers", "_buckets", "_high", "_low", "_sizes", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._buckets: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._bind_numbers: list[int] = []
        self._low = 0
        self._high = 0

    def __len__(self) -> int:
        return len(self.counts)

    def __contains__(self, bind_number: int) -> bool:
        return bind_number in self.counts

    def put(self, bind_number: int, count: int) -> None:
        """Enters a flow, or changes its count."""
        old = self.counts.get(bind_number)
        if old == count:
            return
        if old is None:
            if not self.counts:
                self._low = self._high = count
            heappush(self._bind_numbers, bind_number)
            if len(self._bind_numbers) > 2 * len(self.counts) + 16:
                self._bind_numbers = sorted({*self.counts, bind_number})
        else:
            self._leave(old)
        self.counts[bind_number] = count
        bucket = self._buckets.get(count)
        if bucket is None:
            self._sizes[count], self._buckets[count] = 1, [bind_number]
        else:
            self._sizes[count] += 1
            heappush(bucket, bind_number)
            if len(bucket) > 2 * self._sizes[count] + 16:
                bucket[:] = {entry for entry in bucket if self.counts.get(entry) == count}
                heapify(bucket)
        if count < self._low:
            self._low = count
        if count > self._high:
            self._high = count

    def add(self, bind_number: int, difference: int) -> None:
        """Changes a flow's count by `difference`."""
        self.put(bind_number, self.counts[bind_number] + difference)

    def remove(self, bind_number: int) -> None:
        """Takes a flow out of the ranking."""
        self._leave(self.counts.pop(bind_number))

    def _leave(self, count: int) -> None:
        self._sizes[count] -= 1
        if not self._sizes[count]:
            del self._sizes[count], self._buckets[count]

    @property
    def low(self) -> int:
        """The smallest count; the ranking must not be empty."""
        while self._low not in self._sizes:
            self._low += 1
        return self._low

    @property
    def high(self) -> int:
        """The largest count; the ranking must not be empty."""
        while self._high not in self._sizes:
            self._high -= 1
        return self._high

    @property
    def spread(self) -> int:
        """The largest minus the smallest count, 0 without flows."""
        return self.high - self.low if self.counts else 0

    def fewest(self) -> int:
        """The bind number of the flow with the fewest partitions, the earliest bound of several."""
        return self._first(self.low)

    def most(self) -> int:
        """The bind number of the flow with the most partitions, the earliest bound of several."""
        return self._first(self.high)

    def earliest(self) -> int:
        """The bind number of the earliest-bound flow; the ranking must not be empty."""
        while self._bind_numbers[0] not in self.counts:
            heappop(self._bind_numbers)
        return self._bind_numbers[0]

    def _first(self, count: int) -> int:
        bucket = self._buckets[count]
        while self.counts.get(bucket[0]) != count:
            heappop(bucket)
        return bucket[0]

    def copy(self) -> Ranking:
        """An independent ranking with the same counts; takes time in proportion to the number of
        flows.
        """
        copy = Ranking()
        for bind_number, count in self.counts.items():
            copy.put(bind_number, count)
        return copy
