"""What the consumers of a group notice while one more joins, and what the join did."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A consumer was granted a partition, or told to give it up."""

    at: float
    member: str
    partition: int
    gained: bool


class Journal:
    """What the consumers of a group notice. Any thread may write."""

    def __init__(self, partitions: int) -> None:
        self.changes: list[Change] = []
        self.arrivals: list[list[float]] = [[] for _ in range(partitions)]

    def changed(self, member: str, partitions: Sequence[int], *, gained: bool) -> None:
        at = time.perf_counter()
        self.changes += [Change(at, member, number, gained) for number in partitions]

    def arrived(self, partition: int) -> None:
        self.arrivals[partition].append(time.perf_counter())


def owners(changes: Sequence[Change]) -> dict[int, str]:
    """Who has which partition after these changes."""
    found: dict[int, str] = {}
    for one in changes:
        if one.gained:
            found[one.partition] = one.member
        elif found.get(one.partition) == one.member:
            del found[one.partition]
    return found


def is_balanced(owned: Mapping[int, str], partitions: int, members: int) -> bool:
    """All partitions are owned, by so many members, evenly."""
    counts = Counter(owned.values())
    even = len(counts) == members and max(counts.values()) - min(counts.values()) <= 1
    return len(owned) == partitions and even


@dataclass(frozen=True)
class Join:
    """What a join did. The pauses are medians over the partitions that stay."""

    seconds: float
    moved: int
    revoked: int
    """Partitions that were revoked although they stay."""
    pause_seconds: float
    usual_seconds: float
    """The same without a join."""


def join_of(
    before: Sequence[Change],
    during: Sequence[Change],
    arrivals: Sequence[Sequence[float]],
    began: float,
    ended: float,
    quiet_seconds: float,
) -> Join:
    """The join between two moments, by the changes before and during it, after a quiet time."""
    first, last = owners(before), owners([*before, *during])
    staying = [number for number, owner in first.items() if last[number] == owner]
    lost = {one.partition for one in during if not one.gained}
    pauses = [longest_gap(arrivals[number], began, ended) for number in staying]
    usual = [longest_gap(arrivals[number], began - quiet_seconds, began) for number in staying]
    return Join(
        max(one.at for one in during) - began,
        len(first) - len(staying),
        sum(number in lost for number in staying),
        statistics.median(pauses),
        statistics.median(usual),
    )


def longest_gap(times: Sequence[float], began: float, ended: float) -> float:
    """The longest time without an arrival that overlaps with this one; it may begin before."""
    longest, last = 0.0, None
    for at in [one for one in times if one < ended] + [ended]:
        if last is not None and at > began:
            longest = max(longest, at - last)
        last = at
    return longest
