"""What flows report on their partitions: release, ready and children (the contract, *HTTP*).

Repeating a report is harmless, and each item of a call stands for itself. Each function takes a
command and the draft of a decision, emits records, and returns the outcome of every item.
"""

from __future__ import annotations

from broker.core import commands as c
from broker.core import cuts
from broker.core import records as r
from broker.core.commands import Outcome, Result
from broker.core.draft import Draft
from broker.core.handoff import is_ready, revoke
from broker.core.lineage import finish, lineage_of, record_children
from broker.core.loop import take_up
from broker.core.model import Flow, HandedOver, Partition
from broker.core.queue import Queue
from broker.core.resizing import remove
from broker.core.transitions import State


def release(command: c.Release, draft: Draft) -> tuple[Result, ...]:
    """An owner lets partitions go."""
    flow = draft.flow(command.flow_id)
    grants = _Grants(draft)
    results = tuple(_release(draft, flow, item, grants) for item in command.items)
    grants.make()
    if draft.records:
        # The end of a dynamic partition changes P.
        ended = draft.queue.lineage is not None and any(item.finished for item in command.items)
        take_up(draft, changed=ended)
    return results


class _Grants:
    """Grants to successors, made together: one record of many is applied sooner than many records.

    They are made before anything reads their partitions again, and before any other record.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._grants: dict[int, r.Grant] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._grants

    def add(self, partition: Partition, successor: Flow) -> None:
        """The owner has released the partition."""
        self._grants[partition.number] = self._draft.drawn_up(
            partition, successor, HandedOver.GRACEFUL, by_handoff=True
        )

    def make(self) -> None:
        """Makes those that wait."""
        if self._grants:
            self._draft.emit(r.Granted(tuple(self._grants.values()), self._draft.now))
            self._grants.clear()


def _release(draft: Draft, flow: Flow, item: c.ReleaseItem, grants: _Grants) -> Result:
    queue = draft.queue
    if item.partition in grants:
        grants.make()
    without_effect = _refuse_release(queue, flow, item)
    if without_effect is not None:
        return without_effect
    partition = queue.partitions[item.partition]
    if item.finished and queue.lineage is not None:
        grants.make()
        return Result(item.partition, _end(draft, flow, item))
    if item.reaches is not None:
        grants.make()
        cuts.reach(draft, [item.partition], item.reaches)
    _let_go(draft, flow, partition, grants, finished=item.finished)
    return Result(item.partition, Outcome.OK)


def _refuse_release(queue: Queue, flow: Flow, item: c.ReleaseItem) -> Result | None:
    """The outcome if nothing is to be done: the item is refused, or a repetition."""
    partition = queue.partitions.get(item.partition)
    if partition is None:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if partition.released_by == flow.id:
        ended = partition.epoch if partition.owner is None else partition.epoch - 1
        if item.epoch == ended:
            return Result(item.partition, Outcome.OK)
    refusal = _refuse(partition, flow, item.epoch)
    if refusal is not None:
        return refusal
    if partition.is_let_go:
        return Result(item.partition, Outcome.OK)
    if item.finished:
        allowed = partition.retiring or queue.lineage is not None
    else:
        allowed = partition.state is State.REVOKING or flow.draining
    if not allowed:
        return Result(item.partition, Outcome.NOT_REVOKING)
    return None if item.against is None else Result(item.partition, item.against)


def _let_go(
    draft: Draft, flow: Flow, partition: Partition, grants: _Grants, *, finished: bool
) -> None:
    """The owner lets the partition go, and with the last one of its group all of the group: it is
    its successor's, or removed, or nobody's."""
    queue = draft.queue
    group = queue.group(partition.number)
    if not all(queue.partitions[each].is_let_go for each in group if each != partition.number):
        grants.make()
        draft.emit(r.ReleasedInPart(partition.number))
        return
    handoff = queue.handoffs.get(partition.number)
    has_to = partition.state is State.REVOKING or flow.draining
    # A flow that has to let the group go anyway may not have finished all of it.
    if finished and (len(group) == 1 or not has_to):
        grants.make()
        remove(draft, tuple(group), "finished")
        cuts.due_at_once(draft)
    elif handoff is not None and handoff.successor is not None:
        for each in group:
            grants.add(queue.partitions[each], handoff.successor)
    else:
        grants.make()
        if partition.state is State.WARMING:
            # The successor has left, and no other was named yet.
            draft.emit(r.HandoffsCalledOff(tuple(group)))
        for each in group:
            draft.emit(r.Released(each, flow.id, draft.now))


def _end(draft: Draft, flow: Flow, item: c.ReleaseItem | c.ChildrenItem) -> Outcome:
    """A partition of a dynamic queue is finished, with what comes after it."""
    outcome = record_children(draft, item.children)
    if outcome is Outcome.OK:
        finish(draft, draft.queue.partitions[item.partition], flow.id)
    return outcome


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


def children(command: c.Children, draft: Draft) -> tuple[Result, ...]:
    """Owners report what comes after their partitions. Raises Invalid for a fixed queue."""
    flow = draft.flow(command.flow_id)
    lineage_of(draft.queue)
    results = tuple(_report(draft, flow, item) for item in command.items)
    if draft.records:
        take_up(draft, changed=any(item.finished for item in command.items))
    return results


def _report(draft: Draft, flow: Flow, item: c.ChildrenItem) -> Result:
    """One item: its children are recorded and it is finished, or nothing happens.

    The flow that finished the partition in its last epoch may still report what it left out.
    """
    queue = draft.queue
    partition = queue.partitions.get(item.partition)
    if partition is None:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    done = partition.state is State.FINISHED and partition.released_by == flow.id
    if not (done and item.epoch == partition.epoch):
        refusal = _refuse(partition, flow, item.epoch)
        if refusal is not None:
            return refusal
    if item.against is not None:
        return Result(item.partition, item.against)
    key = lineage_of(queue).nodes[item.partition].key
    if not all(key in child.parents for child in item.children):
        return Result(item.partition, Outcome.CONFLICTING_CHILD)
    if item.finished and not done:
        return Result(item.partition, _end(draft, flow, item))
    return Result(item.partition, record_children(draft, item.children))


def ready(command: c.Ready, draft: Draft) -> tuple[Result, ...]:
    """A successor has restored the state of partitions."""
    flow = draft.flow(command.flow_id)
    results: list[Result] = []
    for item in command.items:
        outcome = _refuse_ready(draft.queue, flow, item)
        if outcome is None:
            _warmed(draft, item.partition)
            outcome = Result(item.partition, Outcome.OK)
        results.append(outcome)
    return tuple(results)


def _warmed(draft: Draft, number: int) -> None:
    """The successor is ready; the warm-up of a group ends with the last of it."""
    queue = draft.queue
    group = queue.group(number)
    if all(is_ready(queue, other) for other in group if other != number):
        revoke(draft, group, ready=True)
    else:
        draft.emit(r.WarmupsReady((number,)))


def _refuse_ready(queue: Queue, flow: Flow, item: c.ReadyItem) -> Result | None:
    partition = queue.partitions.get(item.partition)
    if partition is None or partition.state is State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if queue.handoffs.warmed.get(item.partition) == (flow.id, item.epoch):
        return Result(item.partition, Outcome.OK)
    if item.epoch < partition.epoch:
        return Result(item.partition, Outcome.STALE_EPOCH, partition.epoch)
    if item.epoch > partition.epoch or partition.owner is None:
        return Result(item.partition, Outcome.NOT_OWNER)
    handoff = queue.handoffs.get(item.partition)
    if handoff is None or handoff.successor is not flow or partition.state is not State.WARMING:
        return Result(item.partition, Outcome.NOT_WARMING)
    return None
