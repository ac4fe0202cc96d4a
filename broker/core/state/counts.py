"""What the balance works with, kept right whenever a partition changes hands.

- *A partition counts* for the successor that it is on its way to, else for its owner; retiring ones
  do not count.
- `ranking` orders the bound, non-draining flows by what counts for them; `leaving` orders the
  draining ones by what can still be taken from them, retiring partitions included.
- A flow that is gone is in neither. What counted for it counts for no one.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.state.model import Flow, Handoff, Partition
from broker.core.state.transitions import State
from broker.core.structures.journal import Journal
from broker.core.structures.ranking import Ranking


class Counts:
    """The counts of one queue. Whoever changes a partition takes it out before, and adds it after
    with what `take` returned.

    `warming` are the handoffs in a warm-up, `without_successor` those in a revoke that have none.
    """

    def __init__(
        self, journal: Journal, handoffs: Mapping[int, Handoff], by_bind_number: Mapping[int, Flow]
    ) -> None:
        self.ranking = Ranking()
        self.leaving = Ranking()
        self.warming: set[int] = set()
        self.without_successor: set[int] = set()
        self._journal = journal
        self._handoffs = handoffs
        self._by_bind_number = by_bind_number

    def take(self, partition: Partition) -> Flow | None:
        """The partition is about to change; returns the flow that it counts for."""
        return self._shift(partition, -1)

    def add(self, partition: Partition, before: Flow | None) -> None:
        """The partition has changed; `before` is what `take` returned."""
        after = self._shift(partition, 1)
        # In a graceful handoff the successor gets what counted for it already.
        if after is not before:
            for flow, difference in ((before, -1), (after, 1)):
                if flow is not None:
                    self._journal.did(self._load, flow, flow.load)
                    self._load(flow, flow.load + difference)

    def _shift(self, partition: Partition, sign: int) -> Flow | None:
        """Changes all counts but the load of the flow that the partition counts for; returns that
        flow.
        """
        journal, owner = self._journal, partition.owner
        handoff = self._handoffs.get(partition.number)
        if handoff is not None:
            assert owner is not None
            journal.set(owner, "outgoing", owner.outgoing + sign)
            change = journal.add if sign > 0 else journal.discard
            if partition.state is State.WARMING:
                change(self.warming, partition.number)
            elif handoff.named is None:
                change(self.without_successor, partition.number)
            if handoff.named is not None:
                change(handoff.named.incoming, partition.number)
        if owner is not None and owner.draining:
            self.rank(owner)
        if partition.retiring:
            return None
        return owner if handoff is None else handoff.named

    def _load(self, flow: Flow, load: int) -> None:
        flow.load = load
        if not flow.draining and self._by_bind_number.get(flow.bind_number) is flow:
            self.ranking.put(flow.bind_number, load)

    def rank(self, flow: Flow) -> None:
        """Enters the flow in its ranking, or brings it up to date there."""
        if self._by_bind_number.get(flow.bind_number) is not flow:
            return
        ranking, count = (
            (self.leaving, len(flow.owned) - flow.outgoing)
            if flow.draining
            else (self.ranking, flow.load)
        )
        old = ranking.counts.get(flow.bind_number)
        if old == count:
            return
        if old is None:
            self._journal.did(ranking.remove, flow.bind_number)
        else:
            self._journal.did(ranking.put, flow.bind_number, old)
        ranking.put(flow.bind_number, count)

    def unrank(self, flow: Flow) -> None:
        """Takes the flow out of its ranking."""
        ranking = self.leaving if flow.draining else self.ranking
        if self._by_bind_number.get(flow.bind_number) is flow:
            self._journal.did(ranking.put, flow.bind_number, ranking.counts[flow.bind_number])
            ranking.remove(flow.bind_number)
