"""Flows come and go: bind, unbind and drain (the contract, *What triggers what*)."""

from __future__ import annotations

from broker.core import commands as c
from broker.core.assignment import is_balanced
from broker.core.departing import leave, settle
from broker.core.draft import Draft
from broker.core.errors import Overtaken
from broker.core.loop import (
    grant_outside,
    hold_down,
    rebalance_if_replaced,
    take_up,
    unassigned,
)
from broker.core.state import records as r
from broker.core.state.model import Flow
from broker.core.state.transitions import Status

# Reasons to leave that are triggers of their own: the consumer failed.
FAILURES = ("lease_expired", "driver_lost")


def bind(command: c.Bind, draft: Draft) -> None:
    """A consumer joins (rules 1, 2 and 12). Raises Overtaken."""
    queue = draft.queue
    before = queue.takers
    instance = (command.key_id, command.instance_id)
    predecessor = queue.by_instance.get(instance)
    if predecessor is not None and _is_overtaken(command, predecessor):
        raise Overtaken(command.instance_id)
    absent = queue.absent.get(instance)
    bind_number = (
        predecessor.bind_number
        if predecessor
        else absent.bind_number
        if absent
        else queue.next_bind_number
    )
    draft.emit(
        r.FlowBound(
            command.flow_id,
            command.instance_id,
            command.client_name,
            bind_number,
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
        leave(draft, predecessor, "replaced", heir=flow)
    settle(draft)
    if queue.status is not Status.READY:
        take_up(draft)
    elif predecessor is not None:
        rebalance_if_replaced(draft, joined=predecessor.draining)
    elif before < queue.share_count or (queue.lineage is not None and not is_balanced(queue)):
        hold_down(draft, "bind", before)


def _is_overtaken(command: c.Bind, bound: Flow) -> bool:
    """Whether the program that is bound sent this before: a bind that was long on its way would
    take its partitions for a flow that nobody knows of, and tell it to end.
    """
    same = command.binder is not None and command.binder == bound.binder
    return same and command.attempt <= bound.attempt


def unbind(command: c.Unbind, draft: Draft) -> None:
    """A flow leaves (rules 3 to 5)."""
    queue = draft.queue
    flow = draft.flow(command.flow_id)
    trigger = command.reason if command.reason in FAILURES else "unbind"
    before = queue.takers
    excess = before - (not flow.draining) >= queue.share_count
    owned = bool(flow.owned)
    # A drained flow is missed by nobody: F and the assignment are what they were without it.
    missed = queue.status is Status.READY and owned and not excess
    holddown = queue.status is Status.HOLDDOWN or (missed and queue.settings.rebalance_delay > 0)
    left = leave(draft, flow, command.reason, remember=holddown)
    if excess and owned and queue.status is not Status.REBALANCING:
        draft.outside(trigger)
        settle(draft)
        # The rest of a discard goes first, and may take some of what the flow left.
        numbers = unassigned(draft) if left is None else [*filter(queue.exists, left)]
        grant_outside(draft, trigger, numbers)
    if queue.status is not Status.READY:
        take_up(draft)
    elif missed:
        hold_down(draft, trigger, before)
        settle(draft)


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
