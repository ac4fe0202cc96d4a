"""The steps of one handoff (the contract, *One handoff*), for all who take them."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import Flow, HandedOver, Handoff
from broker.core.queue import Queue


def is_to_be_revised(draft: Draft) -> bool:
    """Whether the warm-ups under way may not be what is needed any more.

    So it is from a change until the partitions that it left without an owner are granted, which may
    take many slices. A revoke is never taken back, so no warm-up ends before that.
    """
    queue = draft.queue
    return bool(queue.warming and (draft.changed or queue.unassigned))


def redirect(draft: Draft, number: int, flow: Flow) -> None:
    """Gives a warming handoff another successor, which warms up anew, or takes the partition as it
    is."""
    deadline = draft.now + draft.queue.settings.max_warmup_time
    draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), deadline, draft.now))
    if not flow.warmup:
        end_warmups(draft, (number,), ready=False)


def end_warmups(draft: Draft, numbers: Iterable[int], *, ready: bool) -> None:
    """The handoffs go on, as soon as they are known to be needed; `ready`: the successor said
    so."""
    if is_to_be_revised(draft):
        draft.emit(r.WarmupsReady(tuple(numbers)))
    else:
        revoke(draft, numbers, ready=ready)


def is_ready(queue: Queue, number: int) -> bool:
    """Whether the successor has said that it is ready, in the present epoch.

    Not where the epoch was raised since, as when positions were set: it warms up anew.
    """
    handoff, warmed = queue.handoffs.get(number), queue.warmed.get(number)
    if handoff is None or handoff.named is None:
        return False
    return warmed == (handoff.named.id, queue.partitions[number].epoch)


def revoke(draft: Draft, numbers: Iterable[int], *, ready: bool) -> None:
    """Ends warm-ups: the owners are to finish and release."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(tuple(numbers), ready, deadline, draft.now))


def force(draft: Draft, handoff: Handoff) -> None:
    """The deadline has come: the successor gets the group whatever the owner does, or the owner
    gets it anew."""
    queue = draft.queue
    flow = handoff.successor or queue.partitions[handoff.number].owner
    assert flow is not None
    for number in queue.group(handoff.number):
        draft.grant(queue.partitions[number], flow, HandedOver.FORCED, by_handoff=True)
