"""A queue: its flows, partitions and handoffs, and the counts that the balance works with.

Every change goes through the journal (`journal`), and partitions change hands only in
`Queue.place`, which keeps the counts right (`placement`).

**A flow that leaves** may have so much that one decision cannot take it all (`rebalancer`). Then it
is out of `flows` and of the counts at once, nobody can act for it, and it is in `gone` for as long
as it is named by a partition as owner or by a handoff as successor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.core.barriers import Barriers
from broker.core.graph import Lineage
from broker.core.model import (
    Absent,
    AccessType,
    Flow,
    Handoff,
    Instance,
    Partition,
    Rebalance,
    Settings,
)
from broker.core.placement import Placement
from broker.core.structures import Heap, Journal
from broker.core.transitions import (
    LIFE_TRANSITIONS,
    PARTITION_TRANSITIONS,
    Life,
    LifeEvent,
    PartitionEvent,
    State,
    Status,
)

_WITH_OWNER = (State.OWNED, State.WARMING, State.REVOKING)
_WITH_HANDOFF = (State.WARMING, State.REVOKING)


class Queue:
    """One queue, as far as the rebalancer is concerned. Only `replay` changes it.

    `unfinished_at`: when the last decision was cut off for its size (`CutOff`); the rest is due
    since then. `granting`, `changed` and `discarding` are what that record says.

    `configured_count`: how many partitions are configured, which are the lowest numbers. It differs
    from the settings' `partition_count` only between the slices of a resize (`is_resizing`).

    `resize_seen` is the number of the log's last resize of which the cuts are known, `barriers`
    what of it is not settled. While `cuts_due` is not None, cuts of the log are awaited, and asked
    for at that time, after `cuts_attempt` failures (`barriers`).

    Beside the partitions stand the few of which something is to be done: `unassigned` (since when,
    None: never owned), `handoffs`, and of those the `warming` ones and those that are revoking
    `without_successor`. `warmed` names the flow that said ready in the latest handoff, and for
    which epoch. `touched` collects the flows whose views changed. `lineage` is the graph of a
    dynamic queue.
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
        self.unfinished_at: float | None = None
        self.granting: str | None = None
        self.changed = False
        self.discarding = False
        self.configured_count = 0
        self.outage_seen = 0
        self.resize_seen = 0
        self.barriers: Barriers | None = None
        self.cuts_due: float | None = None
        self.cuts_attempt = 0
        self.next_bind_number = 0
        self.flows: dict[str, Flow] = {}
        self.gone: dict[str, Flow] = {}
        self.by_instance: dict[Instance, Flow] = {}
        self.by_bind_number: dict[int, Flow] = {}
        self.partitions: dict[int, Partition] = {}
        self.warmed: dict[int, tuple[str, int]] = {}
        self.touched: set[str] = set()
        self.journal = Journal()
        self._placement = placed = Placement(self.journal, self.by_bind_number)
        self.unassigned, self.handoffs = placed.unassigned, placed.handoffs
        self.retiring, self.deadlines = placed.retiring, placed.deadlines
        self.ranking, self.leaving = placed.ranking, placed.leaving
        self.warming, self.without_successor = placed.warming, placed.without_successor
        self.lowest_unassigned = placed.lowest_unassigned
        self.highest_giveable = placed.highest_giveable
        dynamic = settings.partitioning == "dynamic"
        self.lineage: Lineage | None = Lineage(self.journal) if dynamic else None

    # What it looks like

    @property
    def exclusive(self) -> bool:
        return self.settings.access_type == AccessType.EXCLUSIVE

    @property
    def share_count(self) -> int:
        """*P* of the contract's rules: what takes part in the balance, 1 for an exclusive queue."""
        return 1 if self.exclusive else self.settings.partition_count

    @property
    def takers(self) -> int:
        """*F* of the contract's rules: how many non-draining flows are bound."""
        return len(self.ranking)

    @property
    def operational_partition_count(self) -> int:
        """Partitions that exist: those that retire, wait or are finished are included."""
        apart = self.lineage.apart if self.lineage is not None else 0
        return self.resized_count + apart

    @property
    def resized_count(self) -> int:
        """The partitions that are configured or retire: above `partition_count` while a resize
        takes some away, below it while it adds some."""
        return self.configured_count + len(self.retiring)

    @property
    def is_resizing(self) -> bool:
        """Whether partitions are still to be added, retired or discarded."""
        return self.configured_count != self.settings.partition_count or self.discarding

    @property
    def scale_status(self) -> str:
        """`ScalingDown` while partitions retire, `ScalingUp` while added ones are being balanced,
        else `Ready`.
        """
        excess = self.resized_count - self.settings.partition_count
        if excess > 0 or self.discarding:
            return "ScalingDown"
        return "ScalingUp" if self.growing or excess < 0 else "Ready"

    @property
    def next_rebalance_id(self) -> int:
        return (
            max((entry.id for entry in (self.rebalance, self.last_rebalance) if entry), default=0)
            + 1
        )

    def find(self, number: int) -> Partition | None:
        """The partition of this number, removed ones of a fixed queue included; None if there is
        none."""
        return self.partitions.get(number)

    def exists(self, number: int) -> bool:
        """Whether there is a partition of this number that was not removed."""
        partition = self.find(number)
        return partition is not None and partition.state is not State.REMOVED

    def existing(self, after: int = -1) -> Iterator[Partition]:
        """The partitions above this number that exist, lowest number first. What is skipped are
        removed ones of a fixed queue."""
        end = len(self.partitions) if self.retiring else self.configured_count
        numbers = range(after + 1, end) if self.lineage is None else self.lineage.above(after)
        found = (self.partitions[number] for number in numbers)
        return (partition for partition in found if partition.state is not State.REMOVED)

    def first_taker(self) -> Flow | None:
        """The earliest-bound non-draining flow, which owns an exclusive queue."""
        return self.by_bind_number[self.ranking.earliest()] if self.ranking.counts else None

    def spread(self) -> int:
        """The largest minus the smallest number of partitions that non-draining flows own;
        O(flows).
        """
        numbers = [
            len(flow.owned) - len(flow.owned & self.retiring)
            for flow in self.flows.values()
            if not flow.draining
        ]
        return max(numbers) - min(numbers) if numbers else 0

    def next_deadline(self) -> float | None:
        """When the holddown, a warm-up or a handoff ends next, or the log is to be asked.

        The rest of a decision that was cut off is due apart from it, since `unfinished_at`.
        """
        drains = [
            flow.drain_deadline
            for bind_number in self.leaving.counts
            if (flow := self.by_bind_number[bind_number]).drain_deadline is not None
            and self.cuts_short(flow)
        ]
        times = (self.holddown_until, self.cuts_due, self.deadlines.first(), *drains)
        return min((time for time in times if time is not None), default=None)

    def cuts_short(self, flow: Flow) -> bool:
        """Whether the end of the flow's drain would end a warm-up."""
        return bool(flow.outgoing) and not flow.owned.isdisjoint(self.warming)

    # How it changes

    def set(self, attribute: str, value: Any) -> None:
        """Sets an attribute of the queue itself."""
        self.journal.set(self, attribute, value)

    def touch(self, flow: Flow | None) -> None:
        """The flow's view changes with this revision."""
        if flow is None or flow.left is not None:
            return
        if flow.id not in self.touched:
            self.journal.add(self.touched, flow.id)
        if flow.view_revision != self.revision:
            self.journal.set(flow, "view_revision", self.revision)

    def touch_successor(self, handoff: Handoff | None) -> None:
        """The successor's view changes if it sees the handoff: while it warms up."""
        if handoff is not None and handoff.warm:
            self.touch(handoff.named)

    def place(
        self,
        partition: Partition,
        event: PartitionEvent,
        *,
        owner: Flow | None = None,
        handoff: Handoff | None = None,
        at: float | None = None,
        **marks: Any,
    ) -> None:
        """Moves a partition to the state that `event` leads to, with this owner and handoff, and
        keeps every count.

        `at` is since when nobody owns it, if nobody does; `marks` are attributes of the partition
        that change with it.
        """
        number, before = partition.number, partition.owner
        state = PARTITION_TRANSITIONS[partition.state, event]
        assert (owner is not None) is (state in _WITH_OWNER)
        assert (handoff is not None) is (state in _WITH_HANDOFF)
        known, since = self.handoffs.get(number), self.unassigned.get(number)
        # Many have none, and there are very many of these calls.
        marked = {name: getattr(partition, name) for name in marks} if marks else marks
        move = self._placement.move
        self.journal.changed(partition, move, partition.state, before, known, since, marked)
        move(partition, state, owner, handoff, at, marks)
        if before is not None:
            self._forget(before)
        if known is not None and known.named is not None:
            self._forget(known.named)

    def redirect(self, handoff: Handoff, successor: Flow | None) -> None:
        """Gives a handoff another successor."""
        before, partition = handoff.named, self.partitions[handoff.number]
        self.journal.changed(handoff, self._placement.name, partition, before)
        self._placement.name(handoff, partition, successor)
        if before is not None:
            self._forget(before)

    def set_deadline(self, handoff: Handoff, deadline: float) -> None:
        """Changes the deadline of a handoff."""
        partition = self.partitions[handoff.number]
        self.journal.note(partition)
        self.journal.did(self.deadlines.push, handoff)
        self.journal.set(handoff, "deadline", deadline)
        self.deadlines.push(handoff)

    def resize(self, partition: Partition, event: LifeEvent) -> None:
        """Takes a partition out of the balance, or back into it; `place` removes and adds it."""
        retiring = LIFE_TRANSITIONS[partition.life, event] is Life.RETIRING
        if retiring is partition.retiring:
            return
        self.journal.changed(partition, self._placement.retire, partition.retiring)
        self._placement.retire(partition, retiring)

    def enter(self, flow: Flow) -> None:
        """Adds a flow. It replaces the flow of its bind number, if there is one, which the rankings
        forget at once.
        """
        predecessor = self.by_bind_number.get(flow.bind_number)
        if predecessor is not None:
            self._placement.unrank(predecessor)
        self.journal.put(self.flows, flow.id, flow)
        self.journal.put(self.by_instance, flow.instance, flow)
        self.journal.put(self.by_bind_number, flow.bind_number, flow)
        if flow.bind_number >= self.next_bind_number:
            self.set("next_bind_number", flow.bind_number + 1)
        self._placement.rank(flow)

    def leave(self, flow: Flow) -> None:
        """Takes out a flow; it is gone until nothing is left that it owns or awaits."""
        self.journal.drop(self.flows, flow.id)
        if self.by_instance.get(flow.instance) is flow:
            self.journal.drop(self.by_instance, flow.instance)
        self._placement.unrank(flow)
        if self.by_bind_number.get(flow.bind_number) is flow:
            self.journal.drop(self.by_bind_number, flow.bind_number)
        if flow.owned or flow.incoming:
            self.journal.set(flow, "left", Heap(flow.owned | flow.incoming))
            self.journal.put(self.gone, flow.id, flow)

    def _forget(self, flow: Flow) -> None:
        if flow.left is not None and not flow.owned and not flow.incoming:
            self.journal.drop(self.gone, flow.id)

    def set_draining(self, flow: Flow, deadline: float | None) -> None:
        """Moves the flow from those that take to those that leave."""
        self._placement.unrank(flow)
        self.journal.set(flow, "draining", True)
        self.journal.set(flow, "drain_deadline", deadline)
        self._placement.rank(flow)
        for number in flow.owned & self.retiring:
            self._placement.offer(flow, number)

    def add(self, partition: Partition) -> None:
        """Adds a partition that never was, without an owner or waiting."""
        self.journal.put(self.partitions, partition.number, partition)
        self.journal.note(partition)
        if partition.state is State.UNASSIGNED:
            self.journal.did(self.unassigned.pop, partition.number)
            self._placement.enlist(partition.number, None)

    def forget(self, number: int) -> None:
        """Drops a partition that was removed for good."""
        self.journal.drop(self.partitions, number)
        self.journal.drop(self.warmed, number)

    def restore_unassigned(self, number: int, since: float | None) -> None:
        """The partition has had no owner since then (None: it never had one)."""
        self._placement.enlist(number, since)
