"""*Balance*, computed from numbers of partitions by trying all possibilities."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations


def is_balanced(held: Mapping[str, int], *, only: str | None = None) -> bool:
    """`held`: how many partitions each non-draining flow owns, when they own all partitions.
    `only`: the flow that must own all of them (exclusive access).
    """
    if not held:
        return True
    if only is not None:
        return held[only] == sum(held.values())
    return max(held.values()) - min(held.values()) <= 1


def fewest_handoffs(
    held: Mapping[str, int], partition_count: int, *, only: str | None = None
) -> int:
    """The smallest number of moves after which `partition_count` partitions are balanced.

    `held`: how many partitions each non-draining flow owns. The partitions missing to
    `partition_count` are unassigned or owned by draining flows, and any flow can get them. `only`:
    as above.
    """
    if not held:
        return 0
    if only is not None:
        return sum(count for flow, count in held.items() if flow != only)
    floor, extra = divmod(partition_count, len(held))
    return min(
        sum(max(0, count - floor - (flow in rich)) for flow, count in held.items())
        for rich in combinations(sorted(held), extra)
    )
