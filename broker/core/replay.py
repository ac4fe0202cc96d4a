"""Applying records to a queue: the only code that changes one, live and on reload alike.

`replay` is total on what `decide` produces and refuses, by an assertion, what the transition tables
do not list. It never decides anything: whom, how many and when is in the record. What follows from
a record alone (the partitions of a flow that left have no owner; a grant ends the handoff it
concludes; whose view changes) is derived here.

**Flows that leave.** A flow that leaves while a holddown runs is remembered by its instance
(`Absent`). Its partitions remember it (`released_by`), as they remember every flow that left: their
next grant names it. So nothing is stored for each partition that was not written anyway, and it is
known at any time which partitions can still be given back. The memory of the flow ends with the
holddown, or when its instance is bound again.

**Resizes.** The configured partitions are always those from 0 up: a resize adds at their end and
takes from there (the contract, *Resize*). What ordered resizes add is in `broker.core.barriers`.

**Lineage.** `partition_count` of a dynamic queue is the number of its partitions that take part in
the balance: it follows from the records (the contract, *Lineage*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from broker.core import records as r
from broker.core.barriers import Barriers, KnownResize
from broker.core.budget import Moves, counted
from broker.core.graph import Lineage
from broker.core.model import Absent, Flow, HandedOver, Handoff, Partition, Pin, Rebalance
from broker.core.pauses import Pause
from broker.core.placement import (
    add_partition,
    admit,
    change_life,
    enter,
    forget_partition,
    leave,
    place,
    redirect,
    set_deadline,
    set_draining,
    settle_pins,
)
from broker.core.queue import Queue
from broker.core.transitions import QUEUE_TRANSITIONS, LifeEvent, PartitionEvent, QueueEvent, State


def replay(queue: Queue, record: r.Record) -> None:
    """Changes the queue in place as the record says.

    The queue's revision must be the record's already: flows whose view changes get it as their
    `view_revision`, and their ids are added to `queue.touched`.
    """
    _CHANGES[type(record)](queue, record)
    if (queue.pins.of or queue.pins.homes) and type(record) in _OF_PINS:
        settle_pins(queue)


def replay_all(queue: Queue, records: Iterable[r.Record], revision: int) -> None:
    """Replays what was committed together under `revision`."""
    begin(queue, revision)
    for record in records:
        replay(queue, record)


def begin(queue: Queue, revision: int) -> None:
    """What is replayed next is of this revision."""
    queue.journal.set(queue, revision=revision)


def _change_status(
    queue: Queue, event: QueueEvent, at: float, trigger: str | None = None, **values: Any
) -> None:
    """`values` are other attributes of the queue that change with its status."""
    status = QUEUE_TRANSITIONS[queue.status, event]
    values = {"holddown_until": None, **values}
    queue.journal.set(queue, status=status, since=at, trigger=trigger, **values)


def _touch(queue: Queue, flow: Flow | None) -> None:
    """The flow's view changes with this revision."""
    if flow is None:
        return
    if flow.id not in queue.touched:
        queue.journal.add(queue.touched, flow.id)
    if flow.view_revision != queue.revision:
        queue.journal.set(flow, view_revision=queue.revision)


def _touch_successor(queue: Queue, handoff: Handoff | None) -> None:
    """The successor's view changes if it sees the handoff: while it warms up."""
    if handoff is not None and handoff.warm:
        _touch(queue, handoff.named)


def _flow(queue: Queue, flow_id: str | None) -> Flow | None:
    return None if flow_id is None else queue.flows[flow_id]


def _settings_changed(queue: Queue, record: r.SettingsChanged) -> None:
    queue.journal.set(queue.settings, **record.changes)
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
        record.held_until,
        record.keeps_state,
        record.weight,
        record.max_partitions,
    )
    enter(queue, flow)
    queue.journal.drop(queue.absent, flow.instance)
    _touch(queue, flow)
    if record.moved:
        queue.journal.put(queue.moved, record.key_id, Moves(record.moved, record.at))
    elif record.moved is not None:
        queue.journal.drop(queue.moved, record.key_id)


def _flows_admitted(queue: Queue, record: r.FlowsAdmitted) -> None:
    for flow_id in record.flow_ids:
        flow = queue.flows[flow_id]
        admit(queue, flow)
        _touch(queue, flow)


def _flow_left(queue: Queue, record: r.FlowLeft) -> None:
    """The flow is gone, and is remembered if the record says so."""
    flow = queue.flows[record.flow_id]
    owned = sorted(flow.owned)
    if record.remember:
        absent = Absent(
            flow.bind_number,
            flow.id,
            owned,
            flow.weight,
            flow.max_partitions,
            flow.client_name,
        )
        queue.journal.put(queue.absent, flow.instance, absent)
    elif queue.flows.by_instance.get(flow.instance) is flow:
        queue.journal.drop(queue.absent, flow.instance)
    _touch(queue, flow)
    leave(queue, flow)
    since = record.at if record.seen_at is None else record.seen_at
    for number in owned:
        _orphan(queue, flow, number, since)
    for number in sorted(flow.incoming):
        redirect(queue, queue.handoffs[number], None)


def _orphan(queue: Queue, flow: Flow, number: int, since: float) -> None:
    """A partition of a flow that is gone has no owner, since the flow was silent if it was."""
    partition = queue.partitions[number]
    _touch_successor(queue, queue.handoffs.get(number))
    place(
        queue,
        partition,
        PartitionEvent.ORPHANED,
        at=since,
        next_handed_over=HandedOver.ORPHANED,
        released_by=flow.id,
    )


def _flow_draining(queue: Queue, record: r.FlowDraining) -> None:
    flow = queue.flows[record.flow_id]
    if flow.draining:
        queue.journal.set(flow, drain_deadline=record.deadline)
        return
    set_draining(queue, flow, record.deadline)
    for number in sorted(flow.incoming):
        if queue.partitions[number].state is State.REVOKING:
            redirect(queue, queue.handoffs[number], None)
    _touch(queue, flow)


def _holddown_started(queue: Queue, record: r.HolddownStarted) -> None:
    _change_status(
        queue,
        QueueEvent.HOLDDOWN_STARTED,
        record.at,
        record.trigger,
        holddown_until=record.until,
        flows_before=record.flows_before,
    )


def _holddown_settled(queue: Queue, record: r.HolddownSettled) -> None:
    _change_status(queue, QueueEvent.HOLDDOWN_SETTLED, record.at)
    _forget_absent(queue)


def _rebalance_started(queue: Queue, record: r.RebalanceStarted) -> None:
    began = Rebalance(record.rebalance_id, record.trigger, record.at)
    event = QueueEvent.REBALANCE_STARTED
    _change_status(queue, event, record.at, record.trigger, rebalance=began)
    _forget_absent(queue)


def _pairs_first(queue: Queue, record: r.PairsFirst) -> None:
    queue.journal.set(queue, holddown_until=record.until, flows_before=record.flows_before)


def _rebalance_finished(queue: Queue, record: r.RebalanceFinished) -> None:
    assert queue.rebalance is not None
    finished = replace(queue.rebalance, finished_at=record.at)
    _change_status(
        queue,
        QueueEvent.REBALANCE_FINISHED,
        record.at,
        last_rebalance=finished,
        rebalance=None,
        growing=False,
    )


def _granted_outside(queue: Queue, record: r.GrantedOutside) -> None:
    entry = Rebalance(record.rebalance_id, record.trigger, record.at, finished_at=record.at)
    queue.journal.set(queue, last_rebalance=entry)


def _granted(queue: Queue, record: r.Granted) -> None:
    handoffs = forced = 0
    for grant in record.grants:
        partition = queue.partitions[grant.partition]
        flow = queue.flows[grant.flow_id]
        handoff = queue.handoffs.get(grant.partition)
        released_by = None
        if grant.handed_over == HandedOver.GRACEFUL:
            released_by = partition.released_by if partition.owner is None else grant.previous
        _touch(queue, partition.owner)
        _touch(queue, flow)
        _touch_successor(queue, handoff)
        if partition.owner is not None and not grant.by_handoff:
            # Its instance goes on, and a warm-up with it.
            keeps = handoff if partition.state is State.WARMING else None
            event = PartitionEvent.GRANTED if keeps is None and handoff else PartitionEvent.REPLACED
        else:
            keeps, event = None, PartitionEvent.GRANTED
        place(
            queue,
            partition,
            event,
            owner=flow,
            handoff=keeps,
            epoch=grant.epoch,
            handed_over=grant.handed_over,
            next_handed_over=HandedOver.INITIAL,
            released_by=released_by,
        )
        handoffs += grant.by_handoff
        forced += grant.by_force
    _add_to_counts(queue, handoffs, forced, len(record.grants) - handoffs)


def _add_to_counts(queue: Queue, handoffs: int, forced: int, granted: int) -> None:
    name = "rebalance" if queue.rebalance is not None else "last_rebalance"
    entry: Rebalance = getattr(queue, name)
    counted = replace(
        entry,
        handoffs=entry.handoffs + handoffs,
        forced=entry.forced + forced,
        granted=entry.granted + granted,
    )
    queue.journal.set(queue, **{name: counted})


def _released(queue: Queue, record: r.Released) -> None:
    partition = queue.partitions[record.partition]
    _touch(queue, partition.owner)
    _touch_successor(queue, queue.handoffs.get(record.partition))
    place(
        queue,
        partition,
        PartitionEvent.RELEASED,
        at=record.at,
        next_handed_over=HandedOver.GRACEFUL,
        released_by=record.flow_id,
    )


def _released_in_part(queue: Queue, record: r.ReleasedInPart) -> None:
    partition = queue.partitions[record.partition]
    queue.journal.set(partition, next_handed_over=HandedOver.GRACEFUL)
    _touch(queue, partition.owner)


def _count_moves(queue: Queue, moves: Iterable[r.Move], at: float) -> None:
    """Handoffs begin: what keys take from others (`budget`)."""
    taken = Counter[str]()
    for number, _owner, successor_id in moves:
        owner, key_id = queue.partitions[number].owner, queue.flows[successor_id].key_id
        assert owner is not None
        if key_id is not None and owner.key_id != key_id and not owner.draining:
            taken[key_id] += 1
    if taken:
        least = queue.settings.partition_count
        queue.journal.set(queue, moved=counted(queue.moved, taken, at, least))


def _warmups_started(queue: Queue, record: r.WarmupsStarted) -> None:
    _count_moves(queue, record.moves, record.at)
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        successor = queue.flows[successor_id]
        handoff = Handoff(number, successor, record.deadline, record.at, warm=True)
        place(
            queue, partition, PartitionEvent.WARMUP_STARTED, owner=partition.owner, handoff=handoff
        )
        queue.journal.drop(queue.handoffs.warmed, number)
        _touch(queue, successor)


def _revokes_started(queue: Queue, record: r.RevokesStarted) -> None:
    _count_moves(queue, record.moves, record.at)
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        handoff = Handoff(number, queue.flows[successor_id], record.deadline, record.at, warm=False)
        place(queue, partition, PartitionEvent.REVOKED, owner=partition.owner, handoff=handoff)
        queue.journal.drop(queue.handoffs.warmed, number)
        _touch(queue, partition.owner)


def _warmups_ended(queue: Queue, record: r.WarmupsEnded) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        warming = queue.handoffs[number]
        successor = warming.successor
        handoff = Handoff(number, successor, record.deadline, record.at, warm=warming.warm)
        place(queue, partition, PartitionEvent.REVOKED, owner=partition.owner, handoff=handoff)
        if record.ready and successor is not None:
            queue.journal.put(queue.handoffs.warmed, number, (successor.id, partition.epoch))
        _touch(queue, partition.owner)
        _touch_successor(queue, handoff)


def _warmups_ready(queue: Queue, record: r.WarmupsReady) -> None:
    for number in record.partitions:
        partition, successor = queue.partitions[number], queue.handoffs[number].named
        assert partition.state is State.WARMING
        assert successor is not None
        queue.journal.note(partition)
        queue.journal.put(queue.handoffs.warmed, number, (successor.id, partition.epoch))


def _handoffs_redirected(queue: Queue, record: r.HandoffsRedirected) -> None:
    for number, successor_id in record.redirects:
        handoff = queue.handoffs[number]
        successor = _flow(queue, successor_id)
        _touch_successor(queue, handoff)
        redirect(queue, handoff, successor)
        warming = queue.partitions[number].state is State.WARMING
        if warming:
            queue.journal.drop(queue.handoffs.warmed, number)
        queue.journal.set(handoff, warm=warming and successor is not None and successor.warmup)
        _touch_successor(queue, handoff)
        if record.deadline is not None:
            queue.journal.set(handoff, since=record.at)
            set_deadline(queue, handoff, record.deadline)


def _handoffs_called_off(queue: Queue, record: r.HandoffsCalledOff) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        _touch_successor(queue, queue.handoffs[number])
        place(queue, partition, PartitionEvent.CALLED_OFF, owner=partition.owner)


def _epochs_raised(queue: Queue, record: r.EpochsRaised) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.journal.set(partition, epoch=partition.epoch + 1)
        if partition.next_handed_over == HandedOver.GRACEFUL or partition.owner is not None:
            queue.journal.set(partition, released_by=None)
        if partition.owner is None:
            queue.journal.set(partition, next_handed_over=HandedOver.FORCED)
        else:
            queue.journal.set(
                partition, handed_over=record.handed_over, next_handed_over=HandedOver.INITIAL
            )
            _touch(queue, partition.owner)
        _touch_successor(queue, queue.handoffs.get(number))


def _paused(queue: Queue, record: r.Paused) -> None:
    for key in record.partitions or (None,):
        known = queue.pauses.of.get(key)
        since = record.at if known is None else known.since
        queue.journal.put(queue.pauses.of, key, Pause(since, record.until, record.reason))
        _touch_paused(queue, key)


def _resumed(queue: Queue, record: r.Resumed) -> None:
    for key in record.partitions or (None,):
        queue.journal.drop(queue.pauses.of, key)
        _touch_paused(queue, key)


def _pinned(queue: Queue, record: r.Pinned) -> None:
    pin = Pin(record.client_name, record.since, record.reason)
    for number in record.partitions:
        queue.journal.put(queue.pins.of, number, pin)


def _unpinned(queue: Queue, record: r.Unpinned) -> None:
    for number in record.partitions:
        queue.journal.drop(queue.pins.of, number)


def _touch_paused(queue: Queue, key: int | None) -> None:
    """Owners see the pause of what they own."""
    if key is not None:
        _touch(queue, queue.partitions[key].owner)
        return
    for flow in queue.flows.values():
        if flow.owned:
            _touch(queue, flow)


def _deadlines_moved(queue: Queue, record: r.DeadlinesMoved) -> None:
    queue.journal.set(queue, outage_seen=record.outage_id)
    ended = record.began + record.seconds
    for handoff in list(queue.handoffs.values()):
        # What began after it lost no time by it.
        if handoff.deadline > record.began and handoff.since < ended:
            set_deadline(queue, handoff, handoff.deadline + record.seconds)
            _touch_deadline(queue, handoff)


def _clock_went_back(queue: Queue, record: r.ClockWentBack) -> None:
    queue.journal.set(queue, outage_seen=record.outage_id)
    if queue.holddown_until is not None:
        queue.journal.set(
            queue,
            since=queue.since + record.seconds,
            holddown_until=queue.holddown_until + record.seconds,
        )
    if queue.resize.cuts_due is not None:
        queue.journal.set(queue.resize, cuts_due=queue.resize.cuts_due + record.seconds)
    if queue.moved:
        moved = {
            key: moves._replace(at=moves.at + record.seconds) for key, moves in queue.moved.items()
        }
        queue.journal.set(queue, moved=moved)
    for flow in queue.flows.held.values():
        assert flow.held_until is not None
        queue.journal.set(flow, held_until=flow.held_until + record.seconds)
        _touch(queue, flow)
    for bind_number in queue.leaving.counts:
        flow = queue.flows.by_bind_number[bind_number]
        if flow.drain_deadline is not None:
            queue.journal.set(flow, drain_deadline=flow.drain_deadline + record.seconds)
    for handoff in list(queue.handoffs.values()):
        queue.journal.set(handoff, since=handoff.since + record.seconds)
        set_deadline(queue, handoff, handoff.deadline + record.seconds)
        _touch_deadline(queue, handoff)


def _touch_deadline(queue: Queue, handoff: Handoff) -> None:
    """Who sees the deadline of a handoff sees another."""
    if queue.partitions[handoff.number].state is State.REVOKING:
        _touch(queue, queue.partitions[handoff.number].owner)
    _touch_successor(queue, handoff)


def _forget_absent(queue: Queue) -> None:
    """The holddown is over: who comes back now gets nothing back."""
    if queue.absent:
        queue.journal.set(queue, absent={})


# Resizes


def _partitions_added(queue: Queue, record: r.PartitionsAdded) -> None:
    """Partitions exist (again); those that were retiring are taken back."""
    for number in range(record.first, record.end):
        partition = queue.partitions.get(number)
        if partition is None:
            add_partition(queue, Partition(number))
        elif partition.state is State.REMOVED:
            change_life(queue, partition, LifeEvent.ADDED)
            place(queue, partition, PartitionEvent.ADDED)
        else:
            change_life(queue, partition, LifeEvent.TAKEN_BACK)
            if partition.owner is not None:
                queue.journal.set(partition, next_handed_over=HandedOver.REPLACED)
            _touch(queue, partition.owner)
    queue.journal.set(queue, growing=True)


def _partitions_retired(queue: Queue, record: r.PartitionsRetired) -> None:
    """Partitions are to be drained to their ends."""
    for number in record.partitions:
        partition = queue.partitions[number]
        change_life(queue, partition, LifeEvent.RETIRED)
        _touch(queue, partition.owner)
    queue.journal.set(queue, growing=False)


def _partitions_removed(queue: Queue, record: r.PartitionsRemoved) -> None:
    """Partitions are gone."""
    for number in record.partitions:
        partition, handoff = queue.partitions[number], queue.handoffs.get(number)
        _touch(queue, partition.owner)
        _touch_successor(queue, handoff)
        released_by = (
            partition.owner.id if record.outcome == "finished" and partition.owner else None
        )
        queue.journal.drop(queue.pauses.of, number)
        queue.journal.drop(queue.pins.of, number)
        # What a flow had processed and not committed of a discarded partition may come again, if
        # its number is used before the log has deleted what it held.
        next_handed_over = partition.next_handed_over
        if record.outcome == "finished":
            next_handed_over = HandedOver.INITIAL
        elif partition.owner is not None:
            next_handed_over = HandedOver.ORPHANED
        change_life(queue, partition, LifeEvent(record.outcome))
        place(
            queue,
            partition,
            PartitionEvent.REMOVED,
            released_by=released_by,
            next_handed_over=next_handed_over,
        )
    _reach_cuts(queue, record.partitions)


# Ordered resizes


def _switch_ordered_resize(queue: Queue) -> None:
    """Ordered resizes are switched on or off: nothing is known of cuts, and every view says so."""
    queue.journal.set(queue, resize=KnownResize())
    _touch_all(queue)


def _reach_cuts(queue: Queue, numbers: Iterable[int]) -> None:
    """Partitions are processed up to their cuts, or gone: what waited for them alone goes on."""
    barriers = queue.resize.barriers
    if barriers is None:
        return
    for number in numbers:
        for changed in barriers.reach(queue.journal, number):
            partition = queue.partitions.get(changed)
            if partition is not None:
                _touch(queue, partition.owner)
            if partition is not None and changed == number:
                queue.journal.note(partition)
    if not barriers.unreached:
        queue.journal.set(queue.resize, barriers=None)


def _touch_all(queue: Queue) -> None:
    for flow in queue.flows.values():
        _touch(queue, flow)


def _cuts_awaited(queue: Queue, record: r.CutsAwaited) -> None:
    queue.journal.set(queue.resize, cuts_due=record.due, cuts_attempt=record.attempt)


def _cuts_taken(queue: Queue, record: r.CutsTaken) -> None:
    barriers = Barriers(record.resize, record.resized_from, record.resized_to)
    for number, cut, is_reached in record.cuts:
        barriers.take(queue.journal, number, cut, is_reached)
        queue.journal.note(queue.partitions[number])
    queue.journal.set(
        queue.resize,
        barriers=barriers if barriers.unreached else None,
        seen=record.resize,
        cuts_due=None,
        cuts_attempt=0,
    )
    _touch_all(queue)


def _cuts_reached(queue: Queue, record: r.CutsReached) -> None:
    _reach_cuts(queue, record.partitions)


# Lineage


def _lineage(queue: Queue) -> Lineage:
    assert queue.lineage is not None, "the queue is not dynamic"
    return queue.lineage


def _count(queue: Queue, difference: int) -> None:
    count = queue.settings.partition_count + difference
    queue.journal.set(queue.settings, partition_count=count)


def _children_added(queue: Queue, record: r.ChildrenAdded) -> None:
    lineage = _lineage(queue)
    for number, key, parents in record.children:
        partition = Partition(number)
        partition.state = State.WAITING
        add_partition(queue, partition)
        lineage.add(number, key, parents)


def _waits_ended(queue: Queue, record: r.WaitsEnded) -> None:
    lineage = _lineage(queue)
    for number in record.partitions:
        lineage.end_wait(number)
        place(queue, queue.partitions[number], PartitionEvent.WAIT_ENDED)
    _count(queue, len(record.partitions))


def _partition_finished(queue: Queue, record: r.PartitionFinished) -> None:
    number = record.partition
    partition, handoff = queue.partitions[number], queue.handoffs.get(number)
    _touch(queue, partition.owner)
    _touch_successor(queue, handoff)
    place(
        queue,
        partition,
        PartitionEvent.FINISHED,
        next_handed_over=HandedOver.INITIAL,
        released_by=record.flow_id,
    )
    queue.journal.drop(queue.pauses.of, number)
    queue.journal.drop(queue.pins.of, number)
    _lineage(queue).finish(number)
    _count(queue, -1)


def _finished_removed(queue: Queue, record: r.FinishedRemoved) -> None:
    for number in record.partitions:
        _lineage(queue).remove(number)
        place(queue, queue.partitions[number], PartitionEvent.REMOVED)
        forget_partition(queue, number)


_CHANGES: dict[type[r.Record], Callable[[Queue, Any], None]] = {
    r.SettingsChanged: _settings_changed,
    r.FlowBound: _flow_bound,
    r.FlowsAdmitted: _flows_admitted,
    r.FlowLeft: _flow_left,
    r.FlowDraining: _flow_draining,
    r.HolddownStarted: _holddown_started,
    r.HolddownSettled: _holddown_settled,
    r.RebalanceStarted: _rebalance_started,
    r.PairsFirst: _pairs_first,
    r.RebalanceFinished: _rebalance_finished,
    r.GrantedOutside: _granted_outside,
    r.Granted: _granted,
    r.Released: _released,
    r.ReleasedInPart: _released_in_part,
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
    r.Paused: _paused,
    r.Resumed: _resumed,
    r.Pinned: _pinned,
    r.Unpinned: _unpinned,
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

# After these, other pins may be in force (`pins`).
_OF_PINS = frozenset(
    {
        r.SettingsChanged,
        r.FlowBound,
        r.FlowsAdmitted,
        r.FlowLeft,
        r.FlowDraining,
        r.Pinned,
        r.Unpinned,
        r.PartitionsAdded,
        r.PartitionsRetired,
        r.PartitionsRemoved,
        r.WaitsEnded,
        r.PartitionFinished,
    }
)
