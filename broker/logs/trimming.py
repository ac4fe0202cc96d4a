"""The positions below which a log may be trimmed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from counterpoise.logs.ranges import HashRange, parse_range

# Above every position of a log.
PASSED = 2**62


def trim_floor(
    committed: Iterable[Mapping[int, int | None]], keep_messages: int = 0
) -> dict[int, int]:
    """The position below which each partition may be trimmed, from the commits of all readers.

    One mapping {partition: position} for each queue that reads the log. A partition without a
    commit of one of them (absent or None) is not trimmed; without a reader no partition is (the
    contract, *Logs*). The last `keep_messages` that all have processed stay.
    """
    floor: dict[int, int] | None = None
    for positions in committed:
        known = {partition: at for partition, at in positions.items() if at is not None}
        if floor is None:
            floor = known
        else:
            floor = {
                partition: min(position, known[partition])
                for partition, position in floor.items()
                if partition in known
            }
    return {
        partition: position - keep_messages
        for partition, position in (floor or {}).items()
        if position >= keep_messages
    }


def with_passed(
    positions: Mapping[int, int | None], keys: Mapping[int, str]
) -> dict[int, int | None]:
    """A dynamic queue's positions, with those of partitions that it has finished and removed.

    `positions` has the partitions that the queue has now, `keys` all that the log ever had. A
    partition that the queue does not have was removed, or is not reported yet. A queue learns of a
    partition only after its parents, and keeps one until all its children are finished. So for each
    hash the latest partition (highest number) that the queue has tells: what is before it is over.
    No message of a removed partition is kept for this queue: it never reads there again.
    """
    ranges = {number: one for number, key in keys.items() if (one := parse_range(key)) is not None}
    firsts, latest = _latest(ranges[number] for number in positions if number in ranges)
    found = dict(positions)
    for number, one in ranges.items():
        if number not in positions and latest[bisect_right(firsts, one.first) - 1] > number:
            found[number] = PASSED
    return found


def _latest(ranges: Iterable[HashRange]) -> tuple[list[int], list[int]]:
    """From each hash of the first list on, the highest number of a range that has it; else -1."""
    by_number = sorted(ranges, key=lambda one: one.partition, reverse=True)
    firsts = sorted({0, *(edge for one in by_number for edge in (one.first, one.last + 1))})
    place = {first: index for index, first in enumerate(firsts)}
    latest = [-1] * len(firsts)
    # Where the next piece lies, from each on, that no higher number has taken.
    free = list(range(len(firsts) + 1))

    def next_free(index: int) -> int:
        while free[index] != index:
            free[index] = free[free[index]]
            index = free[index]
        return index

    for one in by_number:
        index = next_free(place[one.first])
        while firsts[index] <= one.last:
            latest[index] = one.partition
            free[index] = index + 1
            index = next_free(index)
    return firsts, latest
