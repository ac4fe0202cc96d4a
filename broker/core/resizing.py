"""A resize: partitions are added, retire, or are discarded (the contract, rule 9 and *Resize*).

`partition_count` changes at once. What follows from it is done as far as a slice has room: upwards
what is added, downwards what is taken away, so that the configured partitions are always those from
0 up (`Queue.configured_count`). Nothing else of the loop is done before it is complete. A later
resize may come between two slices; then the rest leads to its count.

What an ordered resize adds to this is in `cuts`.
"""

from __future__ import annotations

from heapq import nsmallest

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import HandedOver


def resize(draft: Draft) -> bool:
    """Adds, retires or discards partitions, as far as there is room; returns whether it is
    complete.
    """
    queue = draft.queue
    count, aligned = queue.settings.partition_count, queue.settings.aligned
    while queue.configured_count != count or (draft.discarding and queue.retiring):
        if draft.budget <= 0:
            draft.is_cut_off = True
            return False
        configured = queue.configured_count
        if configured < count:
            end = min(count, configured + draft.room * aligned)
            # What they said that they had finished counts for the retirement that is over.
            again = tuple(
                number
                for number in range(configured, end)
                if number in queue.retiring and queue.partitions[number].is_let_go
            )
            draft.emit(r.PartitionsAdded(configured, end, draft.now))
            if again:
                draft.emit(r.EpochsRaised(again, draft.now, HandedOver.REPLACED))
        elif configured > count:
            highest = tuple(range(max(count, configured - draft.room * aligned), configured))
            if draft.discarding:
                remove(draft, highest, "discarded")
            else:
                _retire(draft, highest)
        else:
            lowest = tuple(nsmallest(draft.room * aligned, queue.retiring))
            remove(draft, lowest, "discarded")
    draft.discarding = False
    return True


def _retire(draft: Draft, numbers: tuple[int, ...]) -> None:
    """Partitions are to be drained to their ends.

    One that was taken back begins a new epoch when it retires again. Else its owner's word that it
    is finished, said the first time and delayed until now, would pass for the second time, and what
    was appended in between would be lost. Its owner is the same, so what it has in work counts
    (`replaced`).
    """
    draft.emit(r.PartitionsRetired(numbers))
    partitions = [draft.queue.partitions[number] for number in numbers]
    again = tuple(
        partition.number
        for partition in partitions
        if partition.owner is not None and partition.next_handed_over == HandedOver.REPLACED
    )
    if again:
        draft.emit(r.EpochsRaised(again, draft.now, HandedOver.REPLACED))


def remove(draft: Draft, numbers: tuple[int, ...], outcome: str) -> None:
    """Removes partitions; handoffs of theirs end with them."""
    queue = draft.queue
    ended = tuple(
        r.Ended(
            number,
            owner.id,
            handoff.successor.id,
            queue.partitions[number].epoch,
            max(0.0, round(draft.now - handoff.since, 6)),
        )
        for number in numbers
        if (handoff := queue.handoffs.get(number))
        and handoff.successor
        and (owner := queue.partitions[number].owner)
    )
    draft.emit(r.PartitionsRemoved(numbers, ended, outcome, draft.now))
