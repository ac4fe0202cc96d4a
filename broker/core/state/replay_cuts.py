"""What the records of ordered resizes do to a queue (`broker.core.state.ordered`)."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.state.applying import apply
from broker.core.state.ordered import records as o
from broker.core.state.ordered.barriers import Barriers
from broker.core.state.queue import Queue


def switched(queue: Queue) -> None:
    """Ordered resizes are switched on or off: nothing is known of cuts, and every view says so."""
    queue.set("resize_seen", 0)
    queue.set("barriers", None)
    queue.set("cuts_due", None)
    queue.set("cuts_attempt", 0)
    _touch_all(queue)


def reached(queue: Queue, numbers: Iterable[int]) -> None:
    """Partitions are processed up to their cuts, or gone: what waited for them alone goes on."""
    barriers = queue.barriers
    if barriers is None:
        return
    for number in numbers:
        for changed in barriers.reach(queue.journal, number):
            partition = queue.find(changed)
            if partition is not None:
                queue.touch(partition.owner)
            if partition is not None and changed == number:
                queue.journal.note(partition)
    _settle(queue, barriers)


def _settle(queue: Queue, barriers: Barriers) -> None:
    if barriers.settled:
        queue.set("barriers", None)


def _touch_all(queue: Queue) -> None:
    for flow in queue.flows.values():
        queue.touch(flow)


@apply.register
def _(record: o.CutsAwaited, queue: Queue) -> None:
    if queue.barriers is not None and not queue.barriers.in_force:
        # What was told so far is told anew: positions may have been set since.
        queue.set("barriers", None)
    queue.set("cuts_due", record.due)
    queue.set("cuts_attempt", record.attempt)


@apply.register
def _(record: o.CutsTaken, queue: Queue) -> None:
    barriers = queue.barriers
    if record.first == 0:
        barriers = Barriers(record.resize, record.resized_from, record.resized_to)
        queue.set("barriers", barriers)
    assert barriers is not None
    for number, cut, is_reached in record.cuts:
        barriers.tell(queue.journal, number, cut, is_reached)
        queue.journal.note(queue.partitions[number])
    queue.journal.set(barriers, "next", record.next)
    if record.next is None:
        queue.set("resize_seen", record.resize)
        queue.set("cuts_due", None)
        queue.set("cuts_attempt", 0)
        _touch_all(queue)
        _settle(queue, barriers)


@apply.register
def _(record: o.CutsReached, queue: Queue) -> None:
    reached(queue, record.partitions)
