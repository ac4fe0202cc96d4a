"""Flows that leave (the contract, rules 3 to 5 and 12): who gets their partitions.

Partitions that are being handed off go to their successors. The others have no owner, or go to the
flow that replaces the one that left. An instance that comes back within a holddown gets back what
it left (`Absent`). If it has come back with a smaller maximum (`shares`), the partitions with the
highest numbers stay without an owner.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.handoff import redirect
from broker.core.model import Flow, HandedOver, Partition
from broker.core.queue import Queue
from broker.core.transitions import State


def leave(
    draft: Draft,
    flow: Flow,
    reason: str,
    *,
    remember: bool = False,
    heir: Flow | None = None,
    seen_at: float | None = None,
) -> list[int]:
    """The flow leaves; the partitions that have no owner now.

    `heir` is the flow that replaces it. `seen_at`: its last renewal, if its lease expired.
    """
    if seen_at is not None:
        draft.seen_at = {flow.id: seen_at}
    beyond = frozenset[int]()
    if heir is not None:
        beyond = _beyond(draft.queue, _counted(draft.queue, flow), heir)
        for number in sorted(flow.incoming - beyond):
            _name(draft, number, heir, alike=_are_alike(draft.queue, flow, heir))
        if flow.owned:
            draft.outside("replaced")
    grants = [
        _passed_on(draft, number, None if number in beyond else heir)
        for number in sorted(flow.owned)
    ]
    draft.grant_all(grant for grant in grants if grant is not None)
    left = sorted(flow.owned)
    draft.emit(r.FlowLeft(flow.id, reason, remember, draft.now, seen_at))
    draft.granted()
    return left


def give_back(draft: Draft, numbers: Iterable[int], flow: Flow) -> None:
    """The instance gets these partitions, which it left and nobody owned since (rule 12)."""
    queue, back = draft.queue, [*numbers]
    beyond = _beyond(queue, back, flow)
    draft.outside("replaced")
    draft.grant_all(
        _kept(draft, queue.partitions[number], flow) for number in back if number not in beyond
    )
    draft.granted()


def _counted(queue: Queue, flow: Flow) -> list[int]:
    """The partitions that the heir of this flow would work on, now or later."""
    return sorted(
        number
        for number in flow.owned | flow.incoming
        if number in flow.incoming
        or queue.partitions[number].state is not State.REVOKING
        or queue.handoffs[number].successor is None
    )


def _beyond(queue: Queue, numbers: list[int], heir: Flow) -> frozenset[int]:
    """Of these partitions, lowest first, the ones for which the heir has no room."""
    most = queue.most_groups(heir.max_partitions)
    if most is None:
        return frozenset()
    counted = [number for number in numbers if queue.leads(number) and number not in queue.retiring]
    return frozenset(each for number in counted[most:] for each in queue.group(number))


def _are_alike(queue: Queue, flow: Flow, heir: Flow) -> bool:
    """Whether the balance is the same for both."""
    is_named_alike = not queue.pins.of or flow.client_name == heir.client_name
    return is_named_alike and flow.asks == heir.asks


def _name(draft: Draft, number: int, heir: Flow, *, alike: bool) -> None:
    """The heir is the successor of what was on its way to the flow that leaves. If it is not
    `alike`, the loop plans anew what is only warming."""
    if draft.queue.partitions[number].state is not State.WARMING:
        draft.emit(r.HandoffsRedirected((r.Redirect(number, heir.id),), None, draft.now))
    elif alike:
        redirect(draft, number, heir)


def _passed_on(draft: Draft, number: int, heir: Flow | None) -> r.Grant | None:
    """The grant of a partition of the flow that leaves; None if there is nobody to get it."""
    queue = draft.queue
    partition, handoff = queue.partitions[number], queue.handoffs.get(number)
    successor = None if handoff is None else handoff.successor
    if heir is not None and (partition.state is not State.REVOKING or successor in (None, heir)):
        return _kept(draft, partition, heir)
    if successor is None or successor is partition.owner:
        return None
    return draft.drawn_up(partition, successor, HandedOver.ORPHANED, by_handoff=True)


def _kept(draft: Draft, partition: Partition, flow: Flow) -> r.Grant:
    """The grant to the instance that held the partition last, with a flow of its own.

    If positions were set meanwhile (which raises the epoch) it gets the partition too, but may not
    go on as if nothing had been (`replaced`).
    """
    raised = partition.next_handed_over == HandedOver.FORCED
    return draft.drawn_up(partition, flow, HandedOver.FORCED if raised else HandedOver.REPLACED)
