"""Makes views from the model; only this module knows both."""

from __future__ import annotations

from collections.abc import Iterator

from broker.calls import views
from broker.calls.views import MOST_NAMED, RebalanceView
from broker.core.graph import Lineage, Node
from broker.core.model import Flow, Partition, Rebalance
from broker.core.queue import Queue
from broker.core.records import Entry
from broker.core.stored import ShownEntry, shown_values
from broker.core.transitions import State
from broker.replica.coordinator import Coordinator
from broker.store.ports import Positions, QueueRow

# As JSON an item is a little longer than it is measured here: a page has 1 MiB at most.
PAGE_BYTES = 900_000
# Of an item without names, and of a name beside its text.
ITEM_BYTES = 200
NAME_BYTES = 10


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
        retention_seconds=settings.retention_seconds,
        retention_bytes=settings.retention_bytes,
        ordered_resize=settings.ordered_resize,
        rebalance_status=queue.status.value,
        scale_status=row.scale_status,
        flow_count=row.flow_count,
        active_flow_count=row.active_flow_count,
        revision=queue.revision,
        created_at=queue.created_at,
        partitioning=settings.partitioning,
        mirror_group=settings.mirror_group,
        align_with=settings.log.partition("+")[2] if settings.aligned > 1 else None,
    )


def queue_view(queue: Queue) -> views.QueueView:
    """A queue in memory."""
    active = sum(flow.active for flow in queue.flows.values())
    row = QueueRow(
        queue, queue.operational_partition_count, queue.scale_status, len(queue.flows), active
    )
    return queue_row_view(row)


def barrier_of(queue: Queue, number: int) -> tuple[str, bool, tuple[int, ...]] | tuple[()]:
    """Cut, whether it is reached, and for which partitions this one waits there; nothing if it
    neither waits nor is waited for (the contract, *Ordered resize*)."""
    barriers = queue.barriers
    if barriers is None:
        return ()
    is_reached, others = number not in barriers.unreached, barriers.waits_for(number, MOST_NAMED)
    if is_reached and not others:
        return ()
    return barriers.cuts[number], is_reached, others


def resize_view(queue: Queue) -> views.ResizeView | None:
    """The ordered resize that is not settled."""
    barriers, awaits = queue.barriers, queue.cuts_due is not None
    if barriers is None and not awaits:
        return None
    count = queue.settings.partition_count
    if barriers is None:
        return views.ResizeView(None, count, awaits, 0, 0)
    return views.ResizeView(
        barriers.resized_from,
        barriers.resized_to,
        awaits,
        len(barriers.unreached),
        barriers.waiting(),
    )


def children_of(queue: Queue, node: Node) -> tuple[str, ...]:
    assert queue.lineage is not None
    return tuple(sorted(node.children, key=queue.lineage.numbers.__getitem__))


def waits_for(lineage: Lineage, node: Node) -> tuple[int, ...]:
    """The parents that are not finished, lowest number first."""
    return tuple(sorted(parent.number for parent in lineage.unfinished(node.parents)))


def on_a_page(queue: Queue, after: int, limit: int) -> tuple[list[int], bool]:
    """The numbers of the partitions above `after` that a page shows, and whether there are more.

    Keys are long, and a partition of a dynamic queue may have many parents and children. So a page
    has at most PAGE_BYTES of them, or one partition.
    """
    found: list[int] = []
    size = 0
    for partition in queue.existing(after):
        node = None if queue.lineage is None else queue.lineage.nodes[partition.number]
        size += ITEM_BYTES + (0 if node is None else _names_bytes(node))
        if len(found) == limit or (found and size > PAGE_BYTES):
            return found, True
        found.append(partition.number)
    return found, False


def _names_bytes(node: Node) -> int:
    names = [node.key, *node.parents, *node.children]
    return sum(map(len, names)) + NAME_BYTES * len(names)


def partition_view(queue: Queue, partition: Partition, positions: Positions) -> views.PartitionView:
    """A partition as administrators see it."""
    handoff = queue.handoffs.get(partition.number)
    node = None if queue.lineage is None else queue.lineage.nodes.get(partition.number)
    owner, state = partition.owner, partition.state.value
    if partition.retiring and partition.state is State.OWNED:
        state = "retiring"
    cut, reached_cut, others = barrier_of(queue, partition.number) or (None, None, None)
    return views.PartitionView(
        partition=partition.number,
        epoch=partition.epoch,
        owner=owner.id if owner else None,
        successor=handoff.successor.id if handoff and handoff.successor else None,
        state=state,
        position=positions.get(partition.number, (0, None))[1],
        deadline=handoff.deadline if handoff else None,
        cut=cut,
        reached_cut=reached_cut,
        waits_for=others,
        key=node.key if node else None,
        parents=node.parents if node else None,
        children=children_of(queue, node) if node else None,
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
        held_until=flow.held_until,
    )


async def status_of(coordinator: Coordinator) -> views.RebalanceStatusView:
    """The rebalance status. Raises QueueNotFound, Unavailable."""
    return await coordinator.read(status_view, fresh=True)


def _handoff_views(queue: Queue) -> Iterator[views.HandoffView]:
    """The handoffs, by partition."""
    for number in sorted(queue.handoffs):
        handoff, partition = queue.handoffs[number], queue.partitions[number]
        assert partition.owner is not None
        yield views.HandoffView(
            number,
            partition.owner.id,
            handoff.successor.id if handoff.successor else None,
            partition.state.value,
            handoff.deadline,
        )


def status_view(queue: Queue) -> views.RebalanceStatusView:
    """The rebalance status."""
    return views.RebalanceStatusView(
        queue=queue.name,
        status=queue.status.value,
        revision=queue.revision,
        trigger=queue.trigger,
        since=queue.since,
        holddown_until=queue.holddown_until,
        handoffs=tuple(_handoff_views(queue)),
        unassigned=tuple(sorted(queue.unassigned)),
        spread=queue.spread(),
        last_rebalance=rebalance_view(queue.last_rebalance) if queue.last_rebalance else None,
        resize=resize_view(queue),
        waiting=_waiting(queue.lineage) if queue.lineage else (),
        held_back=_held_back(queue),
    )


def _held_back(queue: Queue) -> views.HeldBackView | None:
    """How many flows are held back, if any."""
    times = [flow.held_until for flow in queue.held.values() if flow.held_until is not None]
    return views.HeldBackView(len(times), min(times)) if times else None


def _waiting(lineage: Lineage) -> tuple[views.WaitingView, ...]:
    """What each waiting partition waits for; what has nothing to wait for is about to go on."""
    nodes = (lineage.nodes[number] for number in sorted(lineage.waiting))
    return tuple(
        views.WaitingView(node.number, node.key, waits_for(lineage, node)) for node in nodes
    )


def rebalance_view(entry: Rebalance) -> RebalanceView:
    """An entry of the history, without its moves."""
    return RebalanceView(
        id=entry.id,
        trigger=entry.trigger,
        started_at=entry.started_at,
        finished_at=entry.finished_at,
        handoffs=entry.handoffs,
        forced=entry.forced,
        granted=entry.granted,
    )


def event_view(entry: ShownEntry | Entry) -> views.EventView:
    """One committed revision for dashboards."""
    changes = []
    for record in entry.records:
        values = shown_values(record)
        changes.append({"type": values.pop("kind"), **values})
    return views.EventView(entry.revision, entry.at, tuple(changes))
