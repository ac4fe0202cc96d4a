"""Partitions that are added, retire and are removed (the contract, *Resize*).

The configured partitions are always those from 0 up: a resize adds at their end and takes from
there. So their number alone says how far a resize is that was cut into slices
(`Queue.configured_count`).
"""

from __future__ import annotations

from broker.core.state import records as r
from broker.core.state.model import HandedOver, Partition
from broker.core.state.queue import Queue
from broker.core.state.transitions import LifeEvent, PartitionEvent, State


def add(queue: Queue, record: r.PartitionsAdded) -> None:
    """Partitions exist (again); those that were retiring are taken back."""
    for number in range(record.first, record.end):
        partition = queue.find(number)
        if partition is None:
            queue.add(Partition(number))
        elif partition.state is State.REMOVED:
            queue.resize(partition, LifeEvent.ADDED)
            queue.place(partition, PartitionEvent.ADDED)
        else:
            queue.resize(partition, LifeEvent.TAKEN_BACK)
            if partition.owner is not None:
                queue.journal.set(partition, "next_handed_over", HandedOver.REPLACED)
            queue.touch(partition.owner)
    queue.set("growing", True)
    queue.set("configured_count", max(queue.configured_count, record.end))


def retire(queue: Queue, record: r.PartitionsRetired) -> None:
    """Partitions are to be drained to their ends."""
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.resize(partition, LifeEvent.RETIRED)
        queue.touch(partition.owner)
    queue.set("growing", False)
    queue.set("configured_count", min(queue.configured_count, *record.partitions))


def remove(queue: Queue, record: r.PartitionsRemoved) -> None:
    """Partitions are gone."""
    for number in record.partitions:
        partition, handoff = queue.partitions[number], queue.handoffs.get(number)
        queue.touch(partition.owner)
        queue.touch_successor(handoff)
        released_by = (
            partition.owner.id if record.outcome == "finished" and partition.owner else None
        )
        # What a flow had processed and not committed of a discarded partition may come again, if
        # its number is used before the log has deleted what it held.
        next_handed_over = partition.next_handed_over
        if record.outcome == "finished":
            next_handed_over = HandedOver.INITIAL
        elif partition.owner is not None:
            next_handed_over = HandedOver.ORPHANED
        queue.resize(partition, LifeEvent(record.outcome))
        queue.place(
            partition,
            PartitionEvent.REMOVED,
            released_by=released_by,
            next_handed_over=next_handed_over,
        )
    queue.set("configured_count", min(queue.configured_count, *record.partitions))
