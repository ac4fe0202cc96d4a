"""Makes a queue of its rows (`rows` is the other direction).

Flows and partitions enter through the functions that `replay` uses, so that all counts and rankings
are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.graph import Lineage
from broker.core.model import Flow, HandedOver, Handoff, Partition
from broker.core.placement import change_life, enter, place, set_draining, settle_pins
from broker.core.queue import Queue
from broker.core.transitions import LifeEvent, PartitionEvent, State
from broker.pieces import pieces
from broker.store.levels import check_level
from broker.store.ports import QueueDamaged, QueueGone
from broker.store.rows import (
    FlowValues,
    LineageValues,
    PartitionValues,
    restore_head,
)
from broker.store.tables import bound, flows, lineage, partitions, queues

# Partitions in the message about rows that do not fit.
MOST_NAMED = 10
_STATES = {state.value: state for state in State}
_HANDED_OVER: dict[str | None, HandedOver] = {how.value: how for how in HandedOver}


class QueueRows(NamedTuple):
    """The rows of one queue, of one state of the database: flows by bind number, partitions by
    number; `lineage` has the keys of a dynamic queue."""

    head: Mapping[str, Any]
    flows: Sequence[FlowValues]
    partitions: Sequence[PartitionValues]
    lineage: Sequence[LineageValues]


async def read(connection: AsyncConnection, queue_id: str) -> QueueRows:
    """The rows of the queue. Raises QueueGone, QueueTooNew.

    A transaction must not stay idle for long (`IDLE_SECONDS`), so the queue is made of the rows
    after its end.
    """
    head = (await connection.execute(select(queues).where(queues.c.id == queue_id))).first()
    if head is None:
        raise QueueGone(queue_id)
    check_level(head.name, head.level)
    values = [flows.c[key] for key in FlowValues._fields]
    bound_flows = select(*values).where(flows.c.queue_id == queue_id, bound)
    bound_flows = bound_flows.order_by(flows.c.bind_number)
    of_queue = select(*(partitions.c[key] for key in PartitionValues._fields))
    of_queue = of_queue.where(partitions.c.queue_id == queue_id).order_by(partitions.c.number)
    keys: list[LineageValues] = []
    if head.partitioning == "dynamic":
        nodes = select(*(lineage.c[key] for key in LineageValues._fields))
        found = await connection.execute(nodes.where(lineage.c.queue_id == queue_id))
        async for some in pieces(found.all()):
            keys += starmap(LineageValues, some)
    return QueueRows(
        head._asdict(),
        [*starmap(FlowValues, await connection.execute(bound_flows))],
        [*starmap(PartitionValues, await connection.execute(of_queue))],
        keys,
    )


def restore(queue_id: str, rows: QueueRows) -> Queue:
    """The queue that has these rows; its journal is empty. Raises QueueDamaged."""
    with _readable(rows.head):
        queue = restore_head(queue_id, rows.head)
        for flow in rows.flows:
            _restore_flow(queue, flow)
        for partition in rows.partitions:
            _restore_partition(queue, partition)
        if queue.lineage is not None:
            _restore_lineage(queue, queue.lineage, rows.lineage)
        _restore_absent(queue)
        settle_pins(queue)
        # A flow that was bound before others, and left since, may have had the highest number.
        queue.next_bind_number = rows.head["next_bind_number"]
        queue.touched = set()
        queue.journal.forget()
        return queue


@contextmanager
def _readable(row: Mapping[str, Any]) -> Iterator[None]:
    """While a queue is made of its rows. Raises QueueDamaged for whatever fails."""
    name = row["name"]
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, AssertionError) else repr(error)
        raise QueueDamaged(
            f"The stored rows of the queue {name!r} do not fit together: {why}. It can only be "
            f"deleted (DELETE /v1/queues/{name}?force=true), or restored from a backup of the "
            "database."
        ) from error


def _restore_absent(queue: Queue) -> None:
    """What is still there of the partitions of flows that left in this holddown."""
    by_flow = {absent.flow_id: absent for absent in queue.absent.values()}
    if by_flow:
        left: dict[str, list[int]] = {flow_id: [] for flow_id in by_flow}
        for number in sorted(queue.unassigned):
            released_by = queue.partitions[number].released_by
            if released_by in left:
                left[released_by].append(number)
        for flow_id, absent in by_flow.items():
            absent.left = left[flow_id]


def _restore_flow(queue: Queue, values: FlowValues) -> None:
    flow = Flow(
        values.id,
        values.instance_id,
        values.client_name,
        values.bind_number,
        values.lease_seconds,
        values.warmup,
        values.bound_at,
        values.binder,
        values.attempt,
        values.key_id,
        values.held_until,
        values.keeps_state,
        values.weight,
        values.max_partitions,
    )
    flow.view_revision = values.view_revision
    enter(queue, flow)
    if values.draining:
        set_draining(queue, flow, values.drain_deadline)


def _restore_partition(queue: Queue, values: PartitionValues) -> None:
    number, state = values.number, _STATES[values.state]
    partition = Partition(number)
    whole = queue.lineage is not None or number == len(queue.partitions)
    assert whole, f"partition {len(queue.partitions)} is missing"
    queue.partitions[number] = partition
    partition.epoch = values.epoch
    partition.handed_over = _HANDED_OVER.get(values.handed_over)
    partition.next_handed_over = _HANDED_OVER[values.next_handed_over]
    partition.released_by = _known(queue, values.released_by)
    if values.warmed_by is not None and values.warmed_epoch is not None:
        queue.handoffs.warmed[number] = (values.warmed_by, values.warmed_epoch)
    if state is State.UNASSIGNED:
        queue.unassigned[number] = values.unowned_since
    elif state in (State.WAITING, State.FINISHED):
        partition.state = state
    elif state is State.REMOVED:
        place(queue, partition, PartitionEvent.REMOVED)
    else:
        assert values.owner is not None
        owner = queue.flows[values.owner]
        place(queue, partition, PartitionEvent.GRANTED, owner=owner)
        if state is not State.OWNED:
            warming = state is State.WARMING
            event = PartitionEvent.WARMUP_STARTED if warming else PartitionEvent.REVOKED
            place(queue, partition, event, owner=owner, handoff=_handoff(queue, values))
    if queue.resize.barriers is not None and values.cut is not None:
        queue.resize.barriers.restore(queue.journal, number, values.cut, bool(values.cut_reached))
    if values.retiring:
        change_life(queue, partition, LifeEvent.RETIRED)


def _restore_lineage(queue: Queue, graph: Lineage, rows: Iterable[LineageValues]) -> None:
    existing, removed = [], []
    for number, key, parents in rows:
        if parents is None:
            removed.append((key, number))
        else:
            existing.append((number, key, tuple(parents)))
    unlike = {number for number, _, _ in existing} ^ queue.partitions.keys()
    assert not unlike, f"partitions and keys differ in {sorted(unlike)[:MOST_NAMED]}"
    states = {number: partition.state for number, partition in queue.partitions.items()}
    waiting = (number for number, state in states.items() if state is State.WAITING)
    finished = (number for number, state in states.items() if state is State.FINISHED)
    graph.restore(existing, waiting, finished, removed)
    graph.relink(sorted(queue.partitions))


def _handoff(queue: Queue, values: PartitionValues) -> Handoff:
    assert values.deadline is not None
    assert values.handoff_since is not None
    assert values.warm is not None
    successor = None if values.successor is None else queue.flows[values.successor]
    return Handoff(values.number, successor, values.deadline, values.handoff_since, values.warm)


def _known(queue: Queue, flow_id: str | None) -> str | None:
    """The same id, as the object of the bound flow: so partitions do not each hold a copy."""
    flow = queue.flows.get(flow_id) if flow_id is not None else None
    return flow_id if flow is None else flow.id
