"""Flows that leave: what becomes of their partitions, and what they get back if they come again.

A flow that leaves while a holddown runs is remembered by its instance (`Absent`), and its
partitions remember it (`released_by`), as they remember every flow that left: their next grant
names it. So nothing is stored for each partition that was not written anyway, and it is known at
any time what is still there to be given back. The memory of the flow ends with the holddown, but
for an instance that is bound again and has not got everything yet.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.state import records as r
from broker.core.state.model import Absent, Flow, HandedOver
from broker.core.state.queue import Queue
from broker.core.state.transitions import PartitionEvent
from broker.core.structures.heap import Heap


def depart(queue: Queue, flow: Flow, record: r.FlowLeft | r.FlowDeparted) -> None:
    """The flow is gone, and is remembered if the record says so."""
    if record.remember:
        absent = Absent(flow.bind_number, flow.id)
        queue.journal.put(queue.absent, flow.instance, absent)
    elif queue.by_instance.get(flow.instance) is flow:
        queue.journal.drop(queue.absent, flow.instance)
    queue.touch(flow)
    queue.leave(flow)


def orphan(queue: Queue, flow: Flow, number: int, at: float) -> None:
    """A partition of a flow that is gone has no owner."""
    partition = queue.partitions[number]
    absent = queue.absent.get(flow.instance)
    if absent is not None and absent.flow_id == flow.id:
        absent.left.push(number)
    raised = partition.next_handed_over == HandedOver.FORCED
    handoff = queue.handoffs.get(number)
    queue.touch_successor(handoff)
    queue.place(
        partition,
        PartitionEvent.ORPHANED,
        at=at,
        next_handed_over=HandedOver.FORCED if raised else HandedOver.ORPHANED,
        released_by=flow.id,
    )


def forget_if_back(queue: Queue, flow: Flow) -> None:
    """The instance is bound again and has all that was still to be had of what it left."""
    absent = queue.absent.get(flow.instance)
    if absent is not None and first_to_give_back(queue, absent) is None:
        queue.journal.drop(queue.absent, flow.instance)


def forget_absent(queue: Queue) -> None:
    """The holddown is over: only instances that came back within it get back what they left."""
    kept = {
        instance: absent
        for instance, absent in queue.absent.items()
        if (flow := queue.by_instance.get(instance)) is not None
        and not flow.draining
        and first_to_give_back(queue, absent) is not None
    }
    queue.set("absent", kept)


def first_left(queue: Queue, flow: Flow) -> int | None:
    """The lowest partition that a flow that is gone still owns, or is to get."""
    assert flow.left is not None
    return _first(queue, flow.left, lambda n: n in flow.owned or n in flow.incoming)


def first_to_give_back(queue: Queue, absent: Absent) -> int | None:
    """The lowest partition that this flow has left and nobody has had since."""

    def still(number: int) -> bool:
        if number not in queue.unassigned:
            return False
        partition = queue.partitions[number]
        return partition.released_by == absent.flow_id and partition.next_handed_over in (
            HandedOver.ORPHANED,
            HandedOver.FORCED,
        )

    return _first(queue, absent.left, still)


def _first(queue: Queue, heap: Heap[int], holds: Callable[[int], bool]) -> int | None:
    def is_there(number: int) -> bool:
        if holds(number):
            return True
        queue.journal.did(heap.push, number)
        return False

    return heap.first(is_there)
