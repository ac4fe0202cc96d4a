"""The cuts of an ordered resize: awaited, taken from the log, and reached (theory: `barriers`).

The log takes the cuts in its own transaction, after the queue's. So a resize leaves the queue
*awaiting cuts*, which is a deadline: the call that resized reads them from the log at once, and if
its replica dies, the sweep of another finds the queue due and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.core import commands as c
from broker.core.draft import Draft
from broker.core.errors import LogChanged, ResizeUnsettled
from broker.core.queue import Queue
from broker.core.records import Cut, CutsAwaited, CutsReached, CutsTaken
from broker.core.transitions import State

# When the cuts are read from the log again: at first, and at most. It doubles.
FIRST_SECONDS = 2.0
MOST_SECONDS = 60.0
_MOST_SHOWN = 5


def refuse_unsettled(queue: Queue, which: str | None = None) -> None:
    """Raises ResizeUnsettled while a resize of this queue has to settle before the next one.

    `which`: how the error speaks of the queue, if not by its name.
    """
    which = which or f"the queue {queue.name!r}"
    if queue.resize.cuts_due is not None:
        raise ResizeUnsettled(which, "the log has not said yet where its last resize cut it")
    if queue.resize.barriers is not None:
        left = sorted(queue.resize.barriers.unreached)
        shown = ", ".join(map(str, left[:_MOST_SHOWN]))
        more = f" and {len(left) - _MOST_SHOWN} more" if len(left) > _MOST_SHOWN else ""
        raise ResizeUnsettled(which, f"not processed up to their cuts: partitions {shown}{more}")


def last_resize(queue: Queue) -> tuple[int, int]:
    """The partition count, and the last resize of which the cuts are known."""
    return queue.settings.partition_count, queue.resize.seen


def begins(changes: Mapping[str, Any], queue: Queue) -> bool:
    """Whether cuts are to be awaited with these changes of settings. Raises ResizeUnsettled.

    Of what came before ordered resizes are switched on, the queue knows nothing yet. So it cannot
    be resized by the same call, and takes the cuts of the log's last resize first.
    """
    if changes.get("ordered_resize"):
        if "partition_count" in changes:
            raise ResizeUnsettled(
                f"the queue {queue.name!r}",
                "its cuts are read when ordered resizes are switched on",
                "switch them on first, and resize in a second call.",
            )
        return True
    ordered = queue.settings.ordered_resize and changes.get("ordered_resize", True)
    if not ordered or "partition_count" not in changes:
        return False
    refuse_unsettled(queue)
    return True


def follows(command: c.FollowLog, draft: Draft) -> bool:
    """Whether the queue is to be resized as its log was, by this command and now."""
    queue = draft.queue
    if not queue.settings.ordered_resize or command.resize <= queue.resize.seen:
        return False
    if queue.resize.barriers is not None:
        _await_further(draft)
        return False
    # While cuts are awaited, the log may have been resized once more.
    count = queue.settings.partition_count
    return queue.resize.cuts_due is None or command.partition_count != count


def _await_further(draft: Draft) -> None:
    """Those of a further resize can be taken when those in force are reached."""
    if draft.queue.resize.cuts_due is None:
        await_cuts(draft)


def await_cuts(draft: Draft) -> None:
    """There was a resize, or there may have been one: its cuts are to be read from the log."""
    draft.emit(CutsAwaited(draft.now + FIRST_SECONDS))


def await_again(draft: Draft) -> None:
    """The log has not answered in time."""
    attempt = draft.queue.resize.cuts_attempt + 1
    seconds = min(FIRST_SECONDS * 2 ** min(attempt, 10), MOST_SECONDS)
    draft.emit(CutsAwaited(draft.now + seconds, attempt))


def take_cuts(command: c.TakeCuts, draft: Draft) -> None:
    """Takes over the cuts of the log's last resize."""
    queue = draft.queue
    if not queue.settings.ordered_resize or command.resize < queue.resize.seen:
        return
    if command.resized_to != queue.settings.partition_count:
        # The queue does not follow the log yet, or the log does not follow the queue.
        return
    if command.resize == queue.resize.seen:
        if queue.resize.cuts_due is not None and queue.resize.barriers is None:
            # Nobody has resized the log meanwhile.
            _take(draft, command, ())
    elif queue.resize.barriers is not None:
        _await_further(draft)
    else:
        _take(draft, command, _known(queue, command.cuts))


def _known(queue: Queue, cuts: tuple[c.LogCut, ...]) -> tuple[Cut, ...]:
    """The cuts of partitions that there are. A position that was set since it was read says nothing
    of what is processed; then the next owner of the partition says it."""
    found = []
    for number, cut, reached, epoch in cuts:
        partition = queue.partitions.get(number)
        if partition is not None:
            gone = partition.state is State.REMOVED
            is_reached = reached and epoch in (None, partition.epoch)
            found.append(Cut(number, cut, is_reached or gone))
    return tuple(found)


def _take(draft: Draft, command: c.TakeCuts, cuts: tuple[Cut, ...]) -> None:
    draft.emit(CutsTaken(command.resize, command.resized_from, command.resized_to, cuts))


def reach_cuts(command: c.ReachCuts, draft: Draft) -> None:
    """Owners have processed partitions up to their cuts."""
    numbers = [
        number
        for number, epoch in command.items
        if (partition := draft.queue.partitions.get(number)) and partition.epoch == epoch
    ]
    reach(draft, numbers, command.resize)


def reach(draft: Draft, numbers: list[int], resize: int) -> None:
    """These partitions are processed up to the cuts of this resize, if it is the one that waits."""
    barriers = draft.queue.resize.barriers
    if barriers is None or barriers.resize != resize:
        return
    new = tuple(number for number in numbers if number in barriers.unreached)
    if new:
        draft.emit(CutsReached(new))
        due_at_once(draft)


def due_at_once(draft: Draft) -> None:
    """The cuts of a further resize, if they are awaited, can be taken now."""
    queue = draft.queue
    if queue.resize.barriers is None and queue.resize.cuts_due is not None:
        draft.emit(CutsAwaited(draft.now, queue.resize.cuts_attempt))


def refuse_outdated(command: c.RaiseEpochs, queue: Queue) -> None:
    """Raises LogChanged if the queue knows of a later resize than the command: then the command
    does not say which barriers come back.
    """
    if command.cuts is not None and command.cuts.resize < queue.resize.seen:
        raise LogChanged("resized")


def positions_set(command: c.RaiseEpochs, draft: Draft) -> None:
    """Positions were set: barriers are lifted by it, or come back."""
    queue, cuts = draft.queue, command.cuts
    if not queue.settings.ordered_resize or queue.resize.cuts_due is not None:
        return
    if cuts is None or cuts.resize != queue.resize.seen:
        return
    held = set() if queue.resize.barriers is None else queue.resize.barriers.unreached
    named = set(command.partitions)
    known = tuple(
        one
        if one.partition in named
        else one._replace(reached=one.reached and one.partition not in held)
        for one in _known(queue, cuts.cuts)
    )
    if {one.partition for one in known if not one.reached} != held:
        _take(draft, cuts, known)
