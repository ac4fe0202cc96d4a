"""Flows that leave: what becomes of their partitions, and what they get back if they come again.

A flow that leaves while a holddown runs is remembered by its instance (`Departed`), and its
partitions remember it (`released_by`). So nothing is stored for each partition that was not
written anyway, and it is known at any time what is still there to be given back. The memory ends
with the holddown, but for an instance that is bound again and has not got everything yet.
"""

from __future__ import annotations

from broker.core.state import records as r
from broker.core.state.model import Departed, Flow, HandedOver
from broker.core.state.queue import Queue
from broker.core.state.transitions import PartitionEvent


def depart(queue: Queue, flow: Flow, record: r.FlowLeft | r.FlowDeparted) -> None:
    """The flow is gone, and is remembered if the record says so."""
    if record.remember:
        departed = Departed(flow.seat, flow.id)
        queue.journal.put(queue.departed, flow.instance, departed)
    elif queue.by_instance.get(flow.instance) is flow:
        queue.journal.drop(queue.departed, flow.instance)
    queue.touch(flow)
    queue.leave(flow)


def orphan(queue: Queue, flow: Flow, number: int, at: float) -> None:
    """A partition of a flow that is gone has no owner."""
    partition = queue.partitions[number]
    departed = queue.departed.get(flow.instance)
    remembered = departed is not None and departed.flow_id == flow.id
    if departed is not None and remembered:
        departed.left.push(number)
    raised = partition.let_go == HandedOver.FORCED
    handoff = queue.handoffs.get(number)
    if handoff is not None and handoff.warm:
        queue.touch(handoff.named)
    queue.place(
        partition,
        PartitionEvent.ORPHANED,
        at=at,
        let_go=HandedOver.FORCED if raised else HandedOver.ORPHANED,
        released_by=flow.id if remembered else None,
    )


def forget_if_back(queue: Queue, flow: Flow) -> None:
    """The instance is bound again and has all that was still to be had of what it left."""
    departed = queue.departed.get(flow.instance)
    if departed is not None and queue.first_to_give_back(departed) is None:
        queue.journal.drop(queue.departed, flow.instance)


def forget_absent(queue: Queue) -> None:
    """The holddown is over: only instances that came back within it get back what they left."""
    kept = {
        instance: departed
        for instance, departed in queue.departed.items()
        if instance in queue.by_instance and queue.first_to_give_back(departed) is not None
    }
    queue.set("departed", kept)
