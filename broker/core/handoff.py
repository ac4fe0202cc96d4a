"""The steps of one handoff (the contract, *One handoff*), for all who take them."""

from __future__ import annotations

from broker.core.draft import Draft
from broker.core.state import records as r
from broker.core.state.model import Flow, HandedOver, Handoff


def redirect(draft: Draft, number: int, flow: Flow) -> None:
    """Gives a warming handoff another successor, which warms up anew, or takes the partition as it
    is."""
    deadline = draft.now + draft.queue.settings.max_warmup_time
    draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), deadline, draft.now))
    if not flow.warmup:
        revoke(draft, (number,), ready=False)


def revoke(draft: Draft, numbers: tuple[int, ...], *, ready: bool) -> None:
    """Ends warm-ups: the owners are told to finish and release."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(numbers, ready, deadline, draft.now))


def force(draft: Draft, handoff: Handoff) -> None:
    """The deadline has come: the successor gets the partition whatever the owner does, or the owner
    gets it anew."""
    partition = draft.queue.partitions[handoff.number]
    flow = handoff.successor or partition.owner
    assert flow is not None
    draft.grant(partition, flow, HandedOver.FORCED, by_handoff=True)


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
