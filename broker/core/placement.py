"""Who has which partition, what the balance counts of it, and when handoffs are to end.

- *A partition counts* for the successor that it is on its way to, else for its owner; retiring ones
  do not count.
- `ranking` orders the bound, non-draining flows by what counts for them; `leaving` orders the
  draining ones by what can still be taken from them, retiring partitions included.
- A flow that is gone is in neither. What counted for it counts for no one.

Partitions change hands in `move`, `name` and `retire` alone. Each is undone by the same change
back, so what follows from it (counts, heaps, deadlines, the sets of flows) is never remembered, but
derived again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from operator import neg
from typing import Any

from broker.core.model import Flow, Handoff, Partition
from broker.core.structures import Heap, Journal, Ranking
from broker.core.transitions import State


class Placement:
    """The partitions of one queue that are on their way or have no owner, and the counts.

    `unassigned`: since when (None: never owned). `warming` are the handoffs in a warm-up,
    `without_successor` those in a revoke that have none.
    """

    def __init__(self, journal: Journal, by_bind_number: Mapping[int, Flow]) -> None:
        self.ranking = Ranking()
        self.leaving = Ranking()
        self.retiring: set[int] = set()
        self.unassigned: dict[int, float | None] = {}
        self.handoffs: dict[int, Handoff] = {}
        self.warming: set[int] = set()
        self.without_successor: set[int] = set()
        self.deadlines = Deadlines(self.handoffs)
        self.lowest: Heap[int] = Heap()
        self._journal = journal
        self._by_bind_number = by_bind_number

    def lowest_unassigned(self, most: int) -> list[int]:
        """So many of the unassigned partitions, lowest number first."""
        return self.lowest.smallest(most, self.unassigned.__contains__)

    def highest_giveable(self, flow: Flow, but: Container[int] = ()) -> int | None:
        """The highest partition of the flow that is not on its way; a retiring one only if the flow
        is draining. None if there is none.

        `but` are partitions of which handoffs begin with the same decision.
        """

        def giveable(entry: int) -> bool:
            return (
                -entry in flow.owned
                and -entry not in self.handoffs
                and -entry not in but
                and (flow.draining or -entry not in self.retiring)
            )

        entry = flow.offers.first(giveable)
        return None if entry is None else -entry

    # How it changes

    def move(
        self,
        partition: Partition,
        state: State,
        owner: Flow | None,
        handoff: Handoff | None,
        since: float | None,
        marks: Mapping[str, Any],
    ) -> None:
        """Gives a partition this state, owner and handoff.

        `since` is since when nobody owns it, if nobody does; `marks` are attributes that change
        with it.
        """
        number, before = partition.number, partition.owner
        counted = self._shift(partition, -1)
        partition.state, partition.owner = state, owner
        for name, value in marks.items():
            setattr(partition, name, value)
        if owner is not before:
            if before is not None:
                before.owned.discard(number)
            if owner is not None:
                owner.owned.add(number)
        if handoff is None:
            self.handoffs.pop(number, None)
        elif self.handoffs.get(number) is not handoff:
            self.handoffs[number] = handoff
            self.deadlines.push(handoff)
        if state is State.UNASSIGNED:
            self.enlist(number, since)
        elif number in self.unassigned:
            del self.unassigned[number]
            self.lowest.trim(len(self.unassigned), lambda: self.unassigned)
        if state is State.OWNED and owner is not None:
            self.offer(owner, number)
        self._count(partition, counted)
        if before is not None and before.draining:
            self._rank_leaving(before)

    def name(self, handoff: Handoff, partition: Partition, successor: Flow | None) -> None:
        """Gives a handoff another successor."""
        counted = self._shift(partition, -1)
        handoff.named = successor
        self._count(partition, counted)

    def retire(self, partition: Partition, retiring: bool) -> None:
        """Takes a partition out of the balance, or back into it."""
        counted = self._shift(partition, -1)
        partition.retiring = retiring
        _change(self.retiring, partition.number, retiring)
        self._count(partition, counted)
        if partition.owner is not None:
            self.offer(partition.owner, partition.number)

    def enlist(self, number: int, since: float | None) -> None:
        """Nobody owns the partition."""
        self.unassigned[number] = since
        self.lowest.push(number)
        self.lowest.trim(len(self.unassigned), lambda: self.unassigned)

    def offer(self, flow: Flow, number: int) -> None:
        """The flow may have this partition to give."""
        flow.offers.push(-number)
        flow.offers.trim(len(flow.owned), lambda: map(neg, flow.owned))

    # The counts

    def rank(self, flow: Flow) -> None:
        """Enters the flow in its ranking."""
        ranking, count = self.ranking, flow.load
        if flow.draining:
            ranking, count = self.leaving, len(flow.owned) - flow.outgoing
        self._journal.did(ranking.remove, flow.bind_number)
        ranking.put(flow.bind_number, count)

    def unrank(self, flow: Flow) -> None:
        """Takes the flow out of its ranking."""
        ranking = self.leaving if flow.draining else self.ranking
        if self._by_bind_number.get(flow.bind_number) is flow:
            self._journal.did(ranking.put, flow.bind_number, ranking.counts[flow.bind_number])
            ranking.remove(flow.bind_number)

    def _count(self, partition: Partition, before: Flow | None) -> None:
        """The partition has changed; `before` is what `_shift` returned before that."""
        after = self._shift(partition, 1)
        # In a graceful handoff the successor gets what counted for it already.
        if after is not before:
            if before is not None:
                self._load(before, -1)
            if after is not None:
                self._load(after, 1)

    def _shift(self, partition: Partition, sign: int) -> Flow | None:
        """Takes the partition out of all counts (-1) before it changes, and puts it into them (1)
        after it, but for the load of the flow that it counts for; returns that flow.
        """
        number, owner = partition.number, partition.owner
        handoff = self.handoffs.get(number)
        if handoff is not None:
            assert owner is not None
            owner.outgoing += sign
            if partition.state is State.WARMING:
                _change(self.warming, number, sign > 0)
            elif handoff.named is None:
                _change(self.without_successor, number, sign > 0)
            if handoff.named is not None:
                incoming = handoff.named.incoming
                (incoming.add if sign > 0 else incoming.discard)(number)
        if owner is not None and owner.draining:
            self._rank_leaving(owner)
        if partition.retiring:
            return None
        return owner if handoff is None else handoff.named

    def _load(self, flow: Flow, difference: int) -> None:
        flow.load += difference
        if not flow.draining and self._by_bind_number.get(flow.bind_number) is flow:
            self.ranking.put(flow.bind_number, flow.load)

    def _rank_leaving(self, flow: Flow) -> None:
        if self._by_bind_number.get(flow.bind_number) is flow:
            self.leaving.put(flow.bind_number, len(flow.owned) - flow.outgoing)


def _change(members: set[int], number: int, there: bool) -> None:
    (members.add if there else members.discard)(number)


class Deadlines:
    """When handoffs are to end, the earliest first."""

    __slots__ = ("_handoffs", "_heap")

    def __init__(self, handoffs: Mapping[int, Handoff]) -> None:
        """`handoffs`, by partition, are those that there are at any time."""
        self._handoffs = handoffs
        self._heap: Heap[tuple[float, int]] = Heap()

    def push(self, handoff: Handoff) -> None:
        """The handoff has another deadline, or is one again."""
        self._heap.push((handoff.deadline, handoff.number))
        self._heap.trim(len(self._handoffs), self._all)

    def first(self) -> float | None:
        """The earliest deadline; None without handoffs."""
        entry = self._heap.first(self._holds)
        return None if entry is None else entry[0]

    def due(self, now: float, most: int, wanted: Callable[[Handoff], bool]) -> list[Handoff]:
        """The wanted handoffs whose deadline has come, so many at the most, the earliest first,
        then by partition.
        """
        found: dict[int, Handoff] = {}
        unwanted: dict[int, Handoff] = {}

        def is_new(entry: tuple[float, int]) -> bool:
            return self._holds(entry) and entry[1] not in found and entry[1] not in unwanted

        while len(found) < most:
            entry = self._heap.first(is_new)
            if entry is None or entry[0] > now:
                break
            handoff = self._handoffs[entry[1]]
            (found if wanted(handoff) else unwanted)[entry[1]] = handoff
        for handoff in (*found.values(), *unwanted.values()):
            self.push(handoff)
        return list(found.values())

    def _holds(self, entry: tuple[float, int]) -> bool:
        deadline, number = entry
        handoff = self._handoffs.get(number)
        return handoff is not None and handoff.deadline == deadline

    def _all(self) -> Iterable[tuple[float, int]]:
        return [(handoff.deadline, handoff.number) for handoff in self._handoffs.values()]
