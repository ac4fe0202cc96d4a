"""What the consumers of a group say that they own, which messages they get, and what follows.

The same observer stands beside every kind of consumer. A consumer *says* that it gained or lost a
partition (its callbacks), and a message is *delivered* when the program has it.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.joins import Change, is_balanced, longest_gap


class Delivery(NamedTuple):
    """A consumer got a message."""

    at: float
    member: str
    offset: int


class Observer:
    """What the consumers of a group notice. Any thread may write."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.owned: dict[int, str] = {}
        """The owner of each partition, as the consumers say."""
        self.deliveries: defaultdict[int, list[Delivery]] = defaultdict(list)
        self._epochs: dict[int, int] = {}
        self._lock = threading.Lock()

    def changed(
        self, member: str, partitions: Sequence[int], *, gained: bool, epoch: int = 0
    ) -> None:
        """The consumer has these partitions now, or has them no more.

        A consumer that has no time says it late: what concerns an earlier epoch does not count.
        """
        with self._lock:
            at = time.perf_counter()
            for number in partitions:
                if epoch < self._epochs.get(number, 0):
                    continue
                self._epochs[number] = epoch
                if gained:
                    self.owned[number] = member
                elif self.owned.get(number) == member:
                    del self.owned[number]
                else:  # another one has it, or it was said before
                    continue
                self.changes.append(Change(at, member, number, gained))

    def arrived(self, member: str, partition: int, offset: int) -> None:
        """The consumer got this message."""
        with self._lock:
            self.deliveries[partition].append(Delivery(time.perf_counter(), member, offset))

    def left(self, member: str) -> None:
        """The consumer has ended, so it owns nothing."""
        with self._lock:
            own = [number for number, owner in self.owned.items() if owner == member]
        for number in own:
            self.changed(member, [number], gained=False, epoch=self._epochs[number])

    def balanced(self, partitions: int, members: int) -> bool:
        """All partitions are owned, by so many consumers, evenly."""
        with self._lock:
            return len(self.owned) == partitions and is_balanced(self.owned, partitions, members)

    def quiet_since(self, at: float) -> bool:
        """Nothing has changed since then."""
        return not self.changes or self.changes[-1].at < at

    def all_delivering(self, partitions: Iterable[int], since: float) -> bool:
        """A message of each of these partitions was delivered since then."""
        return all(
            self.deliveries[number] and self.deliveries[number][-1].at >= since
            for number in partitions
        )

    def receivers(self, at: float) -> dict[int, str]:
        """Who got the last message of each partition before this moment."""
        found = {}
        for number, of in self.deliveries.copy().items():
            place = bisect_left(of, (at,))
            if place:
                found[number] = of[place - 1].member
        return found

    def pause(self, partition: int, began: float, ended: float) -> float:
        """The longest time between two deliveries that overlaps with this one."""
        of = self.deliveries[partition]
        some = of[max(0, bisect_right(of, (began,)) - 1) : bisect_left(of, (ended,))]
        return longest_gap([one.at for one in some], began, ended)

    def first_to(self, member: str) -> float | None:
        """When the consumer got its first message."""
        found = (
            one.at
            for of in self.deliveries.copy().values()
            for one in of[:]
            if one.member == member
        )
        return min(found, default=None)

    def repeated(self, began: float = 0.0, ended: float = float("inf")) -> int:
        """Messages that were delivered at that time although they had been delivered before."""
        count = 0
        for of in self.deliveries.copy().values():
            seen = set()
            for one in of[:]:
                count += one.offset in seen and began <= one.at < ended
                seen.add(one.offset)
        return count

    def arrived_offsets(self) -> dict[int, set[int]]:
        """The offsets of the messages that were delivered, by partition."""
        return {n: {one.offset for one in of[:]} for n, of in self.deliveries.copy().items()}

    def out_of_order(self) -> int:
        """Messages that were delivered for the first time after a later one of their partition."""
        count = 0
        for of in self.deliveries.copy().values():
            seen, last = set[int](), -1
            for one in of[:]:
                count += one.offset < last and one.offset not in seen
                seen.add(one.offset)
                last = max(last, one.offset)
        return count


@dataclass(frozen=True, slots=True)
class Moves:
    """What became of partitions in a time."""

    moved: int
    """How often a partition got another owner."""
    given_back: int
    """How often an owner had to give up a partition and then got it again."""
    ownerless_seconds: float
    """The sum over all partitions of the time without an owner."""
    longest_seconds: float
    """The longest time that one partition was without an owner."""


def moves(changes: Sequence[Change], began: float, ended: float) -> Moves:
    """What became of partitions between two moments, by all changes so far."""
    owner: dict[int, str] = {}
    since: dict[int, float] = {}
    moved = given_back = 0
    total = longest = 0.0

    def counted(number: int, until: float) -> None:
        nonlocal total, longest
        seconds = max(0.0, min(until, ended) - max(since.pop(number), began))
        total, longest = total + seconds, max(longest, seconds)

    for one in changes:
        if one.at >= ended:
            break
        if not one.gained:
            since[one.partition] = one.at
            continue
        if one.at >= began and one.partition in owner:
            moved += owner[one.partition] != one.member
            given_back += owner[one.partition] == one.member
        owner[one.partition] = one.member
        if one.partition in since:
            counted(one.partition, one.at)
    for number in [*since]:
        counted(number, ended)
    return Moves(moved, given_back, total, longest)


def least_moves(before: Counter[str], members: Sequence[str], partitions: int) -> int:
    """The fewest partitions that can get another owner so that these consumers own all of them,
    as many each as the others, or one more. Those without an owner are not counted.
    """
    small, larger = divmod(partitions, len(members))
    kept = sorted((before[one] for one in members), reverse=True)
    stay = sum(min(count, small + (place < larger)) for place, count in enumerate(kept))
    return before.total() - stay
