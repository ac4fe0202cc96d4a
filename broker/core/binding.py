"""Flows come and go: bind, unbind and drain (the contract, *What triggers what*)."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core import commands as c
from broker.core.assignment import is_balanced
from broker.core.draft import Draft
from broker.core.errors import Overtaken
from broker.core.loop import (
    grant_outside,
    hold_down,
    redirect,
    take_up,
)
from broker.core.state import records as r
from broker.core.state.model import Flow, HandedOver
from broker.core.state.transitions import State, Status


def bind(command: c.Bind, draft: Draft) -> None:
    """A consumer joins (rules 1, 2 and 12). Raises Overtaken."""
    queue = draft.queue
    before = queue.takers
    instance = (command.key_id, command.instance_id)
    predecessor = queue.by_instance.get(instance)
    if predecessor is not None and _is_overtaken(command, predecessor):
        raise Overtaken(command.instance_id)
    departed = queue.departed.get(instance)
    seat = predecessor.seat if predecessor else departed.seat if departed else queue.next_seat
    draft.emit(
        r.FlowBound(
            command.flow_id,
            command.instance_id,
            command.client_name,
            seat,
            command.lease_seconds,
            command.warmup,
            draft.now,
            command.binder,
            command.attempt,
            command.key_id,
        )
    )
    flow = queue.flows[command.flow_id]
    if predecessor is not None:
        _replace(draft, predecessor, flow)
        if queue.status is Status.READY and not is_balanced(queue):
            hold_down(draft, "replaced", before)
            return
    elif departed is not None:
        _give_back(draft, flow, departed.partitions)
    if queue.status is not Status.READY:
        take_up(draft)
    elif predecessor is None and before < queue.share_count:
        hold_down(draft, "bind", before)


def _is_overtaken(command: c.Bind, bound: Flow) -> bool:
    """Whether the program that is bound sent this before: a bind that was long on its way would
    take its partitions for a flow that nobody knows of, and tell it to end.
    """
    same = command.binder is not None and command.binder == bound.binder
    return same and command.attempt <= bound.attempt


def _replace(draft: Draft, old: Flow, new: Flow) -> None:
    """Rule 12: the new flow takes the old one's place, its partitions and its warm-ups at once."""
    queue = draft.queue
    for number in sorted(old.incoming):
        if queue.partitions[number].state is State.WARMING:
            redirect(draft, number, new)
        else:
            draft.emit(r.HandoffsRedirected((r.Redirect(number, new.id),), None, draft.now))
    if old.owned:
        draft.outside("replaced")
    for number in sorted(old.owned):
        partition = queue.partitions[number]
        handoff = queue.handoffs.get(number)
        if partition.state is State.REVOKING:
            assert handoff is not None
            successor = handoff.successor or new
            same = successor is new
            draft.grant(
                partition,
                successor,
                HandedOver.REPLACED if same else HandedOver.ORPHANED,
                by_handoff=not same,
            )
        else:
            draft.grant(partition, new, HandedOver.REPLACED)
    draft.emit(r.FlowLeft(old.id, "replaced", remember=False, at=draft.now))


def _give_back(draft: Draft, flow: Flow, held: Sequence[tuple[int, int]]) -> None:
    """Rule 12 within a holddown: an instance that left during it gets back what nobody owned since.

    `held`: (partition, epoch) as it left them. If positions were set meanwhile (which raises the
    epoch) it gets them back too, but is not told that it may go on as if nothing had been
    (`replaced`).
    """
    queue = draft.queue
    back = [
        (queue.partitions[number], epoch)
        for number, epoch in held
        if number in queue.unassigned
        and (
            queue.partitions[number].epoch == epoch
            or queue.partitions[number].let_go == HandedOver.FORCED
        )
    ]
    if back:
        draft.outside("replaced")
    for partition, epoch in back:
        same = partition.epoch == epoch
        draft.grant(partition, flow, HandedOver.REPLACED if same else partition.let_go)


def unbind(command: c.Unbind, draft: Draft) -> None:
    """A flow leaves (rules 3 to 5)."""
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    trigger = "lease_expired" if command.reason == "lease_expired" else "unbind"
    before = queue.takers
    for number in sorted(flow.owned):
        handoff = queue.handoffs.get(number)
        if handoff is not None and handoff.successor not in (None, flow):
            assert handoff.successor is not None
            draft.grant(
                queue.partitions[number], handoff.successor, HandedOver.ORPHANED, by_handoff=True
            )
    left_alone = sorted(flow.owned)
    after = before - (not flow.draining)
    excess = after >= queue.share_count
    # A drained flow is missed by nobody: F and the assignment are what they were without it.
    missed = queue.status is Status.READY and bool(left_alone) and not excess
    holddown = queue.status is Status.HOLDDOWN or (missed and queue.settings.rebalance_delay > 0)
    draft.emit(r.FlowLeft(flow.id, command.reason, remember=holddown, at=draft.now))
    if excess and left_alone and queue.status is not Status.REBALANCING:
        # In one piece, like the departure itself: a Ready queue stays Ready.
        draft.room = len(left_alone)
        grant_outside(draft, trigger, left_alone)
    if queue.status is not Status.READY:
        take_up(draft)
    elif missed:
        hold_down(draft, trigger, before)


def drain(command: c.Drain, draft: Draft) -> None:
    """A flow begins to leave in order (rule 11)."""
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    timeout = command.timeout_seconds
    deadline = None if timeout is None else draft.now + timeout
    if flow.draining:
        if deadline is None or (
            flow.drain_deadline is not None and flow.drain_deadline <= deadline
        ):
            return
        draft.emit(r.FlowDraining(flow.id, deadline))
        return
    before = queue.takers
    draft.emit(r.FlowDraining(flow.id, deadline))
    if queue.status is Status.READY:
        hold_down(draft, "drain", before)
    else:
        take_up(draft)
