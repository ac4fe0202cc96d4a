"""What flows say about their partitions: release and ready.

Repeating either is harmless, and each item of a call stands for itself (the contract, *HTTP*).
"""

from __future__ import annotations

from broker.core import commands as c
from broker.core.commands import Outcome, Result
from broker.core.draft import Draft
from broker.core.handoff import remove, revoke
from broker.core.loop import take_up
from broker.core.state import records as r
from broker.core.state.model import Flow, HandedOver, Partition
from broker.core.state.queue import Queue
from broker.core.state.transitions import State


def release(command: c.Release, draft: Draft) -> tuple[Result, ...]:
    """An owner lets partitions go."""
    flow = draft.flow(command.flow_id)
    results = tuple(_release(draft, flow, item) for item in command.items)
    if draft.records:
        take_up(draft, changed=False)
    return results


def _release(draft: Draft, flow: Flow, item: c.ReleaseItem) -> Result:
    queue = draft.queue
    partition = queue.find(item.partition)
    if partition is None:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if partition.released_by == flow.id:
        ended = partition.epoch if partition.owner is None else partition.epoch - 1
        if item.epoch == ended:
            return Result(item.partition, Outcome.OK)
    refusal = _refuse(partition, flow, item.epoch)
    if refusal is not None:
        return refusal
    revoking = partition.state is State.REVOKING
    if item.finished and not partition.retiring:
        return Result(item.partition, Outcome.NOT_REVOKING)
    if not (item.finished or revoking or flow.draining):
        return Result(item.partition, Outcome.NOT_REVOKING)
    handoff = queue.handoffs.get(item.partition)
    if item.finished:
        remove(draft, (item.partition,), "finished")
    elif handoff is not None and handoff.successor is not None:
        draft.grant(partition, handoff.successor, HandedOver.GRACEFUL, by_handoff=True)
    else:
        if partition.state is State.WARMING:
            # The successor has left, and no other was named yet.
            draft.emit(r.HandoffsCalledOff((item.partition,)))
        draft.emit(r.Released(item.partition, flow.id, draft.now))
    return Result(item.partition, Outcome.OK)


def _refuse(partition: Partition, flow: Flow, epoch: int) -> Result | None:
    """What forbids the owner's act, if anything does; the first that applies (the contract,
    *HTTP*)."""
    if partition.state is State.REMOVED:
        return Result(partition.number, Outcome.NO_SUCH_PARTITION)
    if epoch < partition.epoch:
        return Result(partition.number, Outcome.STALE_EPOCH, partition.epoch)
    if partition.owner is not flow or epoch > partition.epoch:
        return Result(partition.number, Outcome.NOT_OWNER)
    return None


def ready(command: c.Ready, draft: Draft) -> tuple[Result, ...]:
    """A successor has restored the state of partitions."""
    flow = draft.flow(command.flow_id)
    results: list[Result] = []
    for item in command.items:
        outcome = _refuse_ready(draft.queue, flow, item)
        if outcome is None:
            revoke(draft, (item.partition,), ready=True)
            outcome = Result(item.partition, Outcome.OK)
        results.append(outcome)
    return tuple(results)


def _refuse_ready(queue: Queue, flow: Flow, item: c.ReadyItem) -> Result | None:
    partition = queue.find(item.partition)
    if partition is None or partition.state is State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if queue.warmed.get(item.partition) == (flow.id, item.epoch):
        return Result(item.partition, Outcome.OK)
    if item.epoch < partition.epoch:
        return Result(item.partition, Outcome.STALE_EPOCH, partition.epoch)
    if item.epoch > partition.epoch or partition.owner is None:
        return Result(item.partition, Outcome.NOT_OWNER)
    handoff = queue.handoffs.get(item.partition)
    if handoff is None or handoff.successor is not flow or partition.state is not State.WARMING:
        return Result(item.partition, Outcome.NOT_WARMING)
    return None
