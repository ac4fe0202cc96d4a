"""Flows that leave (the contract, rules 3 to 5 and 12): who gets their partitions, and when.

With few partitions it is one step: those that are being handed off go to their successors, and the
rest has no owner, or goes to the flow that replaces the one that left. With more than a slice has
room for, the flow leaves first (`FlowDeparted`), so that nobody can act for it any more and its
place in the order of binding is free. It is `gone` then, and `settle` takes its partitions from it,
lowest number first, in as many slices as it takes. Nothing else of the loop is done before that. So
each partition gets the same owner as if all had been done at once.

In the same way an instance that comes back within a holddown gets back what it left (`Absent`).
"""

from __future__ import annotations

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.handoff import redirect
from broker.core.model import Absent, Flow, HandedOver, Partition
from broker.core.queue import Queue
from broker.core.resizing import resize
from broker.core.transitions import State


def leave(
    draft: Draft,
    flow: Flow,
    reason: str,
    *,
    remember: bool = False,
    heir: Flow | None = None,
    seen_at: float | None = None,
) -> list[int] | None:
    """The flow leaves; the partitions that have no owner now, None if that takes more slices.

    `heir` is the flow that replaces it. `seen_at`: its last renewal, if its lease expired.
    """
    if len(flow.owned) + len(flow.incoming) > draft.budget:
        draft.emit(r.FlowDeparted(flow.id, reason, remember, draft.now, seen_at))
        return None
    if heir is not None:
        for number in sorted(flow.incoming):
            _name(draft, number, heir)
    if seen_at is not None:
        draft.seen_at = {flow.id: seen_at}
    for number in sorted(flow.owned):
        _pass_on(draft, flow, number, heir)
    left = sorted(flow.owned)
    draft.emit(r.FlowLeft(flow.id, reason, remember, draft.now, seen_at))
    return left


def settle(draft: Draft) -> bool:
    """Completes a resize, then takes their partitions from flows that are gone; returns whether
    that is done.
    """
    return resize(draft) and take_from_gone(draft)


def take_from_gone(draft: Draft) -> bool:
    """Takes their partitions from flows that are gone, and gives back those of instances that came
    back, as far as there is room; returns whether that is done.
    """
    queue = draft.queue
    for flow in sorted(queue.gone.values(), key=lambda flow: flow.id):
        # What is taken from one may be the last that another was to get.
        while flow.id in queue.gone:
            if draft.budget <= 0:
                draft.is_cut_off = True
                return False
            number = queue.first_left(flow)
            assert number is not None
            for each in queue.group(number):
                _take(draft, flow, each)
    back = [queue.by_instance[i] for i in queue.absent if i in queue.by_instance]
    for flow in sorted(back, key=lambda flow: flow.bind_number):
        if not _give_back(draft, flow, queue.absent[flow.instance]):
            draft.is_cut_off = True
            return False
    if draft.granting == "replaced":
        draft.granted()
    return True


def ends_with_owner(draft: Draft, number: int) -> bool:
    """Takes the partition of a handoff from flows that are gone; returns whether the handoff ends
    with that, because the owner was one of them."""
    queue = draft.queue
    owner, named = queue.partitions[number].owner, queue.handoffs[number].named
    assert owner is not None
    for each in queue.group(number):
        if named is not None and named.gone and named is not owner:
            _take(draft, named, each)
        if owner.gone:
            _take(draft, owner, each)
    return owner.gone


def is_giving_back(queue: Queue) -> bool:
    """Whether flows are still to get what those that they replace had, or what they left."""
    return any(_heir(queue, flow) for flow in queue.gone.values()) or any(
        instance in queue.by_instance for instance in queue.absent
    )


def _heir(queue: Queue, flow: Flow) -> Flow | None:
    """The flow that replaces one that is gone, and gets what it had. Its place in the order of
    binding goes to the same instance only."""
    heir = queue.by_bind_number.get(flow.bind_number)
    return None if heir is None or heir.draining else heir


def _take(draft: Draft, flow: Flow, number: int) -> None:
    """Takes a partition from a flow that is gone, or names another successor in its place."""
    queue, heir = draft.queue, _heir(draft.queue, flow)
    if queue.partitions[number].owner is not flow:
        _name(draft, number, heir)
    elif not _pass_on(draft, flow, number, heir):
        draft.emit(r.Orphaned(flow.id, (number,), draft.now))


def _name(draft: Draft, number: int, heir: Flow | None) -> None:
    """Another successor for what was on its way to a flow that leaves."""
    if heir is not None and draft.queue.partitions[number].state is State.WARMING:
        redirect(draft, number, heir)
    else:
        to = heir.id if heir is not None else None
        draft.emit(r.HandoffsRedirected((r.Redirect(number, to),), None, draft.now))


def _pass_on(draft: Draft, flow: Flow, number: int, heir: Flow | None) -> bool:
    """Whether there is a flow that gets the partition of one that leaves: then it has it."""
    queue = draft.queue
    partition, handoff = queue.partitions[number], queue.handoffs.get(number)
    successor = None if handoff is None else handoff.successor
    if heir is not None:
        draft.outside("replaced")
        if partition.state is not State.REVOKING or successor in (None, heir):
            _go_on(draft, partition, heir)
            return True
    if successor is None or successor is flow:
        return False
    draft.grant(partition, successor, HandedOver.ORPHANED, by_handoff=True)
    return True


def _give_back(draft: Draft, flow: Flow, absent: Absent) -> bool:
    """Whether the instance has all that it left and nobody owned since (rule 12)."""
    queue = draft.queue
    while not flow.draining and (number := queue.first_to_give_back(absent)) is not None:
        if draft.budget <= 0:
            return False
        draft.outside("replaced")
        for each in queue.group(number):
            _go_on(draft, queue.partitions[each], flow)
    return True


def _go_on(draft: Draft, partition: Partition, flow: Flow) -> None:
    """The instance that held the partition last gets it, with a flow of its own.

    If positions were set meanwhile (which raises the epoch) it gets the partition too, but may not
    go on as if nothing had been (`replaced`).
    """
    raised = partition.next_handed_over == HandedOver.FORCED
    draft.grant(partition, flow, HandedOver.FORCED if raised else HandedOver.REPLACED)
