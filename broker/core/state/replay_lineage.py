"""What the records of lineage do to a queue (the contract, *Lineage*).

`partition_count` of a dynamic queue is the number of its partitions that take part in the balance:
it follows from the records.
"""

from __future__ import annotations

from broker.core.state.applying import apply
from broker.core.state.lineage import records as lr
from broker.core.state.lineage.graph import Lineage
from broker.core.state.model import HandedOver, Partition
from broker.core.state.queue import Queue
from broker.core.state.transitions import PartitionEvent, State


def _lineage(queue: Queue) -> Lineage:
    assert queue.lineage is not None, "the queue is not dynamic"
    return queue.lineage


def _count(queue: Queue, difference: int) -> None:
    count = queue.settings.partition_count + difference
    queue.journal.set(queue.settings, "partition_count", count)
    queue.set("configured_count", count)


@apply.register
def _(record: lr.ChildrenAdded, queue: Queue) -> None:
    lineage = _lineage(queue)
    for number, key, parents in record.children:
        partition = Partition(number)
        partition.state = State.WAITING
        queue.add(partition)
        lineage.add(number, key, parents)


@apply.register
def _(record: lr.WaitsEnded, queue: Queue) -> None:
    lineage = _lineage(queue)
    for number in record.partitions:
        lineage.end_wait(number)
        queue.place(queue.partitions[number], PartitionEvent.WAIT_ENDED)
    _count(queue, len(record.partitions))


@apply.register
def _(record: lr.PartitionFinished, queue: Queue) -> None:
    number = record.partition
    partition, handoff = queue.partitions[number], queue.handoffs.get(number)
    queue.touch(partition.owner)
    queue.touch_successor(handoff)
    queue.place(
        partition,
        PartitionEvent.FINISHED,
        next_handed_over=HandedOver.INITIAL,
        released_by=record.flow_id,
    )
    _lineage(queue).finish(number)
    _count(queue, -1)


@apply.register
def _(record: lr.FinishedRemoved, queue: Queue) -> None:
    for number in record.partitions:
        _lineage(queue).remove(number)
        queue.place(queue.partitions[number], PartitionEvent.REMOVED)
        queue.forget(number)
