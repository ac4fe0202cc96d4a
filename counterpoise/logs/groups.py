"""The numbers of the partitions of aligned logs (the contract, *Aligned logs*).

Partition p of log i of n is partition p * n + i of all of them. So equal partition numbers of the
logs are neighbours, a *group*, and no partition changes its number when the logs are resized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from counterpoise.logs.port import Bounds

T = TypeVar("T")


def place(number: int, width: int) -> tuple[int, int]:
    """Which of `width` aligned logs a partition is in, and its number there."""
    return number % width, number // width


def parted(items: Mapping[int, T], width: int) -> list[dict[int, T]]:
    """For each of the logs what belongs to it, by the partition's number there."""
    found: list[dict[int, T]] = [{} for _ in range(width)]
    for number, item in items.items():
        which, partition = place(number, width)
        found[which][partition] = item
    return found


def joined(parts: Sequence[Mapping[int, T]]) -> dict[int, T]:
    """The reverse of `parted`."""
    width = len(parts)
    found = {p * width + i: item for i, part in enumerate(parts) for p, item in part.items()}
    return dict(sorted(found.items()))


def joined_bounds(parts: Sequence[Bounds]) -> Bounds:
    """The bounds of the logs as those of one.

    While one log is resized and the others are not yet, the largest count is that of all: no end
    is final before. The cuts of resizes are left out.
    """
    return Bounds(
        len(parts) * max(part.partition_count for part in parts),
        "+".join(part.incarnation for part in parts),
        joined([part.starts for part in parts]),
        joined([part.ends for part in parts]),
    )
