"""Applying records to a queue: the only code that changes one, live and on reload alike.

`replay` is total on what `decide` produces and refuses, by an assertion, what the transition tables
do not list. It never decides anything: whom, how many and when is in the record. What follows from
a record alone (the partitions of a flow that left have no owner; a grant ends the handoff it
concludes; whose view changes) is derived here.

**Flows that leave.** A flow that leaves while a holddown runs is remembered by its instance
(`Absent`). Its partitions remember it (`released_by`), as they remember every flow that left: their
next grant names it. So nothing is stored for each partition that was not written anyway, and it is
known at any time which partitions can still be given back. The memory of the flow ends with the
holddown, except for an instance that is bound again and has not got everything yet.

**Resizes.** The configured partitions are always those from 0 up: a resize adds at their end and
takes from there (the contract, *Resize*). So their number alone says how far a resize is that was
cut into slices (`Queue.configured_count`). What ordered resizes add is in `broker.core.barriers`.

**Lineage.** `partition_count` of a dynamic queue is the number of its partitions that take part in
the balance: it follows from the records (the contract, *Lineage*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from broker.core import records as r
from broker.core.barriers import Barriers
from broker.core.graph import Lineage
from broker.core.model import Absent, Flow, HandedOver, Handoff, Partition, Rebalance
from broker.core.queue import Queue
from broker.core.structures import Heap
from broker.core.transitions import QUEUE_TRANSITIONS, LifeEvent, PartitionEvent, QueueEvent, State


def replay(queue: Queue, record: r.Record) -> None:
    """Changes the queue in place as the record says.

    The queue's revision must be the record's already: flows whose view changes get it as their
    `view_revision`, and their ids are added to `queue.touched`.
    """
    _CHANGES[type(record)](queue, record)


def replay_all(queue: Queue, records: Iterable[r.Record], revision: int) -> None:
    """Replays what was committed together under `revision`."""
    begin(queue, revision)
    for record in records:
        replay(queue, record)


def begin(queue: Queue, revision: int) -> None:
    """What is replayed next is of this revision. If it leaves something to be done, it says so."""
    queue.set("revision", revision)
    queue.set("unfinished_at", None)
    queue.set("granting", None)
    queue.set("changed", False)
    queue.set("discarding", False)


def _change_status(queue: Queue, event: QueueEvent, at: float, trigger: str | None) -> None:
    queue.set("status", QUEUE_TRANSITIONS[queue.status, event])
    queue.set("since", at)
    queue.set("trigger", trigger)
    queue.set("holddown_until", None)


def _flow(queue: Queue, flow_id: str | None) -> Flow | None:
    return None if flow_id is None else queue.flows[flow_id]


def _settings_changed(queue: Queue, record: r.SettingsChanged) -> None:
    for name, value in record.changes.items():
        queue.journal.set(queue.settings, name, value)
    if "ordered_resize" in record.changes:
        _switch_ordered_resize(queue)


def _flow_bound(queue: Queue, record: r.FlowBound) -> None:
    flow = Flow(
        record.flow_id,
        record.instance_id,
        record.client_name,
        record.bind_number,
        record.lease_seconds,
        record.warmup,
        record.at,
        record.binder,
        record.attempt,
        record.key_id,
    )
    queue.enter(flow)
    _forget_if_back(queue, flow)
    queue.touch(flow)


def _flow_left(queue: Queue, record: r.FlowLeft) -> None:
    flow = queue.flows[record.flow_id]
    owned = sorted(flow.owned)
    _depart(queue, flow, record)
    for number in owned:
        _orphan(queue, flow, number, record.at)
    for number in sorted(flow.incoming):
        queue.redirect(queue.handoffs[number], None)


def _flow_departed(queue: Queue, record: r.FlowDeparted) -> None:
    _depart(queue, queue.flows[record.flow_id], record)


def _orphaned(queue: Queue, record: r.Orphaned) -> None:
    flow = queue.gone[record.flow_id]
    for number in record.partitions:
        _orphan(queue, flow, number, record.at)


def _flow_draining(queue: Queue, record: r.FlowDraining) -> None:
    flow = queue.flows[record.flow_id]
    if flow.draining:
        queue.journal.set(flow, "drain_deadline", record.deadline)
        return
    queue.set_draining(flow, record.deadline)
    for number in sorted(flow.incoming):
        if queue.partitions[number].state is State.REVOKING:
            queue.redirect(queue.handoffs[number], None)
    queue.touch(flow)


def _holddown_started(queue: Queue, record: r.HolddownStarted) -> None:
    _change_status(queue, QueueEvent.HOLDDOWN_STARTED, record.at, record.trigger)
    queue.set("holddown_until", record.until)
    queue.set("flows_before", record.flows_before)


def _holddown_settled(queue: Queue, record: r.HolddownSettled) -> None:
    _change_status(queue, QueueEvent.HOLDDOWN_SETTLED, record.at, None)
    _forget_absent(queue)


def _rebalance_started(queue: Queue, record: r.RebalanceStarted) -> None:
    _change_status(queue, QueueEvent.REBALANCE_STARTED, record.at, record.trigger)
    _forget_absent(queue)
    queue.set("rebalance", Rebalance(record.rebalance_id, record.trigger, record.at))


def _rebalance_finished(queue: Queue, record: r.RebalanceFinished) -> None:
    assert queue.rebalance is not None
    _change_status(queue, QueueEvent.REBALANCE_FINISHED, record.at, None)
    queue.set("last_rebalance", replace(queue.rebalance, finished_at=record.at))
    queue.set("rebalance", None)
    queue.set("growing", False)


def _granted_outside(queue: Queue, record: r.GrantedOutside) -> None:
    entry = Rebalance(record.rebalance_id, record.trigger, record.at, finished_at=record.at)
    queue.set("last_rebalance", entry)


def _cut_off(queue: Queue, record: r.CutOff) -> None:
    queue.set("unfinished_at", record.at)
    queue.set("granting", record.granting)
    queue.set("changed", record.changed)
    queue.set("discarding", record.discarding)


def _granted(queue: Queue, record: r.Granted) -> None:
    handoffs = forced = 0
    for grant in record.grants:
        partition = queue.partitions[grant.partition]
        flow = queue.flows[grant.flow_id]
        handoff = queue.handoffs.get(grant.partition)
        released_by = None
        if grant.handed_over == HandedOver.GRACEFUL:
            released_by = partition.released_by if partition.owner is None else grant.previous
        queue.touch(partition.owner)
        queue.touch(flow)
        queue.touch_successor(handoff)
        replaced = grant.handed_over == HandedOver.REPLACED or partition.state is State.OWNED
        if replaced and partition.owner is not None:
            keeps = handoff if partition.state is State.WARMING else None
            event = PartitionEvent.GRANTED if keeps is None and handoff else PartitionEvent.REPLACED
        else:
            keeps, event = None, PartitionEvent.GRANTED
        queue.place(
            partition,
            event,
            owner=flow,
            handoff=keeps,
            epoch=grant.epoch,
            handed_over=grant.handed_over,
            next_handed_over=HandedOver.INITIAL,
            released_by=released_by,
        )
        _forget_if_back(queue, flow)
        handoffs += grant.by_handoff
        forced += grant.by_force
    _add_to_counts(queue, handoffs, forced, len(record.grants) - handoffs)


def _add_to_counts(queue: Queue, handoffs: int, forced: int, granted: int) -> None:
    name = "rebalance" if queue.rebalance is not None else "last_rebalance"
    entry: Rebalance = getattr(queue, name)
    queue.set(
        name,
        replace(
            entry,
            handoffs=entry.handoffs + handoffs,
            forced=entry.forced + forced,
            granted=entry.granted + granted,
        ),
    )


def _released(queue: Queue, record: r.Released) -> None:
    partition = queue.partitions[record.partition]
    queue.touch(partition.owner)
    queue.touch_successor(queue.handoffs.get(record.partition))
    queue.place(
        partition,
        PartitionEvent.RELEASED,
        at=record.at,
        next_handed_over=HandedOver.GRACEFUL,
        released_by=record.flow_id,
    )


def _warmups_started(queue: Queue, record: r.WarmupsStarted) -> None:
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        successor = queue.flows[successor_id]
        handoff = Handoff(number, successor, record.deadline, record.at, warm=True)
        queue.place(
            partition, PartitionEvent.WARMUP_STARTED, owner=partition.owner, handoff=handoff
        )
        queue.journal.drop(queue.warmed, number)
        queue.touch(successor)


def _revokes_started(queue: Queue, record: r.RevokesStarted) -> None:
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        handoff = Handoff(number, queue.flows[successor_id], record.deadline, record.at, warm=False)
        queue.place(partition, PartitionEvent.REVOKED, owner=partition.owner, handoff=handoff)
        queue.journal.drop(queue.warmed, number)
        queue.touch(partition.owner)


def _warmups_ended(queue: Queue, record: r.WarmupsEnded) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        warming = queue.handoffs[number]
        successor = warming.successor
        handoff = Handoff(number, successor, record.deadline, record.at, warm=warming.warm)
        queue.place(partition, PartitionEvent.REVOKED, owner=partition.owner, handoff=handoff)
        if record.ready and successor is not None:
            queue.journal.put(queue.warmed, number, (successor.id, partition.epoch))
        queue.touch(partition.owner)
        queue.touch_successor(handoff)


def _warmups_ready(queue: Queue, record: r.WarmupsReady) -> None:
    for number in record.partitions:
        partition, successor = queue.partitions[number], queue.handoffs[number].named
        assert partition.state is State.WARMING
        assert successor is not None
        queue.journal.note(partition)
        queue.journal.put(queue.warmed, number, (successor.id, partition.epoch))


def _handoffs_redirected(queue: Queue, record: r.HandoffsRedirected) -> None:
    for number, successor_id in record.redirects:
        handoff = queue.handoffs[number]
        successor = _flow(queue, successor_id)
        queue.touch_successor(handoff)
        queue.redirect(handoff, successor)
        warming = queue.partitions[number].state is State.WARMING
        if warming:
            queue.journal.drop(queue.warmed, number)
        queue.journal.set(handoff, "warm", warming and successor is not None and successor.warmup)
        queue.touch_successor(handoff)
        if record.deadline is not None:
            queue.journal.set(handoff, "since", record.at)
            queue.set_deadline(handoff, record.deadline)


def _handoffs_called_off(queue: Queue, record: r.HandoffsCalledOff) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.touch_successor(queue.handoffs[number])
        queue.place(partition, PartitionEvent.CALLED_OFF, owner=partition.owner)


def _epochs_raised(queue: Queue, record: r.EpochsRaised) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.journal.set(partition, "epoch", partition.epoch + 1)
        if partition.next_handed_over == HandedOver.GRACEFUL or partition.owner is not None:
            queue.journal.set(partition, "released_by", None)
        if partition.owner is not None:
            queue.journal.set(partition, "handed_over", record.handed_over)
        if partition.owner is None or partition.owner.gone:
            queue.journal.set(partition, "next_handed_over", HandedOver.FORCED)
        else:
            queue.journal.set(partition, "next_handed_over", HandedOver.INITIAL)
            queue.touch(partition.owner)
        queue.touch_successor(queue.handoffs.get(number))


def _deadlines_moved(queue: Queue, record: r.DeadlinesMoved) -> None:
    queue.set("outage_seen", record.outage_id)
    ended = record.began + record.seconds
    for handoff in list(queue.handoffs.values()):
        # What began after it lost no time by it.
        if handoff.deadline > record.began and handoff.since < ended:
            queue.set_deadline(handoff, handoff.deadline + record.seconds)
            _touch_deadline(queue, handoff)


def _clock_went_back(queue: Queue, record: r.ClockWentBack) -> None:
    queue.set("outage_seen", record.outage_id)
    if queue.holddown_until is not None:
        queue.set("since", queue.since + record.seconds)
        queue.set("holddown_until", queue.holddown_until + record.seconds)
    if queue.cuts_due is not None:
        queue.set("cuts_due", queue.cuts_due + record.seconds)
    for bind_number in queue.leaving.counts:
        flow = queue.by_bind_number[bind_number]
        if flow.drain_deadline is not None:
            queue.journal.set(flow, "drain_deadline", flow.drain_deadline + record.seconds)
    for handoff in list(queue.handoffs.values()):
        queue.journal.set(handoff, "since", handoff.since + record.seconds)
        queue.set_deadline(handoff, handoff.deadline + record.seconds)
        _touch_deadline(queue, handoff)


def _touch_deadline(queue: Queue, handoff: Handoff) -> None:
    """Who sees the deadline of a handoff sees another."""
    if queue.partitions[handoff.number].state is State.REVOKING:
        queue.touch(queue.partitions[handoff.number].owner)
    queue.touch_successor(handoff)


# Flows that leave


def _depart(queue: Queue, flow: Flow, record: r.FlowLeft | r.FlowDeparted) -> None:
    """The flow is gone, and is remembered if the record says so."""
    if record.remember:
        absent = Absent(flow.bind_number, flow.id)
        queue.journal.put(queue.absent, flow.instance, absent)
    elif queue.by_instance.get(flow.instance) is flow:
        queue.journal.drop(queue.absent, flow.instance)
    queue.touch(flow)
    queue.leave(flow)


def _orphan(queue: Queue, flow: Flow, number: int, at: float) -> None:
    """A partition of a flow that is gone has no owner."""
    partition = queue.partitions[number]
    absent = queue.absent.get(flow.instance)
    if absent is not None and absent.flow_id == flow.id:
        absent.left.push(number)
    raised = partition.next_handed_over == HandedOver.FORCED
    handoff = queue.handoffs.get(number)
    queue.touch_successor(handoff)
    queue.place(
        partition,
        PartitionEvent.ORPHANED,
        at=at,
        next_handed_over=HandedOver.FORCED if raised else HandedOver.ORPHANED,
        released_by=flow.id,
    )


def _forget_if_back(queue: Queue, flow: Flow) -> None:
    """The instance is bound again and has all that was still to be had of what it left."""
    absent = queue.absent.get(flow.instance)
    if absent is not None and first_to_give_back(queue, absent) is None:
        queue.journal.drop(queue.absent, flow.instance)


def _forget_absent(queue: Queue) -> None:
    """The holddown is over: only instances that came back within it get back what they left."""
    kept = {
        instance: absent
        for instance, absent in queue.absent.items()
        if (flow := queue.by_instance.get(instance)) is not None
        and not flow.draining
        and first_to_give_back(queue, absent) is not None
    }
    queue.set("absent", kept)


def first_left(queue: Queue, flow: Flow) -> int | None:
    """The lowest partition that a flow that is gone still owns, or is to get."""
    assert flow.left is not None
    return _first(queue, flow.left, lambda n: n in flow.owned or n in flow.incoming)


def first_to_give_back(queue: Queue, absent: Absent) -> int | None:
    """The lowest partition that this flow has left and nobody has had since."""

    def still(number: int) -> bool:
        if number not in queue.unassigned:
            return False
        partition = queue.partitions[number]
        return partition.released_by == absent.flow_id and partition.next_handed_over in (
            HandedOver.ORPHANED,
            HandedOver.FORCED,
        )

    return _first(queue, absent.left, still)


def _first(queue: Queue, heap: Heap[int], holds: Callable[[int], bool]) -> int | None:
    def is_there(number: int) -> bool:
        if holds(number):
            return True
        queue.journal.did(heap.push, number)
        return False

    return heap.first(is_there)


# Resizes


def _partitions_added(queue: Queue, record: r.PartitionsAdded) -> None:
    """Partitions exist (again); those that were retiring are taken back."""
    for number in range(record.first, record.end):
        partition = queue.find(number)
        if partition is None:
            queue.add(Partition(number))
        elif partition.state is State.REMOVED:
            queue.resize(partition, LifeEvent.ADDED)
            queue.place(partition, PartitionEvent.ADDED)
        else:
            queue.resize(partition, LifeEvent.TAKEN_BACK)
            if partition.owner is not None:
                queue.journal.set(partition, "next_handed_over", HandedOver.REPLACED)
            queue.touch(partition.owner)
    queue.set("growing", True)
    queue.set("configured_count", max(queue.configured_count, record.end))


def _partitions_retired(queue: Queue, record: r.PartitionsRetired) -> None:
    """Partitions are to be drained to their ends."""
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.resize(partition, LifeEvent.RETIRED)
        queue.touch(partition.owner)
    queue.set("growing", False)
    queue.set("configured_count", min(queue.configured_count, *record.partitions))


def _partitions_removed(queue: Queue, record: r.PartitionsRemoved) -> None:
    """Partitions are gone."""
    for number in record.partitions:
        partition, handoff = queue.partitions[number], queue.handoffs.get(number)
        queue.touch(partition.owner)
        queue.touch_successor(handoff)
        released_by = (
            partition.owner.id if record.outcome == "finished" and partition.owner else None
        )
        # What a flow had processed and not committed of a discarded partition may come again, if
        # its number is used before the log has deleted what it held.
        next_handed_over = partition.next_handed_over
        if record.outcome == "finished":
            next_handed_over = HandedOver.INITIAL
        elif partition.owner is not None:
            next_handed_over = HandedOver.ORPHANED
        queue.resize(partition, LifeEvent(record.outcome))
        queue.place(
            partition,
            PartitionEvent.REMOVED,
            released_by=released_by,
            next_handed_over=next_handed_over,
        )
    queue.set("configured_count", min(queue.configured_count, *record.partitions))
    _reach_cuts(queue, record.partitions)


# Ordered resizes


def _switch_ordered_resize(queue: Queue) -> None:
    """Ordered resizes are switched on or off: nothing is known of cuts, and every view says so."""
    queue.set("resize_seen", 0)
    queue.set("barriers", None)
    queue.set("cuts_due", None)
    queue.set("cuts_attempt", 0)
    _touch_all(queue)


def _reach_cuts(queue: Queue, numbers: Iterable[int]) -> None:
    """Partitions are processed up to their cuts, or gone: what waited for them alone goes on."""
    barriers = queue.barriers
    if barriers is None:
        return
    for number in numbers:
        for changed in barriers.reach(queue.journal, number):
            partition = queue.find(changed)
            if partition is not None:
                queue.touch(partition.owner)
            if partition is not None and changed == number:
                queue.journal.note(partition)
    _settle(queue, barriers)


def _settle(queue: Queue, barriers: Barriers) -> None:
    if barriers.settled:
        queue.set("barriers", None)


def _touch_all(queue: Queue) -> None:
    for flow in queue.flows.values():
        queue.touch(flow)


def _cuts_awaited(queue: Queue, record: r.CutsAwaited) -> None:
    if queue.barriers is not None and not queue.barriers.in_force:
        # What was told so far is told anew: positions may have been set since.
        queue.set("barriers", None)
    queue.set("cuts_due", record.due)
    queue.set("cuts_attempt", record.attempt)


def _cuts_taken(queue: Queue, record: r.CutsTaken) -> None:
    barriers = queue.barriers
    if record.first == 0:
        barriers = Barriers(record.resize, record.resized_from, record.resized_to)
        queue.set("barriers", barriers)
    assert barriers is not None
    for number, cut, is_reached in record.cuts:
        barriers.tell(queue.journal, number, cut, is_reached)
        queue.journal.note(queue.partitions[number])
    queue.journal.set(barriers, "next", record.next)
    if record.next is None:
        queue.set("resize_seen", record.resize)
        queue.set("cuts_due", None)
        queue.set("cuts_attempt", 0)
        _touch_all(queue)
        _settle(queue, barriers)


def _cuts_reached(queue: Queue, record: r.CutsReached) -> None:
    _reach_cuts(queue, record.partitions)


# Lineage


def _lineage(queue: Queue) -> Lineage:
    assert queue.lineage is not None, "the queue is not dynamic"
    return queue.lineage


def _count(queue: Queue, difference: int) -> None:
    count = queue.settings.partition_count + difference
    queue.journal.set(queue.settings, "partition_count", count)
    queue.set("configured_count", count)


def _children_added(queue: Queue, record: r.ChildrenAdded) -> None:
    lineage = _lineage(queue)
    for number, key, parents in record.children:
        partition = Partition(number)
        partition.state = State.WAITING
        queue.add(partition)
        lineage.add(number, key, parents)


def _waits_ended(queue: Queue, record: r.WaitsEnded) -> None:
    lineage = _lineage(queue)
    for number in record.partitions:
        lineage.end_wait(number)
        queue.place(queue.partitions[number], PartitionEvent.WAIT_ENDED)
    _count(queue, len(record.partitions))


def _partition_finished(queue: Queue, record: r.PartitionFinished) -> None:
    number = record.partition
    partition, handoff = queue.partitions[number], queue.handoffs.get(number)
    queue.touch(partition.owner)
    queue.touch_successor(handoff)
    queue.place(
        partition,
        PartitionEvent.FINISHED,
        next_handed_over=HandedOver.INITIAL,
        released_by=record.flow_id,
    )
    _lineage(queue).finish(number)
    _count(queue, -1)


def _finished_removed(queue: Queue, record: r.FinishedRemoved) -> None:
    for number in record.partitions:
        _lineage(queue).remove(number)
        queue.place(queue.partitions[number], PartitionEvent.REMOVED)
        queue.forget(number)


_CHANGES: dict[type[r.Record], Callable[[Queue, Any], None]] = {
    r.SettingsChanged: _settings_changed,
    r.FlowBound: _flow_bound,
    r.FlowLeft: _flow_left,
    r.FlowDeparted: _flow_departed,
    r.Orphaned: _orphaned,
    r.FlowDraining: _flow_draining,
    r.HolddownStarted: _holddown_started,
    r.HolddownSettled: _holddown_settled,
    r.RebalanceStarted: _rebalance_started,
    r.RebalanceFinished: _rebalance_finished,
    r.GrantedOutside: _granted_outside,
    r.CutOff: _cut_off,
    r.Granted: _granted,
    r.Released: _released,
    r.WarmupsStarted: _warmups_started,
    r.RevokesStarted: _revokes_started,
    r.WarmupsEnded: _warmups_ended,
    r.WarmupsReady: _warmups_ready,
    r.HandoffsRedirected: _handoffs_redirected,
    r.HandoffsCalledOff: _handoffs_called_off,
    r.PartitionsAdded: _partitions_added,
    r.PartitionsRetired: _partitions_retired,
    r.PartitionsRemoved: _partitions_removed,
    r.EpochsRaised: _epochs_raised,
    r.DeadlinesMoved: _deadlines_moved,
    r.ClockWentBack: _clock_went_back,
    r.CutsAwaited: _cuts_awaited,
    r.CutsTaken: _cuts_taken,
    r.CutsReached: _cuts_reached,
    r.ChildrenAdded: _children_added,
    r.WaitsEnded: _waits_ended,
    r.PartitionFinished: _partition_finished,
    r.FinishedRemoved: _finished_removed,
}
