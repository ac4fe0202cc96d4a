"""Makes views from the model; only this module knows both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.calls import views
from broker.core.state import records as r
from broker.core.state.model import Flow, Partition, Rebalance
from broker.core.state.queue import Queue
from broker.core.state.records import Entry
from broker.core.state.stored import ShownEntry, shown_values, understood
from broker.core.state.transitions import State
from broker.store.ports import QueueRow

Positions = Mapping[int, tuple[int, str | None]]


def queue_row_view(row: QueueRow) -> views.QueueView:
    """A queue as listed."""
    queue, settings = row.queue, row.queue.settings
    return views.QueueView(
        id=queue.id,
        name=queue.name,
        partition_count=settings.partition_count,
        operational_partition_count=row.operational_partition_count,
        access_type=str(settings.access_type),
        rebalance_delay=settings.rebalance_delay,
        max_handoff_time=settings.max_handoff_time,
        max_warmup_time=settings.max_warmup_time,
        max_concurrent_handoffs=settings.max_concurrent_handoffs,
        log=settings.log,
        start=settings.start,
        rebalance_status=queue.status.value,
        scale_status=row.scale_status,
        flow_count=row.flow_count,
        active_flow_count=row.active_flow_count,
        revision=queue.revision,
        created_at=queue.created_at,
    )


def queue_view(queue: Queue) -> views.QueueView:
    """A queue in memory."""
    active = sum(flow.active for flow in queue.flows.values())
    row = QueueRow(
        queue, queue.operational_partition_count, queue.scale_status, len(queue.flows), active
    )
    return queue_row_view(row)


def needed_positions(flow: Flow) -> list[int]:
    """The partitions whose positions are in the flow's view."""
    return sorted(flow.owned | flow.incoming)


def update_view(queue: Queue, flow: Flow, positions: Positions, now: float) -> views.UpdateView:
    """FlowChangeUpdate (the contract): the partitions that the flow owns or warms up for."""
    seen = []
    for number in needed_positions(flow):
        partition = queue.partitions[number]
        handoff = queue.handoffs.get(number)
        _, position = positions.get(number, (0, None))
        if partition.owner is flow:
            revoking = partition.state is State.REVOKING
            state = "revoking" if revoking else "retiring" if partition.retiring else "owned"
            seen.append(
                views.PartitionInUpdate(
                    number,
                    partition.epoch,
                    state,
                    position,
                    partition.handed_over,
                    handoff.deadline if revoking and handoff is not None else None,
                )
            )
        elif handoff is not None and handoff.warm:
            seen.append(
                views.PartitionInUpdate(
                    number, partition.epoch, "warming", position, None, handoff.deadline
                )
            )
    return views.UpdateView(
        queue=queue.name,
        flow_id=flow.id,
        revision=flow.view_revision,
        active=flow.active,
        draining=flow.draining,
        now=now,
        partitions=tuple(seen),
    )


def partition_view(queue: Queue, partition: Partition, positions: Positions) -> views.PartitionView:
    """A partition as administrators see it."""
    handoff = queue.handoffs.get(partition.number)
    # What a flow that is gone owned is taken from it slice by slice.
    owner = None if partition.owner is None or partition.owner.gone else partition.owner
    state = (State.UNASSIGNED if owner is None and partition.owner else partition.state).value
    if partition.retiring and partition.state is State.OWNED and owner is not None:
        state = "retiring"
    return views.PartitionView(
        partition=partition.number,
        epoch=partition.epoch,
        owner=owner.id if owner else None,
        successor=handoff.successor.id if handoff and handoff.successor else None,
        state=state,
        position=positions.get(partition.number, (0, None))[1],
        deadline=handoff.deadline if handoff else None,
    )


def flow_view(flow: Flow, lease_expires_at: float) -> views.FlowSummaryView:
    """A flow as administrators see it."""
    return views.FlowSummaryView(
        flow_id=flow.id,
        client_name=flow.client_name,
        instance_id=flow.instance_id,
        key_id=flow.key_id,
        active=flow.active,
        draining=flow.draining,
        partitions=len(flow.owned),
        bound_at=flow.bound_at,
        lease_expires_at=lease_expires_at,
    )


def status_view(queue: Queue) -> views.RebalanceStatusView:
    """The rebalance status."""
    handoffs = []
    for number in sorted(queue.handoffs):
        handoff, partition = queue.handoffs[number], queue.partitions[number]
        assert partition.owner is not None
        handoffs.append(
            views.HandoffView(
                number,
                partition.owner.id,
                handoff.successor.id if handoff.successor else None,
                partition.state.value,
                handoff.deadline,
            )
        )
    return views.RebalanceStatusView(
        queue=queue.name,
        status=queue.status.value,
        revision=queue.revision,
        trigger=queue.trigger,
        since=queue.since,
        holddown_until=queue.holddown_until,
        handoffs=tuple(handoffs),
        unassigned=tuple(sorted(queue.unassigned)),
        spread=queue.spread(),
        last_rebalance=rebalance_view(queue.last_rebalance) if queue.last_rebalance else None,
    )


def rebalance_view(entry: Rebalance, moves: Iterable[views.MoveView] = ()) -> views.RebalanceView:
    """One entry of the history."""
    return views.RebalanceView(
        id=entry.id,
        trigger=entry.trigger,
        started_at=entry.started_at,
        finished_at=entry.finished_at,
        handoffs=entry.handoffs,
        forced=entry.forced,
        granted=entry.granted,
        moves=tuple(moves),
    )


def history(entries: Iterable[ShownEntry | Entry]) -> list[views.RebalanceView]:
    """The rebalances in these entries of the history of changes, newest first."""
    found: dict[int, Rebalance] = {}
    moves: dict[int, list[views.MoveView]] = {}
    for entry in entries:
        if entry.rebalance_id is None:
            continue
        for record in map(understood, entry.records):
            match record:
                case r.RebalanceStarted(rebalance_id, trigger, at):
                    found[rebalance_id] = Rebalance(rebalance_id, trigger, at)
                case r.GrantedOutside(rebalance_id, trigger, at):
                    found[rebalance_id] = Rebalance(rebalance_id, trigger, at, finished_at=at)
        known = found.get(entry.rebalance_id)
        if known is None:
            continue  # Its beginning is no longer stored.
        found[entry.rebalance_id] = _tally(known, entry, moves.setdefault(entry.rebalance_id, []))
    return [rebalance_view(found[id], moves.get(id, ())) for id in sorted(found, reverse=True)]


def _tally(known: Rebalance, entry: ShownEntry | Entry, moves: list[views.MoveView]) -> Rebalance:
    handoffs, forced, granted = known.handoffs, known.forced, known.granted
    finished_at = known.finished_at
    for record in map(understood, entry.records):
        match record:
            case r.Granted(grants, _):
                for grant in grants:
                    handoffs += grant.by_handoff
                    granted += not grant.by_handoff
                    forced += grant.by_force
                    moves.append(
                        views.MoveView(
                            grant.partition,
                            grant.previous,
                            grant.flow_id,
                            grant.epoch,
                            grant.handed_over,
                            grant.seconds or 0.0,
                        )
                    )
            case r.PartitionsRemoved(_, ended, "discarded", _):
                moves += [
                    views.MoveView(
                        one.partition, one.owner, one.successor, one.epoch, "discarded", one.seconds
                    )
                    for one in ended
                ]
            case r.RebalanceFinished(at):
                finished_at = at
    return Rebalance(
        known.id, known.trigger, known.started_at, finished_at, handoffs, forced, granted
    )


def event_view(entry: ShownEntry | Entry) -> views.EventView:
    """One committed revision for dashboards."""
    changes = []
    for record in entry.records:
        values = shown_values(record)
        changes.append({"type": values.pop("kind"), **values})
    return views.EventView(entry.revision, entry.at, tuple(changes))
