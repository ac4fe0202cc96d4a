"""Applying records to a queue: the only code that changes one, live and on reload alike.

`replay` is total on what `decide` produces and refuses, by an assertion, what the transition tables
do not list. It never decides anything: whom, how many and when is in the record. What follows from
a record alone (the partitions of a flow that left have no owner; a grant ends the handoff it
concludes; whose view changes) is derived here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.core.state import records as r
from broker.core.state import replay_lineage as replay_lineage
from broker.core.state.applying import apply
from broker.core.state.departures import depart, forget_absent, forget_if_back, orphan
from broker.core.state.model import Flow, HandedOver, Handoff, Rebalance
from broker.core.state.queue import Queue
from broker.core.state.replay_cuts import reached, switched
from broker.core.state.resizing import add, remove, retire
from broker.core.state.transitions import (
    QUEUE_TRANSITIONS,
    PartitionEvent,
    QueueEvent,
    State,
)


def replay(queue: Queue, record: r.Record) -> None:
    """Changes the queue in place as the record says.

    The queue's revision must be the record's already: flows whose view changes get it as their
    `view_revision`, and their ids are added to `queue.touched`.
    """
    apply(record, queue)


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


@apply.register
def _(record: r.SettingsChanged, queue: Queue) -> None:
    for name, value in record.changes.items():
        queue.journal.set(queue.settings, name, value)
    if "ordered_resize" in record.changes:
        switched(queue)


@apply.register
def _(record: r.FlowBound, queue: Queue) -> None:
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
    forget_if_back(queue, flow)
    queue.touch(flow)


@apply.register
def _(record: r.FlowLeft, queue: Queue) -> None:
    flow = queue.flows[record.flow_id]
    owned = sorted(flow.owned)
    depart(queue, flow, record)
    for number in owned:
        orphan(queue, flow, number, record.at)
    for number in sorted(flow.incoming):
        queue.redirect(queue.handoffs[number], None)


@apply.register
def _(record: r.FlowDeparted, queue: Queue) -> None:
    depart(queue, queue.flows[record.flow_id], record)


@apply.register
def _(record: r.Orphaned, queue: Queue) -> None:
    flow = queue.gone[record.flow_id]
    for number in record.partitions:
        orphan(queue, flow, number, record.at)


@apply.register
def _(record: r.FlowDraining, queue: Queue) -> None:
    flow = queue.flows[record.flow_id]
    if flow.draining:
        queue.journal.set(flow, "drain_deadline", record.deadline)
        return
    queue.set_draining(flow, record.deadline)
    for number in sorted(flow.incoming):
        if queue.partitions[number].state is State.REVOKING:
            queue.redirect(queue.handoffs[number], None)
    queue.touch(flow)


@apply.register
def _(record: r.HolddownStarted, queue: Queue) -> None:
    _change_status(queue, QueueEvent.HOLDDOWN_STARTED, record.at, record.trigger)
    queue.set("holddown_until", record.until)
    queue.set("flows_before", record.flows_before)


@apply.register
def _(record: r.HolddownSettled, queue: Queue) -> None:
    _change_status(queue, QueueEvent.HOLDDOWN_SETTLED, record.at, None)
    forget_absent(queue)


@apply.register
def _(record: r.RebalanceStarted, queue: Queue) -> None:
    _change_status(queue, QueueEvent.REBALANCE_STARTED, record.at, record.trigger)
    forget_absent(queue)
    queue.set("rebalance", Rebalance(record.rebalance_id, record.trigger, record.at))


@apply.register
def _(record: r.RebalanceFinished, queue: Queue) -> None:
    assert queue.rebalance is not None
    _change_status(queue, QueueEvent.REBALANCE_FINISHED, record.at, None)
    queue.set("last_rebalance", replace(queue.rebalance, finished_at=record.at))
    queue.set("rebalance", None)
    queue.set("growing", False)


@apply.register
def _(record: r.GrantedOutside, queue: Queue) -> None:
    entry = Rebalance(record.rebalance_id, record.trigger, record.at, finished_at=record.at)
    queue.set("last_rebalance", entry)


@apply.register
def _(record: r.CutOff, queue: Queue) -> None:
    queue.set("unfinished_at", record.at)
    queue.set("granting", record.granting)
    queue.set("changed", record.changed)
    queue.set("discarding", record.discarding)


@apply.register
def _(record: r.Granted, queue: Queue) -> None:
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
        forget_if_back(queue, flow)
        handoffs += grant.by_handoff
        forced += grant.by_force
    _tally(queue, handoffs, forced, len(record.grants) - handoffs)


def _tally(queue: Queue, handoffs: int, forced: int, granted: int) -> None:
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


@apply.register
def _(record: r.Released, queue: Queue) -> None:
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


@apply.register
def _(record: r.WarmupsStarted, queue: Queue) -> None:
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        successor = queue.flows[successor_id]
        handoff = Handoff(number, successor, record.deadline, record.at, warm=True)
        queue.place(
            partition, PartitionEvent.WARMUP_STARTED, owner=partition.owner, handoff=handoff
        )
        queue.journal.drop(queue.warmed, number)
        queue.touch(successor)


@apply.register
def _(record: r.RevokesStarted, queue: Queue) -> None:
    for number, _owner, successor_id in record.moves:
        partition = queue.partitions[number]
        handoff = Handoff(number, queue.flows[successor_id], record.deadline, record.at, warm=False)
        queue.place(partition, PartitionEvent.REVOKED, owner=partition.owner, handoff=handoff)
        queue.journal.drop(queue.warmed, number)
        queue.touch(partition.owner)


@apply.register
def _(record: r.WarmupsEnded, queue: Queue) -> None:
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


@apply.register
def _(record: r.WarmupsReady, queue: Queue) -> None:
    for number in record.partitions:
        partition, successor = queue.partitions[number], queue.handoffs[number].named
        assert partition.state is State.WARMING
        assert successor is not None
        queue.journal.note(partition)
        queue.journal.put(queue.warmed, number, (successor.id, partition.epoch))


@apply.register
def _(record: r.HandoffsRedirected, queue: Queue) -> None:
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


@apply.register
def _(record: r.HandoffsCalledOff, queue: Queue) -> None:
    for number in record.partitions:
        partition = queue.partitions[number]
        queue.touch_successor(queue.handoffs[number])
        queue.place(partition, PartitionEvent.CALLED_OFF, owner=partition.owner)


@apply.register
def _(record: r.PartitionsAdded, queue: Queue) -> None:
    add(queue, record)


@apply.register
def _(record: r.PartitionsRetired, queue: Queue) -> None:
    retire(queue, record)


@apply.register
def _(record: r.PartitionsRemoved, queue: Queue) -> None:
    remove(queue, record)
    reached(queue, record.partitions)


@apply.register
def _(record: r.EpochsRaised, queue: Queue) -> None:
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


@apply.register
def _(record: r.DeadlinesMoved, queue: Queue) -> None:
    queue.set("outage_seen", record.outage_id)
    ended = record.began + record.seconds
    for handoff in list(queue.handoffs.values()):
        # What began after it lost no time by it.
        if handoff.deadline > record.began and handoff.since < ended:
            queue.set_deadline(handoff, handoff.deadline + record.seconds)
            _touch_deadline(queue, handoff)


@apply.register
def _(record: r.ClockWentBack, queue: Queue) -> None:
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
