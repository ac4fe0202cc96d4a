"""Makes views from the model; only this module knows both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.calls import views
from broker.calls.times import time_of
from broker.core.commands import Result
from broker.core.graph import Lineage, Node
from broker.core.model import Flow, Partition, Rebalance
from broker.core.pauses import Pause
from broker.core.queue import Queue
from broker.core.records import Entry
from broker.core.stored import ShownEntry, shown_values
from broker.core.transitions import State
from broker.logs.ports import LogAccess
from broker.replica.coordinator import Coordinator
from broker.store.ports import KeySummary, Positions, QueueRow
from broker.store.rows import unmet_pins
from counterpoise import wire

RESIZE_PAUSED = "resize_paused"
OVER_CAPACITY = "over_capacity"
PIN_UNMET = "pin_unmet"
# As JSON an item is a little longer than it is measured here: a page has 1 MiB at most.
PAGE_BYTES = 900_000
# Of an item without names, and of a name beside its text.
ITEM_BYTES = 200
NAME_BYTES = 10


def queue_row_view(row: QueueRow) -> wire.Queue:
    """A queue as listed."""
    queue, settings = row.queue, row.queue.settings
    return wire.Queue(
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
        paused=pause_view(queue.pauses.whole),
        paused_partition_count=row.operational_partition_count
        if queue.pauses.whole is not None
        else len(queue.pauses.of),
        pinned_partition_count=len(queue.pins.of) * settings.aligned,
        revision=queue.revision,
        created_at=time_of(queue.created_at),
        partitioning=settings.partitioning,
        mirror_group=settings.mirror_group,
        align_with=settings.log.partition("+")[2] if settings.aligned > 1 else None,
        conditions=own_conditions(row) or None,
        max_weight=settings.max_weight,
    )


def own_conditions(row: QueueRow) -> dict[str, int]:
    """What the service itself says of the queue, by kind."""
    found = {RESIZE_PAUSED: 1} if resize_is_paused(row) else {}
    if row.over_capacity:
        found[OVER_CAPACITY] = row.over_capacity
    if row.unmet_pins:
        found[PIN_UNMET] = row.unmet_pins
    return found


def queue_view(queue: Queue) -> wire.Queue:
    """A queue in memory."""
    return queue_row_view(row_of(queue))


def row_of(queue: Queue) -> QueueRow:
    """A queue in memory, as it would be listed."""
    active = sum(flow.active for flow in queue.flows.values())
    return QueueRow(
        queue,
        queue.operational_partition_count,
        queue.scale_status,
        len(queue.flows),
        active,
        queue.over_capacity,
        unmet_pins(queue),
    )


def pause_view(pause: Pause | None) -> wire.Pause | None:
    """A pause as it is shown."""
    if pause is None:
        return None
    return wire.Pause(time_of(pause.since), time_of(pause.until), pause.reason)


def pauses_view(queue: Queue) -> wire.PausedQueue:
    """What is paused of the queue."""
    partitions = []
    for number in queue.pauses.numbers:
        pause = pause_view(queue.pauses.of[number])
        assert pause is not None
        partitions.append(wire.PausedPartition(number, pause))
    whole = pause_view(queue.pauses.whole)
    return wire.PausedQueue(queue.name, queue.revision, whole, tuple(partitions))


def pin_view(queue: Queue, number: int) -> wire.Pin | None:
    """The pin of a partition, and the flow that it belongs to by it."""
    lead = queue.group(number)[0]
    pin, home = queue.pins.of.get(lead), queue.pins.homes.get(lead)
    if pin is None:
        return None
    return wire.Pin(pin.client_name, time_of(pin.since), pin.reason, home.id if home else None)


def pins_view(queue: Queue) -> wire.PinnedQueue:
    """What is pinned of the queue."""
    numbers = [each for number in sorted(queue.pins.of) for each in queue.group(number)]
    pins = ((number, pin_view(queue, number)) for number in numbers)
    partitions = tuple(wire.PinnedPartition(number, pin) for number, pin in pins if pin is not None)
    return wire.PinnedQueue(queue.name, queue.revision, partitions)


def resize_is_paused(row: QueueRow) -> bool:
    """Whether a resize does not end before something is resumed: a retiring partition is paused,
    or one on whose cut others may wait."""
    queue = row.queue
    if not queue.pauses:
        return False
    waits = row.scale_status == "ScalingDown" or queue.resize.barriers is not None
    if queue.pauses.whole is not None or queue.resize.barriers is not None:
        return waits
    # Those of a fixed queue that retire are above its count.
    return waits and queue.pauses.numbers[-1] >= queue.settings.partition_count


def barrier_of(queue: Queue, number: int) -> tuple[str, bool, tuple[int, ...]] | tuple[()]:
    """Cut, whether it is reached, and for which partitions this one waits there; nothing if it
    neither waits nor is waited for (the contract, *Ordered resize*)."""
    barriers = queue.resize.barriers
    if barriers is None:
        return ()
    is_reached, others = (
        number not in barriers.unreached,
        barriers.waits_for(number, wire.MOST_WAITED_FOR),
    )
    if is_reached and not others:
        return ()
    return barriers.cuts[number], is_reached, others


def resize_view(queue: Queue) -> wire.UnsettledResize | None:
    """The ordered resize that is not settled."""
    barriers, awaits = queue.resize.barriers, queue.resize.cuts_due is not None
    if barriers is None and not awaits:
        return None
    count = queue.settings.partition_count
    if barriers is None:
        return wire.UnsettledResize(None, count, awaits, 0, 0)
    return wire.UnsettledResize(
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


def partition_view(queue: Queue, partition: Partition, positions: Positions) -> wire.Partition:
    """A partition as administrators see it."""
    handoff = queue.handoffs.get(partition.number)
    node = None if queue.lineage is None else queue.lineage.nodes.get(partition.number)
    owner, state = partition.owner, partition.state.value
    if partition.retiring and partition.state is State.OWNED:
        state = "retiring"
    stored = positions.get(partition.number)
    cut, reached_cut, others = barrier_of(queue, partition.number) or (None, None, None)
    return wire.Partition(
        partition=partition.number,
        epoch=partition.epoch,
        owner=owner.id if owner else None,
        successor=handoff.successor.id if handoff and handoff.successor else None,
        state=state,
        position=stored.position if stored else None,
        deadline=time_of(handoff.deadline) if handoff else None,
        end=None,
        lag=None,
        lag_seconds=None,
        cut=cut,
        reached_cut=reached_cut,
        waits_for=others,
        key=node.key if node else None,
        parents=node.parents if node else None,
        children=children_of(queue, node) if node else None,
        paused=pause_view(queue.pauses.holding(partition.number)),
        pinned=pin_view(queue, partition.number),
        done_above=stored.done_above if stored else None,
    )


def flow_view(flow: Flow, lease_expires_at: float) -> wire.FlowSummary:
    """A flow as administrators see it."""
    return wire.FlowSummary(
        flow_id=flow.id,
        client_name=flow.client_name,
        instance_id=flow.instance_id,
        key_id=flow.key_id,
        active=flow.active,
        draining=flow.draining,
        partitions=len(flow.owned),
        bound_at=time_of(flow.bound_at),
        lease_expires_at=time_of(lease_expires_at),
        held_until=time_of(flow.held_until),
        keeps_state=flow.keeps_state,
        weight=flow.weight,
        max_partitions=flow.max_partitions,
    )


async def status_of(coordinator: Coordinator) -> wire.RebalanceStatus:
    """The rebalance status. Raises QueueNotFound, Unavailable."""
    return await coordinator.read(status_view, fresh=True)


def _handoff_views(queue: Queue) -> Iterator[wire.Handoff]:
    """The handoffs, by partition."""
    for number in sorted(queue.handoffs):
        handoff, partition = queue.handoffs[number], queue.partitions[number]
        assert partition.owner is not None
        yield wire.Handoff(
            number,
            partition.owner.id,
            handoff.successor.id if handoff.successor else None,
            partition.state.value,
            time_of(handoff.deadline),
        )


def status_view(queue: Queue) -> wire.RebalanceStatus:
    """The rebalance status."""
    return wire.RebalanceStatus(
        queue=queue.name,
        status=queue.status.value,
        revision=queue.revision,
        trigger=queue.trigger,
        since=time_of(queue.since),
        holddown_until=time_of(queue.holddown_until),
        handoffs=tuple(_handoff_views(queue)),
        unassigned=tuple(sorted(queue.unassigned)),
        spread=queue.spread(),
        last_rebalance=rebalance_view(queue.last_rebalance) if queue.last_rebalance else None,
        resize=resize_view(queue),
        waiting=_waiting(queue.lineage) if queue.lineage else (),
        held_back=_held_back(queue),
    )


def _held_back(queue: Queue) -> wire.HeldBack | None:
    """How many flows are held back, if any."""
    times = [flow.held_until for flow in queue.flows.held.values() if flow.held_until is not None]
    return wire.HeldBack(len(times), time_of(min(times))) if times else None


def _waiting(lineage: Lineage) -> tuple[wire.Waiting, ...]:
    """What each waiting partition waits for; what has nothing to wait for is about to go on."""
    nodes = (lineage.nodes[number] for number in sorted(lineage.waiting))
    return tuple(wire.Waiting(node.number, node.key, waits_for(lineage, node)) for node in nodes)


def rebalance_view(entry: Rebalance) -> wire.RebalanceSummary:
    """An entry of the history, without its moves."""
    return wire.RebalanceSummary(
        id=entry.id,
        trigger=entry.trigger,
        started_at=time_of(entry.started_at),
        finished_at=time_of(entry.finished_at),
        handoffs=entry.handoffs,
        forced=entry.forced,
        granted=entry.granted,
    )


def results_view(results: Iterable[Result], view: wire.Update) -> wire.Results:
    """The results of a call, and the flow's view afterwards."""
    return wire.Results(tuple(wire.Result(*one) for one in results), view)


def log_access(access: LogAccess | None) -> wire.LogAccess | None:
    """Credentials for the built-in log."""
    return None if access is None else wire.LogAccess(access.url, time_of(access.expires_at))


def key_view(key: KeySummary) -> wire.Key:
    """A key, without its secret."""
    return wire.Key(
        id=key.id,
        name=key.name,
        role=key.role,
        queues=tuple(key.queues),
        created_at=time_of(key.created_at),
        ends_at=time_of(key.ends_at),
        revoked_at=time_of(key.revoked_at),
        last_used_at=time_of(key.last_used_at),
        state=key.state,
    )


def event_view(entry: ShownEntry | Entry) -> views.EventView:
    """One committed revision for dashboards."""
    changes = []
    for record in entry.records:
        values = shown_values(record)
        changes.append({"type": values.pop("kind"), **values})
    return views.EventView(entry.revision, entry.at, tuple(changes))
