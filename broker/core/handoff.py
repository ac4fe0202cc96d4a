"""The steps of one handoff (the contract, *One handoff*), for all who take them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import Flow, HandedOver, Handoff
from broker.core.queue import Queue


def room(queue: Queue) -> int:
    """How many handoffs may begin beside those that are under way."""
    most = queue.settings.max_concurrent_handoffs
    if most is None:
        return queue.group_count + len(queue.retiring)
    return max(0, most - len(queue.handoffs) // queue.settings.aligned)


def begin(draft: Draft, planned: Iterable[tuple[int, Flow, Flow]]) -> None:
    """Begins handoffs: the partition (of a group the first), its owner and its successor."""
    queue, now, settings = draft.queue, draft.now, draft.queue.settings
    for warm, some in groupby(planned, partial(_is_warm, draft)):
        moves = tuple(
            r.Move(each, owner.id, successor.id)
            for number, owner, successor in some
            for each in queue.group(number)
        )
        if warm:
            draft.emit(r.WarmupsStarted(moves, now + settings.max_warmup_time, now))
        else:
            draft.emit(r.RevokesStarted(moves, now + settings.max_handoff_time, now))


def _is_warm(draft: Draft, planned: tuple[int, Flow, Flow]) -> bool:
    """Whether a handoff begins with a warm-up."""
    _, owner, successor = planned
    cut_short = owner.drain_deadline is not None and owner.drain_deadline <= draft.now
    return successor.warmup and not cut_short and draft.queue.settings.max_warmup_time > 0


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
    handoff, warmed = queue.handoffs.get(number), queue.handoffs.warmed.get(number)
    if handoff is None or handoff.named is None:
        return False
    return warmed == (handoff.named.id, queue.partitions[number].epoch)


def revoke(draft: Draft, numbers: Iterable[int], *, ready: bool) -> None:
    """Ends warm-ups: the owners are to finish and release. `ready`: the successors said so."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(tuple(numbers), ready, deadline, draft.now))


def force(draft: Draft, handoffs: Iterable[Handoff]) -> None:
    """The deadlines have come: the successors get the groups whatever the owners do, or the owners
    get them anew if they have room. Each handoff stands for its group."""
    grants: list[r.Grant] = []
    for handoff in handoffs:
        group = [draft.queue.partitions[number] for number in draft.queue.group(handoff.number)]
        successor = handoff.successor
        flow = successor or group[0].owner
        assert flow is not None
        if successor is None and _has_maximum(draft.queue, flow):
            _take(draft, flow, handoff)
            continue
        grants += (draft.drawn_up(one, flow, HandedOver.FORCED, by_handoff=True) for one in group)
    draft.grant_all(grants)


def _has_maximum(queue: Queue, flow: Flow) -> bool:
    """Whether the flow may have no more (`shares`)."""
    most = queue.most_groups(flow.max_partitions)
    return most is not None and flow.load >= most


def _take(draft: Draft, owner: Flow, handoff: Handoff) -> None:
    """The group has no owner, and it is not known what its owner has processed of it."""
    numbers = tuple(draft.queue.group(handoff.number))
    for number in numbers:
        draft.emit(r.Released(number, owner.id, draft.now))
    draft.emit(r.EpochsRaised(numbers, draft.now))
