"""A resize: partitions are added, retire, or are discarded (the contract, rule 9 and *Resize*).

The configured partitions are always those from 0 up. What an ordered resize adds to this is in
`cuts`.
"""

from __future__ import annotations

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import HandedOver


def resize(draft: Draft, before: int, *, discard: bool = False) -> bool:
    """Adds the partitions from the count `before` up to the present one, or retires those above it.
    With `discard` none retires: they are removed with their messages. Returns whether any were.
    """
    queue = draft.queue
    count = queue.settings.partition_count
    if before < count:
        # What they said that they had finished counts for the retirement that is over.
        again = tuple(
            number
            for number in range(before, count)
            if number in queue.retiring and queue.partitions[number].is_let_go
        )
        draft.emit(r.PartitionsAdded(before, count, draft.now))
        if again:
            draft.emit(r.EpochsRaised(again, draft.now, HandedOver.REPLACED))
    surplus = range(count, before)
    if discard:
        if discarded := sorted(queue.retiring.union(surplus)):
            remove(draft, tuple(discarded), "discarded")
        return bool(discarded)
    if surplus:
        _retire(draft, tuple(surplus))
    return False


def _retire(draft: Draft, numbers: tuple[int, ...]) -> None:
    """Partitions are to be drained to their ends.

    One that was taken back begins a new epoch when it retires again. Else its owner's word that it
    is finished, said the first time and delayed until now, would pass for the second time, and what
    was appended in between would be lost. Its owner is the same, so what it has in work counts
    (`replaced`).
    """
    draft.emit(r.PartitionsRetired(numbers))
    partitions = [draft.queue.partitions[number] for number in numbers]
    again = tuple(partition.number for partition in partitions if partition.is_taken_back)
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
