"""A queue: its flows, partitions and handoffs, and the counts that the balance works with.

Every change goes through the journal (`journal`), and partitions change hands only in
`Queue.place`, which keeps the counts right:

- *A partition counts* for the successor that it is on its way to, else for its owner; retiring ones
  do not count.
- `ranking` orders the non-draining flows by what counts for them; `leaving` orders the draining
  ones by what can still be taken from them, retiring partitions included.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import neg
from typing import Any

from broker.core.state.deadlines import Deadlines
from broker.core.state.heap import Heap
from broker.core.state.journal import Journal
from broker.core.state.model import (
    AccessType,
    Departed,
    Flow,
    Handoff,
    Instance,
    Partition,
    Rebalance,
    Settings,
)
from broker.core.state.ranking import Ranking
from broker.core.state.transitions import (
    LIFE_TRANSITIONS,
    PARTITION_TRANSITIONS,
    Life,
    LifeEvent,
    PartitionEvent,
    State,
    Status,
)


class Queue:
    """One queue, as far as the rebalancer is concerned. Only `replay` changes it.

    `unfinished_at`: when the last decision was cut off for its size; the rest is due since then.

    Beside the partitions stand the few of which something is to be done: `unassigned` (since when,
    None: never owned), `handoffs`, and of those the `warming` ones and the `stranded` ones
    (revoking, without a successor). `warmed` names who said ready in the latest handoff, and for
    which epoch. `touched` collects the flows whose views changed.
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
        self.departed: dict[Instance, Departed] = {}
        self.rebalance: Rebalance | None = None
        self.last_rebalance: Rebalance | None = None
        self.growing = False
        self.unfinished_at: float | None = None
        self.outage_seen = 0
        self.next_seat = 0
        self.flows: dict[str, Flow] = {}
        self.by_instance: dict[Instance, Flow] = {}
        self.by_seat: dict[int, Flow] = {}
        self.partitions: list[Partition] = []
        self.retiring: set[int] = set()
        self.unassigned: dict[int, float | None] = {}
        self.handoffs: dict[int, Handoff] = {}
        self.warming: set[int] = set()
        self.stranded: set[int] = set()
        self.warmed: dict[int, tuple[str, int]] = {}
        self.ranking = Ranking()
        self.leaving = Ranking()
        self.touched: set[str] = set()
        self.journal = Journal()
        self.deadlines = Deadlines(self.handoffs)
        self._lowest: Heap[int] = Heap()

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
        """Partitions that exist, retiring ones included."""
        return self.settings.partition_count + len(self.retiring)

    @property
    def scale_status(self) -> str:
        """`ScalingDown` while partitions retire, `ScalingUp` while added ones are being balanced,
        else `Ready`.
        """
        return "ScalingDown" if self.retiring else "ScalingUp" if self.growing else "Ready"

    @property
    def next_rebalance_id(self) -> int:
        return (
            max((entry.id for entry in (self.rebalance, self.last_rebalance) if entry), default=0)
            + 1
        )

    def find(self, number: int) -> Partition | None:
        """The partition of this number, removed ones included; None if there never was one."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    def exists(self, number: int) -> bool:
        """Whether there is a partition of this number that was not removed."""
        partition = self.find(number)
        return partition is not None and partition.state is not State.REMOVED

    def existing(self) -> Iterator[Partition]:
        """The partitions that exist, lowest number first."""
        return (partition for partition in self.partitions if partition.state is not State.REMOVED)

    def first_taker(self) -> Flow | None:
        """The earliest-bound non-draining flow, which owns an exclusive queue."""
        return self.by_seat[self.ranking.earliest()] if self.ranking.counts else None

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
        """When something is due: the rest of a decision, or the end of the holddown, of a warm-up
        or of a handoff.
        """
        drains = [
            flow.drain_deadline
            for seat in self.leaving.counts
            if self.cuts_short(flow := self.by_seat[seat])
        ]
        times = (self.unfinished_at, self.holddown_until, self.deadlines.first(), *drains)
        return min((time for time in times if time is not None), default=None)

    def cuts_short(self, flow: Flow) -> bool:
        """Whether the end of the flow's drain would end a warm-up."""
        return bool(flow.outgoing) and not flow.owned.isdisjoint(self.warming)

    def lowest_unassigned(self) -> Iterator[int]:
        """The unassigned partitions, lowest number first. The caller grants each before it asks for
        the next.
        """
        while (number := self._lowest.first(self.unassigned.__contains__)) is not None:
            yield number

    def highest_giveable(self, flow: Flow) -> int | None:
        """The highest partition of the flow that is not on its way; a retiring one only if the flow
        is draining. None if there is none.
        """

        def giveable(entry: int) -> bool:
            return (
                -entry in flow.owned
                and -entry not in self.handoffs
                and (flow.draining or -entry not in self.retiring)
            )

        entry = flow.offers.first(giveable)
        return None if entry is None else -entry

    # How it changes

    def set(self, attribute: str, value: Any) -> None:
        """Sets an attribute of the queue itself."""
        self.journal.set(self, attribute, value)

    def touch(self, flow: Flow | None) -> None:
        """The flow's view changes with this revision."""
        if flow is not None and flow.id not in self.touched:
            self.journal.add(self.touched, flow.id)
        if flow is not None and flow.view_revision != self.revision:
            self.journal.set(flow, "view_revision", self.revision)

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
        journal, number = self.journal, partition.number
        state = PARTITION_TRANSITIONS[partition.state, event]
        assert (owner is not None) is (state in (State.OWNED, State.WARMING, State.REVOKING))
        assert (handoff is not None) is (state in (State.WARMING, State.REVOKING))
        self._uncount(partition)
        before = partition.owner
        if partition.state is State.OWNED and before is not None:
            journal.did(before.offers.push, -number)
        journal.change(partition, {"state": state, "owner": owner, **marks})
        if owner is not before:
            if before is not None:
                journal.discard(before.owned, number)
            if owner is not None:
                journal.add(owner.owned, number)
        known = self.handoffs.get(number)
        if handoff is not known:
            if known is not None:
                journal.did(self.deadlines.push, known)
            if handoff is None:
                journal.drop(self.handoffs, number)
            else:
                journal.put(self.handoffs, number, handoff)
                self.deadlines.push(handoff)
        if state is State.UNASSIGNED:
            journal.put(self.unassigned, number, at)
            self._enlist(number)
        elif number in self.unassigned:
            journal.drop(self.unassigned, number)
            journal.did(self._lowest.push, number)
            self._lowest.trim(len(self.unassigned), lambda: self.unassigned)
        if state is State.OWNED and owner is not None:
            self._offer(owner, number)
        self._count(partition)
        if before is not None and before.draining:
            self._rank(before)

    def redirect(self, handoff: Handoff, successor: Flow | None) -> None:
        """Gives a handoff another successor."""
        partition = self.partitions[handoff.number]
        self._uncount(partition)
        self.journal.note(partition)
        self.journal.set(handoff, "successor", successor)
        self._count(partition)

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
        self._uncount(partition)
        self.journal.set(partition, "retiring", retiring)
        (self.journal.add if retiring else self.journal.discard)(self.retiring, partition.number)
        self._count(partition)
        if partition.owner is not None:
            self._offer(partition.owner, partition.number)
            self.journal.did(partition.owner.offers.push, -partition.number)

    def enter(self, flow: Flow) -> None:
        """Adds a flow. If its seat is taken it replaces who sits there, whom the rankings forget at
        once.
        """
        predecessor = self.by_seat.get(flow.seat)
        if predecessor is not None:
            self._unrank(predecessor)
        self.journal.put(self.flows, flow.id, flow)
        self.journal.put(self.by_instance, flow.instance, flow)
        self.journal.put(self.by_seat, flow.seat, flow)
        if flow.seat >= self.next_seat:
            self.set("next_seat", flow.seat + 1)
        self._rank(flow)

    def leave(self, flow: Flow) -> None:
        """Takes out a flow that neither owns nor awaits any partition."""
        assert not flow.owned
        assert not flow.incoming
        self.journal.drop(self.flows, flow.id)
        if self.by_instance.get(flow.instance) is flow:
            self.journal.drop(self.by_instance, flow.instance)
        self._unrank(flow)
        if self.by_seat.get(flow.seat) is flow:
            self.journal.drop(self.by_seat, flow.seat)

    def set_draining(self, flow: Flow, deadline: float | None) -> None:
        """Moves the flow from those that take to those that leave."""
        self._unrank(flow)
        self.journal.set(flow, "draining", True)
        self.journal.set(flow, "drain_deadline", deadline)
        self._rank(flow)
        for number in flow.owned & self.retiring:
            self._offer(flow, number)

    def add(self, partition: Partition) -> None:
        """Adds a partition that never was."""
        self.partitions.append(partition)
        self.journal.did(self.partitions.pop)
        self.journal.note(partition)
        self.journal.put(self.unassigned, partition.number, None)
        self._enlist(partition.number)

    def restore_unassigned(self, number: int, since: float | None) -> None:
        """The partition has had no owner since then (None: it never had one)."""
        self.unassigned[number] = since
        self._enlist(number)

    def _enlist(self, number: int) -> None:
        self._lowest.push(number)
        self._lowest.trim(len(self.unassigned), lambda: self.unassigned)

    def _offer(self, flow: Flow, number: int) -> None:
        flow.offers.push(-number)
        flow.offers.trim(len(flow.owned), lambda: map(neg, flow.owned))

    def _counts_for(self, partition: Partition) -> Flow | None:
        if partition.retiring:
            return None
        handoff = self.handoffs.get(partition.number)
        return partition.owner if handoff is None else handoff.successor

    def _uncount(self, partition: Partition) -> None:
        self._shift(partition, -1)

    def _count(self, partition: Partition) -> None:
        self._shift(partition, 1)

    def _shift(self, partition: Partition, sign: int) -> None:
        journal = self.journal
        counted = self._counts_for(partition)
        if counted is not None:
            journal.did(self._load, counted, counted.load)
            self._load(counted, counted.load + sign)
        handoff = self.handoffs.get(partition.number)
        if handoff is not None:
            assert partition.owner is not None
            journal.set(partition.owner, "outgoing", partition.owner.outgoing + sign)
            change = journal.add if sign > 0 else journal.discard
            if partition.state is State.WARMING:
                change(self.warming, partition.number)
            elif handoff.successor is None:
                change(self.stranded, partition.number)
            if handoff.successor is not None:
                change(handoff.successor.incoming, partition.number)
        if partition.owner is not None and partition.owner.draining:
            self._rank(partition.owner)

    def _load(self, flow: Flow, load: int) -> None:
        flow.load = load
        if not flow.draining and self.by_seat.get(flow.seat) is flow:
            self.ranking.put(flow.seat, load)

    def _rank(self, flow: Flow) -> None:
        if self.by_seat.get(flow.seat) is not flow:
            return
        ranking, count = (
            (self.leaving, len(flow.owned) - flow.outgoing)
            if flow.draining
            else (self.ranking, flow.load)
        )
        old = ranking.counts.get(flow.seat)
        if old == count:
            return
        if old is None:
            self.journal.did(ranking.remove, flow.seat)
        else:
            self.journal.did(ranking.put, flow.seat, old)
        ranking.put(flow.seat, count)

    def _unrank(self, flow: Flow) -> None:
        ranking = self.leaving if flow.draining else self.ranking
        if self.by_seat.get(flow.seat) is flow:
            self.journal.did(ranking.put, flow.seat, ranking.counts[flow.seat])
            ranking.remove(flow.seat)
