"""A decision in the making."""

from __future__ import annotations

from broker.core import records as r
from broker.core.errors import FlowNotFound
from broker.core.model import Flow, Partition
from broker.core.queue import Queue
from broker.core.replay import replay
from broker.core.transitions import State, Status


class Draft:
    """A decision in the making: the queue with the records so far applied."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.now = now
        self.records: list[r.Record] = []
        self._mark = queue.journal.mark()
        queue.set("touched", set())
        queue.set("revision", queue.revision + 1)

    def emit(self, record: r.Record) -> None:
        """Adds a record and applies it."""
        self.records.append(record)
        replay(self.queue, record)

    def take_back(self) -> None:
        """Leaves the queue as it was."""
        self.queue.journal.undo(self._mark)

    def flow(self, flow_id: str) -> Flow:
        """The bound flow of this id; raises FlowNotFound."""
        flow = self.queue.flows.get(flow_id)
        if flow is None:
            raise FlowNotFound(flow_id)
        return flow

    def grant(
        self, partition: Partition, flow: Flow, handed_over: str, *, by_handoff: bool = False
    ) -> None:
        """Makes the flow the owner of the partition, under the next epoch."""
        self.emit(r.Granted((self.drawn_up(partition, flow, handed_over, by_handoff),), self.now))

    def drawn_up(
        self, partition: Partition, flow: Flow, handed_over: str, by_handoff: bool = False
    ) -> r.Grant:
        """The grant of the partition to the flow, under the next epoch."""
        queue, number = self.queue, partition.number
        since = queue.unassigned.get(number) if partition.owner is None else self.now
        if partition.state is State.REVOKING:
            since = queue.handoffs[number].since
        # The clock may have gone back meanwhile.
        seconds = None if since is None else max(0.0, round(self.now - since, 6))
        previous = partition.owner.id if partition.owner else None
        return r.Grant(
            number, previous, flow.id, partition.epoch + 1, handed_over, seconds, by_handoff
        )

    def outside(self, trigger: str) -> None:
        """Opens an entry of the history for grants outside of a rebalance; inside one this is
        nothing."""
        if self.queue.status is not Status.REBALANCING:
            self.emit(r.GrantedOutside(self.queue.next_rebalance_id, trigger, self.now))
