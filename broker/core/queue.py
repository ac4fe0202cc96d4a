"""A queue: its flows, partitions and handoffs, and what can be said of them.

Only `replay` changes a queue. Every change goes through the journal (`structures`), and partitions
change hands only in `placement`, which keeps the counts right that the balance works with.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from broker.core.barriers import KnownResize
from broker.core.budget import Moves
from broker.core.graph import Lineage
from broker.core.indexes import QueueFlows, QueueHandoffs, QueuePins
from broker.core.model import (
    Absent,
    AccessType,
    Flow,
    HandedOver,
    Instance,
    Partition,
    Rebalance,
    Settings,
)
from broker.core.pauses import QueuePauses
from broker.core.shares import Demand, WeightedRanking
from broker.core.structures import Journal, Ranking
from broker.core.transitions import State, Status


class Queue:
    """One queue, as far as the rebalancer is concerned.

    `partitions` has those of a fixed queue that were removed, too: a number may come again. Those
    that are configured have the lowest numbers.

    `resize` is what is known of the log's last resize (`barriers`). `lineage` is the graph of a
    dynamic queue. `pauses` has what is paused, `pins` who is wanted where.

    Beside the partitions stand the few of which something is to be done: `unassigned` (since when,
    None: never owned), those that are `retiring`, and `handoffs`. `ranking` and `leaving` are the
    counts of the balance (`placement`). `moved` is what keys have taken from others (`budget`).
    `touched` collects the flows whose views changed.
    """

    def __init__(self, id: str, name: str, settings: Settings, created_at: float) -> None:
        self.id = id
        self.name = name
        self.settings = settings
        self.created_at = created_at
        self.revision = 0
        self.status = Status.READY
        self.trigger: str | None = None
        self.since = created_at
        self.holddown_until: float | None = None
        self.flows_before = 0
        self.absent: dict[Instance, Absent] = {}
        self.rebalance: Rebalance | None = None
        self.last_rebalance: Rebalance | None = None
        self.growing = False
        self.outage_seen = 0
        self.resize = KnownResize()
        self.next_bind_number = 0
        self.flows = QueueFlows()
        self.moved: dict[str, Moves] = {}
        self.pauses = QueuePauses()
        self.pins = QueuePins()
        self.partitions: dict[int, Partition] = {}
        self.touched: set[str] = set()
        self.retiring: set[int] = set()
        self.unassigned: dict[int, float | None] = {}
        self.handoffs = QueueHandoffs()
        self.ranking = Ranking()
        self.leaving = Ranking()
        self.journal = Journal()
        dynamic = settings.partitioning == "dynamic"
        self.lineage: Lineage | None = Lineage(self.journal) if dynamic else None

    @property
    def exclusive(self) -> bool:
        return self.settings.access_type == AccessType.EXCLUSIVE

    @property
    def share_count(self) -> int:
        """*P* of the contract's rules: what takes part in the balance, 1 for an exclusive queue."""
        return 1 if self.exclusive else self.group_count

    @property
    def group_count(self) -> int:
        """How many groups take part in the balance; without aligned partitions each is its own."""
        return self.settings.partition_count // self.settings.aligned

    def groups_to_share(self) -> int:
        """As `group_count`."""
        return self.group_count

    def demand(self, bind_number: int) -> Demand:
        """What this flow asks for of the balance."""
        flow = self.flows.by_bind_number[bind_number]
        return Demand(flow.weight, self.most_groups(flow.max_partitions), flow.pinned)

    @property
    def over_capacity(self) -> int:
        """How many partitions are more than the maxima of all flows have room for; 0 without flows
        that take part."""
        if not isinstance(self.ranking, WeightedRanking) or not self.takers:
            return 0
        shares = self.ranking.shares
        return (shares.total - shares.taken) * self.settings.aligned

    def most_groups(self, max_partitions: int | None) -> int | None:
        """How many groups so many partitions have room for; None: any number."""
        return None if max_partitions is None else max_partitions // self.settings.aligned

    def group(self, number: int) -> range:
        """The aligned partitions, this one among them: they change hands together."""
        aligned = self.settings.aligned
        first = number - number % aligned
        return range(first, first + aligned)

    def leads(self, number: int) -> bool:
        """Whether the partition is the first of its group. Only those are counted and chosen."""
        return number % self.settings.aligned == 0

    @property
    def takers(self) -> int:
        """*F* of the contract's rules: how many non-draining flows are bound and not held back."""
        return len(self.ranking.counts)

    @property
    def operational_partition_count(self) -> int:
        """Partitions that exist: those that retire, wait or are finished are included."""
        apart = self.lineage.apart if self.lineage is not None else 0
        return self.settings.partition_count + len(self.retiring) + apart

    @property
    def scale_status(self) -> str:
        """`ScalingDown` while partitions retire, `ScalingUp` while added ones are being balanced,
        else `Ready`.
        """
        if self.retiring:
            return "ScalingDown"
        return "ScalingUp" if self.growing else "Ready"

    @property
    def next_rebalance_id(self) -> int:
        return (
            max((entry.id for entry in (self.rebalance, self.last_rebalance) if entry), default=0)
            + 1
        )

    def exists(self, number: int) -> bool:
        """Whether there is a partition of this number that was not removed."""
        partition = self.partitions.get(number)
        return partition is not None and partition.state is not State.REMOVED

    def existing(self, after: int = -1) -> Iterator[Partition]:
        """The partitions above this number that exist, lowest number first. What is skipped are
        removed ones of a fixed queue."""
        end = len(self.partitions) if self.retiring else self.settings.partition_count
        numbers = range(after + 1, end) if self.lineage is None else self.lineage.above(after)
        found = (self.partitions[number] for number in numbers)
        return (partition for partition in found if partition.state is not State.REMOVED)

    # The balance (`assignment`)

    @property
    def is_balanced(self) -> bool:
        """Whether there is nothing to grant, nothing under way and nothing to hand off."""
        return self._is_placed and self._is_even

    @property
    def is_settled(self) -> bool:
        """Whether a queue that is Ready may stay so: it is balanced, or only its spread is above 1
        and it is dynamic (the contract, *Lineage*)."""
        return self._is_placed and (self.lineage is not None or self._is_even)

    @property
    def _is_placed(self) -> bool:
        """Whether nothing is under way, and every partition is with a flow that may keep it."""
        if self.handoffs or self.pins.misplaced:
            return False
        if not self.takers or not (self.unassigned or self.is_drained_from):
            return True
        # What no flow may take stays where it is.
        return self.ranking.is_full

    @property
    def _is_even(self) -> bool:
        if not self.takers:
            return True
        if self.exclusive:
            return self.first_taker().load == self.group_count
        return self.ranking.is_even or self.ranking.is_full

    @property
    def is_drained_from(self) -> bool:
        """Whether draining flows have partitions that are not on their way to others."""
        return bool(self.leaving.counts) and self.leaving.high > 0

    # Deploys (`pairs`)

    def next_pair(self) -> tuple[Flow, Flow] | None:
        """A flow that drains and one that has nothing, neither of them a standby; None if there is
        no such pair. Where flows have weights, both have the same weight and maximum."""
        if not (
            self.is_drained_from
            and self.ranking.counts
            and self.flows_before <= self.share_count
            and not self.exclusive
        ):
            return None
        if self.flows.weighted or self.pins.homes:
            return self._pair_alike()
        if self.ranking.low > 0:
            return None
        leaving, taking = self.leaving.most(), self.ranking.fewest()
        return self.flows.by_bind_number[leaving], self.flows.by_bind_number[taking]

    def _pair_alike(self) -> tuple[Flow, Flow] | None:
        """Of the flows that drain the one with the most that has its like, the earliest bound of
        several; and of those the earliest bound."""
        idle = dict[tuple[int, int | None], int]()
        for bind_number, count in self.ranking.counts.items():
            if not count:
                alike = self.flows.by_bind_number[bind_number].asks
                idle[alike] = min(bind_number, idle.get(alike, bind_number))
        leaving = [(-count, at) for at, count in self.leaving.counts.items() if count]
        for _, bind_number in sorted(leaving):
            taking = idle.get(self.flows.by_bind_number[bind_number].asks)
            if taking is not None:
                return self.flows.by_bind_number[bind_number], self.flows.by_bind_number[taking]
        return None

    @property
    def awaits_pair(self) -> bool:
        """Whether flows have come or begun to drain, and are to wait or to be balanced."""
        return self.is_drained_from or not self._is_even

    @property
    def ends_drains(self) -> bool:
        """Whether the loop only waits for handoffs of draining flows to end."""
        return (
            self.status is Status.REBALANCING
            and self.holddown_until is None
            and not self.exclusive
            and self.takers <= self.share_count
            and not self.awaits_pair
            and len(self.handoffs)
            == sum(self.flows.by_bind_number[number].outgoing for number in self.leaving.counts)
        )

    @property
    def is_idle(self) -> bool:
        """Whether there is something to take, and nobody who takes it but flows held back."""
        return bool(
            self.flows.held
            and (not self.takers or self.ranking.is_full)
            and (self.unassigned or self.handoffs.without_successor or self.is_drained_from)
        )

    def first_taker(self) -> Flow:
        """The earliest-bound non-draining flow, if there is any: it owns an exclusive queue."""
        return self.flows.by_bind_number[self.ranking.earliest()]

    def least_loaded(self, ranking: Ranking) -> Flow | None:
        """The flow that gets the next partition; None if no non-draining flow may have one more.

        `ranking` has the counts: those of the queue, or those that are planned.
        """
        if not ranking.counts or ranking.is_full:
            return None
        return self.first_taker() if self.exclusive else self.flows.by_bind_number[ranking.fewest()]

    def spread(self) -> int:
        """The largest minus the smallest number of groups that flows own which take part in the
        balance; O(flows).
        """
        numbers = [
            len(flow.owned) - len(flow.owned & self.retiring)
            for flow in self.flows.values()
            if flow.takes
        ]
        return (max(numbers) - min(numbers)) // self.settings.aligned if numbers else 0

    def next_deadline(self) -> float | None:
        """When the holddown, a warm-up, a handoff, a pause or a flow's wait for the budget ends
        next, or the log's cuts are due.
        """
        drains = [
            flow.drain_deadline
            for bind_number in self.leaving.counts
            if (flow := self.flows.by_bind_number[bind_number]).drain_deadline is not None
            and self.cuts_short(flow)
        ]
        handoff = self.handoffs.first_deadline() if self.handoffs else None
        held = [flow.held_until for flow in self.flows.held.values()]
        pause = self.pauses.next_end() if self.pauses else None
        times = (self.holddown_until, self.resize.cuts_due, handoff, pause, *drains, *held)
        return min((time for time in times if time is not None), default=None)

    def cuts_short(self, flow: Flow) -> bool:
        """Whether the end of the flow's drain would end a warm-up."""
        return bool(flow.outgoing) and not flow.owned.isdisjoint(self.handoffs.warming)

    # The next of many

    def unassigned_leads(self) -> list[int]:
        """The unassigned partitions, lowest number first; of a group the first."""
        return sorted(filter(self.leads, self.unassigned))

    def highest_giveable(self, flow: Flow, but: Container[int] = ()) -> int | None:
        """The highest partition of the flow that is not on its way; a retiring one only if the flow
        is draining, and no pinned one. None if there is none. Of a group it is the first.

        `but` are partitions of which handoffs begin with the same decision.
        """

        def giveable(entry: int) -> bool:
            return (
                -entry in flow.owned
                and -entry not in self.handoffs
                and -entry not in but
                and -entry not in self.pins.homes
                and (flow.draining or -entry not in self.retiring)
            )

        entry = flow.offers.first(giveable)
        return None if entry is None else -entry

    def still_left(self, absent: Absent) -> list[int]:
        """The partitions that this flow has left and nobody has had since, lowest first."""
        return [
            number
            for number in absent.left
            if number in self.unassigned
            and (partition := self.partitions[number]).released_by == absent.flow_id
            and partition.next_handed_over in (HandedOver.ORPHANED, HandedOver.FORCED)
        ]
