"""What administrators and the clock do: change, rebalance now, set positions, add children,
advance.
"""

from __future__ import annotations

from broker.core import commands as c
from broker.core import resizing
from broker.core.draft import Draft
from broker.core.errors import Invalid
from broker.core.lineage import add_children as record_children
from broker.core.loop import end_due, loop, rebalance, take_up
from broker.core.resizing import resize
from broker.core.state import records as r
from broker.core.state.queue import Queue
from broker.core.state.transitions import State, Status


def change(command: c.Change, draft: Draft) -> None:
    """Settings change; the partition count is the resize (rule 9)."""
    queue = draft.queue
    if queue.lineage is not None and "partition_count" in command.changes:
        raise Invalid(
            "The source of a dynamic queue begins and ends its partitions; it cannot be resized.",
            [("partition_count", "cannot be changed in a dynamic queue")],
        )
    changes = {
        name: value
        for name, value in command.changes.items()
        if getattr(queue.settings, name) != value
    }
    awaits = resizing.begins(changes, queue)
    if changes:
        draft.emit(r.SettingsChanged(changes))
    if awaits:
        resizing.await_cuts(draft)
    if "partition_count" in command.changes:
        draft.discarding = command.discard
    before = len(draft.records)
    resize(draft)
    resized = len(draft.records) > before
    if "partition_count" in changes:
        rebalance(draft, "resize")
    elif "access_type" in changes:
        rebalance(draft, "access_type")
    elif resized or "max_concurrent_handoffs" in changes:
        take_up(draft)


def rebalance_now(command: c.RebalanceNow, draft: Draft) -> None:
    """An administrator does not want to wait (rule 9)."""
    if draft.queue.status is not Status.REBALANCING:
        rebalance(draft, "admin")


def is_read(queue: Queue, number: int) -> bool:
    """Whether anybody reads this partition, now or later: only then its position can be set."""
    partition = queue.find(number)
    return partition is not None and partition.state not in (State.REMOVED, State.FINISHED)


def raise_epochs(command: c.RaiseEpochs, draft: Draft) -> None:
    """Positions are set: whoever goes on goes on under new epochs. Raises CutsOutdated."""
    resizing.refuse_outdated(command, draft.queue)
    numbers = tuple(
        number for number in dict.fromkeys(command.partitions) if is_read(draft.queue, number)
    )
    if numbers:
        draft.emit(r.EpochsRaised(numbers, draft.now))
        resizing.positions_set(command, draft)


def add_children(command: c.AddChildren, draft: Draft) -> c.Outcome:
    """Partitions were split or merged in the log. Raises Invalid for a fixed queue."""
    outcome = record_children(draft, command.children)
    if draft.records or draft.resumes:
        take_up(draft, changed=False)
    return outcome


def advance(command: c.Advance, draft: Draft) -> None:
    """Ends the holddown, warm-ups and handoffs that are due, then does the rest of a decision that
    was cut off.

    What is due does not wait for the rest, which may take many slices.
    """
    queue, now = draft.queue, draft.now
    if queue.cuts_due is not None and queue.cuts_due <= now:
        resizing.await_again(draft)
    if queue.holddown_until is not None and queue.holddown_until <= now:
        assert queue.trigger is not None
        rebalance(draft, queue.trigger)
    elif not _is_due(draft):
        resume(c.Resume(), draft)
    while _is_due(draft):
        end_due(draft)
        if draft.room <= 0 and _is_due(draft):
            # The loop waits until everything that is due is done.
            return
        loop(draft, changed=False)
        if draft.room <= 0:
            return


def _is_due(draft: Draft) -> bool:
    due = draft.queue.next_deadline()
    return due is not None and due <= draft.now


def resume(command: c.Resume, draft: Draft) -> None:
    """The next slice of a decision that was cut off."""
    lineage = draft.queue.lineage
    if draft.resumes or draft.queue.gone or (lineage is not None and lineage.over):
        take_up(draft, changed=False, happened=False)


def move_deadlines(command: c.MoveDeadlines, draft: Draft) -> None:
    """Gives handoffs back the time in which nobody served, or follows a clock that went back."""
    if command.outage_id <= draft.queue.outage_seen:
        return
    if command.seconds < 0:
        draft.emit(r.ClockWentBack(command.outage_id, command.seconds))
    else:
        draft.emit(r.DeadlinesMoved(command.outage_id, command.began, command.seconds))
