"""Flows in the order in which the greedy balance takes from them and gives to them.

A ranking knows how many partitions count for each flow and finds, without looking at all flows, the
flow with the fewest and the flow with the most, ties to the earliest bound (the contract,
*Balance*, *Determinism*). Flows are known by their seat, their place in the order of binding.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Ranking:
    """Counts by seat, bucketed by count; each bucket is a heap of seats with stale entries skipped
    when met.
    """

    __slots__ = ("_buckets", "_high", "_low", "_seats", "_sizes", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._buckets: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._seats: list[int] = []
        self._low = 0
        self._high = 0

    def __len__(self) -> int:
        return len(self.counts)

    def __contains__(self, seat: int) -> bool:
        return seat in self.counts

    def put(self, seat: int, count: int) -> None:
        """Enters a flow, or changes its count."""
        old = self.counts.get(seat)
        if old == count:
            return
        if old is None:
            if not self.counts:
                self._low = self._high = count
            heappush(self._seats, seat)
            if len(self._seats) > 2 * len(self.counts) + 16:
                self._seats = sorted({*self.counts, seat})
        else:
            self._leave(old)
        self.counts[seat] = count
        bucket = self._buckets.get(count)
        if bucket is None:
            self._sizes[count], self._buckets[count] = 1, [seat]
        else:
            self._sizes[count] += 1
            heappush(bucket, seat)
            if len(bucket) > 2 * self._sizes[count] + 16:
                bucket[:] = {entry for entry in bucket if self.counts.get(entry) == count}
                heapify(bucket)
        if count < self._low:
            self._low = count
        if count > self._high:
            self._high = count

    def add(self, seat: int, difference: int) -> None:
        """Changes a flow's count by `difference`."""
        self.put(seat, self.counts[seat] + difference)

    def remove(self, seat: int) -> None:
        """Takes a flow out of the ranking."""
        self._leave(self.counts.pop(seat))

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
        """The seat of the flow with the fewest partitions, the earliest bound of several."""
        return self._first(self.low)

    def most(self) -> int:
        """The seat of the flow with the most partitions, the earliest bound of several."""
        return self._first(self.high)

    def earliest(self) -> int:
        """The seat of the earliest-bound flow; the ranking must not be empty."""
        while self._seats[0] not in self.counts:
            heappop(self._seats)
        return self._seats[0]

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
        for seat, count in self.counts.items():
            copy.put(seat, count)
        return copy
