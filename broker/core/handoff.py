"""The steps of one handoff (the contract, *One handoff*), for all who take them."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import Flow, HandedOver, Handoff
from broker.core.queue import Queue


def redirect(draft: Draft, number: int, flow: Flow) -> None:
    """Gives a warming handoff another successor, which warms up anew, or takes the partition as it
    is."""
    deadline = draft.now + draft.queue.settings.max_warmup_time
    draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), deadline, draft.now))
    if not flow.warmup:
        revoke(draft, (number,), ready=False)


def is_ready(queue: Queue, number: int) -> bool:
    """Whether the successor has said that it is ready, in the present epoch.

    Not where the epoch was raised since, as when positions were set: it warms up anew.
    """
    handoff, warmed = queue.handoffs.get(number), queue.warmed.get(number)
    if handoff is None or handoff.named is None:
        return False
    return warmed == (handoff.named.id, queue.partitions[number].epoch)


def revoke(draft: Draft, numbers: Iterable[int], *, ready: bool) -> None:
    """Ends warm-ups: the owners are to finish and release. `ready`: the successors said so."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(tuple(numbers), ready, deadline, draft.now))


def force(draft: Draft, handoffs: Iterable[Handoff]) -> None:
    """The deadlines have come: the successors get the groups whatever the owners do, or the owners
    get them anew. Each handoff stands for its group."""
    grants: list[r.Grant] = []
    for handoff in handoffs:
        group = [draft.queue.partitions[number] for number in draft.queue.group(handoff.number)]
        flow = handoff.successor or group[0].owner
        assert flow is not None
        grants += (draft.drawn_up(one, flow, HandedOver.FORCED, by_handoff=True) for one in group)
    draft.grant_all(grants)
