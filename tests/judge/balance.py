"""*Balance*, computed from numbers of partitions by trying all possibilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import NamedTuple


class Ask(NamedTuple):
    """What a flow is bound with: its weight, and how many partitions it takes at most. `least`: how
    many are pinned to it."""

    weight: int = 1
    most: int | None = None
    least: int = 0


Asks = Mapping[str, Ask]


def room(asks: Asks) -> int | None:
    """How many partitions these flows take together; None: any number."""
    every = [ask.most for ask in asks.values()]
    return None if None in every else sum(most for most in every if most is not None)


def is_short(partition_count: int, asks: Asks) -> bool:
    """Whether there are more partitions than all flows together take."""
    most = room(asks)
    return most is not None and most < partition_count


def shares(partition_count: int, asks: Asks) -> dict[str, Fraction]:
    """The share of each flow: by weight, where that is above its maximum the maximum, and where it
    is below its pins the pins. The others share the rest.
    """
    fixed: dict[str, Fraction] = {}
    while len(fixed) < len(asks):
        rest = partition_count - sum(fixed.values())
        free = {flow: ask for flow, ask in asks.items() if flow not in fixed}
        weights = sum(ask.weight for ask in free.values())
        by_weight = {flow: rest * Fraction(ask.weight, weights) for flow, ask in free.items()}
        kept = {flow: _within(by_weight[flow], ask) for flow, ask in free.items()}
        beyond = sum(kept.values()) - rest
        # Those that are raised stay if more is asked for than there is, else those that are cut.
        raised = {f: share for f, share in kept.items() if share > by_weight[f]}
        cut = {f: share for f, share in kept.items() if share < by_weight[f]}
        fixed.update(raised if beyond > 0 else cut if beyond < 0 else kept)
    return fixed


def _within(share: Fraction, ask: Ask) -> Fraction:
    most = share if ask.most is None else Fraction(ask.most)
    return max(Fraction(ask.least), min(share, most))


def is_balanced(
    held: Mapping[str, int],
    *,
    only: str | None = None,
    asks: Asks | None = None,
    partition_count: int | None = None,
) -> bool:
    """`held`: how many partitions each non-draining flow owns, when they own all partitions that
    they may. `only`: the flow that must own all of them (exclusive access). `asks`: None if nobody
    asks for anything. `partition_count`: those included that no flow takes.
    """
    if not held:
        return True
    if only is not None:
        return held[only] == sum(held.values())
    if asks is None:
        return max(held.values()) - min(held.values()) <= 1
    total = sum(held.values()) if partition_count is None else partition_count
    share = shares(total, asks)
    return all(abs(count - share[flow]) < 1 for flow, count in held.items())


def _balanced(partition_count: int, asks: Asks) -> Iterator[dict[str, int]]:
    """Every balanced distribution."""
    most = room(asks)
    total = partition_count if most is None else min(partition_count, most)
    share = shares(partition_count, asks)
    around = ({floor(share[flow]), ceil(share[flow])} for flow in asks)
    for counts in product(*around):
        if sum(counts) == total:
            yield dict(zip(asks, counts, strict=True))


def fewest_handoffs(
    held: Mapping[str, int],
    partition_count: int,
    *,
    only: str | None = None,
    asks: Asks | None = None,
) -> int:
    """The smallest number of moves after which `partition_count` partitions are balanced.

    `held`: how many partitions each non-draining flow owns. The partitions missing to
    `partition_count` are unassigned or owned by draining flows, and any flow can get them. `only`
    and `asks`: as above.
    """
    if not held:
        return 0
    if only is not None:
        return sum(count for flow, count in held.items() if flow != only)
    return min(
        sum(max(0, count - target[flow]) for flow, count in held.items())
        for target in _balanced(partition_count, asks or dict.fromkeys(held, Ask()))
    )
