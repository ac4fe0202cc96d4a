"""The steps of one handoff (the contract, *One handoff*), for all who take them."""

from __future__ import annotations

from broker.core import records as r
from broker.core.draft import Draft
from broker.core.model import Flow, HandedOver, Handoff


def is_to_be_revised(draft: Draft) -> bool:
    """Whether the warm-ups under way may not be what is needed any more.

    So it is from a change until the partitions that it left without an owner are granted, which may
    take many slices. A revoke is never taken back, so no warm-up ends before that.
    """
    queue = draft.queue
    changed = draft.changed or queue.unassigned or queue.without_successor
    return bool(queue.warming and changed)


def redirect(draft: Draft, number: int, flow: Flow) -> None:
    """Gives a warming handoff another successor, which warms up anew, or takes the partition as it
    is."""
    deadline = draft.now + draft.queue.settings.max_warmup_time
    draft.emit(r.HandoffsRedirected((r.Redirect(number, flow.id),), deadline, draft.now))
    if not flow.warmup:
        end_warmup(draft, number, ready=False)


def end_warmup(draft: Draft, number: int, *, ready: bool) -> None:
    """The handoff goes on, as soon as it is known to be needed; `ready`: the successor said so."""
    if is_to_be_revised(draft):
        draft.emit(r.WarmupsReady((number,)))
    else:
        revoke(draft, (number,), ready=ready)


def revoke(draft: Draft, numbers: tuple[int, ...], *, ready: bool) -> None:
    """Ends warm-ups: the owners are to finish and release."""
    deadline = draft.now + draft.queue.settings.max_handoff_time
    draft.emit(r.WarmupsEnded(numbers, ready, deadline, draft.now))


def force(draft: Draft, handoff: Handoff) -> None:
    """The deadline has come: the successor gets the partition whatever the owner does, or the owner
    gets it anew."""
    partition = draft.queue.partitions[handoff.number]
    flow = handoff.successor or partition.owner
    assert flow is not None
    draft.grant(partition, flow, HandedOver.FORCED, by_handoff=True)
