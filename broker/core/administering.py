"""What administrators and the clock do: change, rebalance now, set positions, advance."""

from __future__ import annotations

from broker.core import commands as c
from broker.core.draft import Draft
from broker.core.handoff import force, remove, revoke
from broker.core.loop import loop, rebalance, take_up
from broker.core.state import records as r
from broker.core.state.model import HandedOver
from broker.core.state.transitions import State, Status


def change(command: c.Change, draft: Draft) -> None:
    """Settings change; the partition count is the resize (rule 9)."""
    queue = draft.queue
    settings = queue.settings
    changes = {
        name: value for name, value in command.changes.items() if getattr(settings, name) != value
    }
    count = changes.get("partition_count", settings.partition_count)
    grown = count > settings.partition_count
    old_count = settings.partition_count
    discard = command.discard and "partition_count" in command.changes
    gone = tuple(
        number
        for number in range(count, len(queue.partitions))
        if queue.partitions[number].state is not State.REMOVED
        and (discard or number not in queue.retiring)
    )
    if changes:
        draft.emit(r.SettingsChanged(changes))
    if grown:
        draft.emit(r.PartitionsAdded(old_count, count, draft.now))
    if gone and discard:
        remove(draft, gone, "discarded")
    elif gone:
        _retire(draft, gone)
    if "partition_count" in changes:
        rebalance(draft, "resize")
    elif "access_type" in changes:
        rebalance(draft, "access_type")
    elif gone or "max_concurrent_handoffs" in changes:
        take_up(draft)


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


def rebalance_now(command: c.RebalanceNow, draft: Draft) -> None:
    """An administrator does not want to wait (rule 9)."""
    if draft.queue.status is not Status.REBALANCING:
        rebalance(draft, "admin")


def raise_epochs(command: c.RaiseEpochs, draft: Draft) -> None:
    """Positions are set: whoever goes on goes on under new epochs."""
    numbers = tuple(
        number
        for number in dict.fromkeys(command.partitions)
        if (partition := draft.queue.find(number)) and partition.state is not State.REMOVED
    )
    if numbers:
        draft.emit(r.EpochsRaised(numbers, draft.now))


def advance(command: c.Advance, draft: Draft) -> None:
    """Does what is due: the rest of a decision that was cut off, the end of the holddown, of
    warm-ups and of handoffs.
    """
    queue, now = draft.queue, draft.now
    if queue.holddown_until is not None and queue.holddown_until <= now:
        assert queue.trigger is not None
        rebalance(draft, queue.trigger)
    else:
        resume(c.Resume(), draft)
    while True:
        ended = [
            number
            for bind_number in queue.leaving.counts
            if (flow := queue.by_bind_number[bind_number]).drain_deadline is not None
            and flow.drain_deadline <= now
            for number in sorted(flow.owned & queue.warming)
        ]
        due = queue.deadlines.due(now, max(0, draft.room))
        ended += [h.number for h in due if queue.partitions[h.number].state is State.WARMING]
        forced = [h for h in due if queue.partitions[h.number].state is State.REVOKING]
        if not ended and not forced:
            return
        if ended:
            revoke(draft, tuple(dict.fromkeys(ended))[: max(0, draft.room)], ready=False)
        for handoff in forced[: max(0, draft.room)]:
            force(draft, handoff)
        next_due = queue.next_deadline()
        if draft.room <= 0 and next_due is not None and next_due <= now:
            # The loop waits until everything that is due is done.
            return
        loop(draft, changed=False)
        if draft.room <= 0:
            return


def resume(command: c.Resume, draft: Draft) -> None:
    """The next slice of a decision that was cut off."""
    if draft.resumes or draft.queue.gone:
        take_up(draft, changed=False, happened=False)


def move_deadlines(command: c.MoveDeadlines, draft: Draft) -> None:
    """Gives handoffs back the time in which nobody served, or follows a clock that went back."""
    if command.outage_id <= draft.queue.outage_seen:
        return
    if command.seconds < 0:
        draft.emit(r.ClockWentBack(command.outage_id, command.seconds))
    else:
        draft.emit(r.DeadlinesMoved(command.outage_id, command.began, command.seconds))
