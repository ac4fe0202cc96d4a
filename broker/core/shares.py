"""Shares by weight: how many partitions each flow is to have (docs, *Placement*).

Every flow has a *weight* and perhaps a *maximum*. A flow's share is P·w/W, as long as that is
within its maximum. What a flow with a maximum cannot take is shared by the others by weight, which
may bring others to their maximum, and so on (*water filling*). If all have their maximum, the rest
belongs to no flow. No share is less than the flow's pins (`pins`): of the others' shares so much is
missing. Shares are seldom whole numbers, so a flow has the floor or the ceiling of its share.

**One number for each flow.** Without weights the greedy balance (`assignment`) compares counts. By
weight it compares *levels*: 2·(count - floor of the share), and one more if the share is a whole
number. So the level is

- below 0 where the flow lacks a partition that it must have,
- 0 where it may have one more (its ceiling), 1 where it has exactly its whole share,
- 2 where it has its ceiling, above 2 where it has more than it may.

A queue is balanced when all levels are from 0 to 2. When every partition counts for a flow, this is
the case exactly when the largest level is at most 2 above the smallest. For if all are in such a
range that reaches above 2, the flows have more partitions together than there are, and fewer if it
reaches below 0.

**The fewest handoffs.** While the queue is not balanced, a step goes from the flow with the highest
level to the one with the lowest. There are two cases. Above 2 a flow has to give in any case, and
then some flow is at 0 or lower, because else more partitions would be held than there are. Below 0
a flow has to take in any case, and then some flow has its ceiling, of which there are too many. So
no step gives to a flow above its share or takes from one below it, as without weights.

With equal weights, without maxima and pins, levels are in the order of counts: every decision is
the same then. Queues whose flows all have weight 1, no maximum and no pin in force use a plain
`Ranking`, which knows nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from broker.core.structures import Ranking


class Demand(NamedTuple):
    """What a flow asks for: `most` groups of partitions at most (None: any number), and `least`,
    which are pinned to it."""

    weight: int
    most: int | None
    least: int = 0


class Shares(NamedTuple):
    """What each flow is to have, by bind number.

    `floors`: the floor of its share. `whole`: the flows whose share is a whole number. `total`: how
    many groups were shared out; of these `taken` have a place within the maxima.
    """

    total: int
    taken: int
    floors: Mapping[int, int]
    whole: frozenset[int]

    def ceiling(self, bind_number: int) -> int:
        """The most that the flow has in a balanced queue."""
        return self.floors[bind_number] + (bind_number not in self.whole)

    def level(self, bind_number: int, count: int) -> int:
        """Where a flow with so many groups stands."""
        return 2 * (count - self.floors[bind_number]) + (bind_number in self.whole)


def share_out(total: int, demands: Mapping[int, Demand]) -> Shares:
    """The shares of so many groups, of which all together ask for no more than there are;
    O(flows · log flows)."""
    # What a flow has that does not rise with the water: its pins until then, its maximum at last.
    still = {at: demand.least for at, demand in demands.items() if demand.least}
    rest = total - sum(still.values())
    weights = sum(demand.weight for at, demand in demands.items() if at not in still)
    turns = [(least / demands[at].weight, False, at) for at, least in still.items()]
    turns += [(d.most / d.weight, True, at) for at, d in demands.items() if d.most is not None]
    for _, is_full, at in sorted(turns):
        weight, most, least = demands[at]
        reached = (most or 0) if is_full else least
        if rest * weight <= weights * reached:
            break
        if is_full:
            still[at] = reached
            rest, weights = rest - reached, weights - weight
        else:
            del still[at]
            rest, weights = rest + reached, weights + weight
    floors, whole = still, {*still}
    for at, demand in demands.items():
        if at not in still:
            floors[at], remainder = divmod(rest * demand.weight, weights)
            if not remainder:
                whole.add(at)
    return Shares(total, total if weights else total - rest, floors, frozenset(whole))


class WeightedRanking(Ranking):
    """A ranking by level. Counts are put and read as in every ranking; `low`, `high`, `fewest` and
    `most` speak of levels.

    Levels are made anew, in a pass over all flows, when they are first asked for after flows or the
    number of groups have changed.
    """

    __slots__ = ("_demand", "_levels", "_shares", "_total")

    stride = 2

    def __init__(self, total: Callable[[], int], demand: Callable[[int], Demand]) -> None:
        """`total`: how many groups are to be shared out; `demand`: what the flow of a bind number
        asks for."""
        super().__init__()
        self._total = total
        self._demand = demand
        self._levels = Ranking()
        self._shares: Shares | None = None

    def put(self, bind_number: int, count: int) -> None:
        """Enters a flow, or changes its count."""
        if bind_number not in self.counts:
            self._shares = None
        self.counts[bind_number] = count
        if self._shares is not None:
            self._levels.put(bind_number, self._shares.level(bind_number, count))

    def remove(self, bind_number: int) -> None:
        """Takes a flow out of the ranking."""
        del self.counts[bind_number]
        self._shares = None

    def forget_shares(self) -> None:
        """What flows ask for has changed."""
        self._shares = None

    @property
    def shares(self) -> Shares:
        """The shares of the flows that there are now."""
        total = self._total()
        if self._shares is None or self._shares.total != total:
            demands = {bind_number: self._demand(bind_number) for bind_number in self.counts}
            self._shares = share_out(total, demands)
            self._levels = Ranking()
            for bind_number, count in self.counts.items():
                self._levels.put(bind_number, self._shares.level(bind_number, count))
        return self._shares

    def _by_level(self) -> Ranking:
        assert self.shares
        return self._levels

    @property
    def low(self) -> int:
        """The lowest level; the ranking must not be empty."""
        return self._by_level().low

    @property
    def high(self) -> int:
        """The highest level; the ranking must not be empty."""
        return self._by_level().high

    @property
    def is_even(self) -> bool:
        """Whether every flow is within its share, if all partitions count for flows."""
        return self.spread <= self.stride

    @property
    def is_full(self) -> bool:  # type: ignore[override]
        """Whether there are more groups than all flows may have, and each has its maximum."""
        shares = self.shares
        return shares.taken < shares.total and bool(self.counts) and self.low >= 1

    def levels(self) -> dict[int, int]:
        """The level of each flow."""
        return dict(self._by_level().counts)

    def even_levels(self) -> tuple[int, int]:
        """The lowest and the highest level in a balanced queue."""
        return 0, 2

    def targets(self, total: int) -> tuple[Mapping[int, int], Set[int], int]:
        """As of `Ranking`, within the maxima."""
        shares = self.shares
        ceilings = shares.taken - sum(shares.floors.values())
        return shares.floors, shares.floors.keys() - shares.whole, ceilings

    def fewest(self) -> int:
        """The bind number of the flow with the lowest level, the earliest bound of several."""
        return self._by_level().fewest()

    def most(self) -> int:
        """The bind number of the flow with the highest level, the earliest bound of several."""
        return self._by_level().most()

    def earliest(self) -> int:
        """The bind number of the earliest-bound flow; the ranking must not be empty."""
        return self._by_level().earliest()

    def copy(self) -> WeightedRanking:
        """An independent ranking with the same counts, of the same flows."""
        copy = WeightedRanking(self._total, self._demand)
        copy.counts.update(self.counts)
        return copy
