"""Makes a queue of its rows (`rows` is the other direction).

Flows and partitions enter through the functions that `replay` uses, so that all counts and rankings
are right. All is done in pieces (`broker.pieces`), because a queue may be large.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any, NamedTuple

from sqlalchemy import Column, Row, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.graph import Lineage
from broker.core.model import Flow, HandedOver, Handoff, Partition
from broker.core.placement import change_life, enter, leave, place, restore_unassigned, set_draining
from broker.core.queue import Queue
from broker.core.transitions import LifeEvent, PartitionEvent, State
from broker.pieces import pause, pieces
from broker.store.bulk import any_of
from broker.store.levels import check_level
from broker.store.ports import QueueDamaged, QueueGone
from broker.store.rows import (
    FlowValues,
    LineageValues,
    PartitionValues,
    restore_head,
)
from broker.store.tables import bound, flows, lineage, partitions, queues

# So many rows of partitions take some milliseconds.
ROWS_AT_ONCE = 1000
# Partitions in the message about rows that do not fit.
MOST_NAMED = 10
_STATES = {state.value: state for state in State}
_HANDED_OVER: dict[str | None, HandedOver] = {how.value: how for how in HandedOver}


class QueueRows(NamedTuple):
    """The rows of one queue, of one state of the database. `gone`: see `Restoring`."""

    head: Mapping[str, Any]
    flows: Sequence[FlowValues]
    gone: Sequence[FlowValues]
    partitions: Sequence[PartitionValues]
    lineage: Sequence[LineageValues]


async def read(connection: AsyncConnection, queue_id: str) -> QueueRows:
    """The rows of the queue. Raises QueueGone.

    A transaction must not stay idle for long (`IDLE_SECONDS`), so the queue is made of the rows
    after its end.
    """
    head = (await connection.execute(select(queues).where(queues.c.id == queue_id))).first()
    if head is None:
        raise QueueGone(queue_id)
    values = [flows.c[key] for key in FlowValues._fields]
    bound_flows = select(*values).where(flows.c.queue_id == queue_id, bound)
    bound_flows = bound_flows.order_by(flows.c.bind_number)
    found = [*starmap(FlowValues, await connection.execute(bound_flows))]
    of_queue = partitions.c.queue_id == queue_id
    fields = [partitions.c[key] for key in PartitionValues._fields]
    all_partitions: list[PartitionValues] = []
    named: set[str] = set()
    query = select(*fields).where(of_queue)
    async for some in _ordered(connection, query, partitions.c.number):
        restored = [*map(PartitionValues._make, some)]
        named |= named_flows(restored)
        all_partitions += restored
    gone: list[FlowValues] = []
    if missing := named.difference(flow.id for flow in found):
        by_id = select(*values).where(any_of(flows.c.id, "flow_ids"))
        left = await connection.execute(by_id, {"flow_ids": sorted(missing)})
        gone += starmap(FlowValues, left)
    keys: list[LineageValues] = []
    if head.partitioning == "dynamic":
        nodes = select(*(lineage.c[key] for key in LineageValues._fields))
        nodes = nodes.where(lineage.c.queue_id == queue_id)
        async for some in _ordered(connection, nodes, lineage.c.key):
            keys += map(LineageValues._make, some)
    return QueueRows(head._asdict(), found, gone, all_partitions, keys)


async def _ordered(
    connection: AsyncConnection, query: Select[Any], key: Column[Any]
) -> AsyncIterator[Sequence[Row[Any]]]:
    """The rows by their key, in pieces."""
    query = query.order_by(key).limit(ROWS_AT_ONCE)
    some = (await connection.execute(query)).all()
    while True:
        yield some
        if len(some) < ROWS_AT_ONCE:
            return
        await pause()
        last = some[-1]._mapping[key]
        some = (await connection.execute(query.where(key > last))).all()


async def build(queue_id: str, rows: QueueRows) -> Queue:
    """The queue that has these rows. Raises QueueTooNew, QueueDamaged."""
    check_level(rows.head["name"], rows.head["level"])
    with _readable(rows.head):
        restoring = Restoring(queue_id, rows.head, rows.flows, rows.gone, rows.lineage)
        async for some in pieces(rows.partitions):
            restoring.add(some)
        async for numbers in pieces(restoring.nodes()):
            restoring.link(numbers)
        return restoring.queue()


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


class Restoring:
    """A queue that is made from its rows."""

    def __init__(
        self,
        queue_id: str,
        row: Mapping[str, Any],
        flows: Iterable[FlowValues],
        gone: Iterable[FlowValues] = (),
        lineage: Iterable[LineageValues] = (),
    ) -> None:
        """Flows by bind number; `gone` are those that left and are still named by partitions
        (`missing_flows`). `lineage` has the keys of a dynamic queue."""
        self._row = row
        self._lineage = lineage
        self._queue = restore_head(queue_id, row)
        self._queue.configured_count = 0
        self._gone = [_restore_flow(self._queue, values) for values in gone]
        for values in flows:
            _restore_flow(self._queue, values)

    def add(self, partitions: Iterable[PartitionValues]) -> None:
        """The next partitions, by number."""
        for values in partitions:
            _restore_partition(self._queue, values)
        self._queue.journal.forget()

    def nodes(self) -> Sequence[int]:
        """The partitions of a dynamic queue, to be linked after the last was added."""
        queue = self._queue
        if queue.lineage is None:
            return ()
        _restore_lineage(queue, queue.lineage, self._lineage)
        return sorted(queue.partitions)

    def link(self, numbers: Iterable[int]) -> None:
        """The next of the `nodes` follow their parents."""
        if self._queue.lineage is not None:
            self._queue.lineage.relink(numbers)
        self._queue.journal.forget()

    def queue(self) -> Queue:
        """The queue, after its last partition was linked; its journal is empty."""
        queue, row = self._queue, self._row
        for flow in self._gone:
            leave(queue, flow)
        _restore_absent(queue)
        queue.next_bind_number = row["next_bind_number"]
        due = row["next_deadline"]
        if due is not None and due != queue.next_deadline():
            # Nothing else in it is due then, so it is the rest of a decision that was cut off.
            queue.unfinished_at, queue.changed = due, True
        elif queue.is_resizing or queue.gone:
            # A version that makes no slices took the rest for done, or a handoff was due just then.
            queue.unfinished_at, queue.changed = queue.since, True
        queue.touched = set()
        queue.journal.forget()
        return queue


def restore(
    queue_id: str,
    row: Mapping[str, Any],
    flows: Iterable[FlowValues],
    partitions: Iterable[PartitionValues],
    gone: Iterable[FlowValues] = (),
    lineage: Iterable[LineageValues] = (),
) -> Queue:
    """The queue from its rows, at once; see `Restoring`. Raises QueueDamaged."""
    with _readable(row):
        restoring = Restoring(queue_id, row, flows, gone, lineage)
        restoring.add(partitions)
        restoring.link(restoring.nodes())
        return restoring.queue()


def missing_flows(flows: Iterable[FlowValues], partitions: Iterable[PartitionValues]) -> set[str]:
    """The flows that partitions name as owner or successor, and that are not among `flows`."""
    return named_flows(partitions).difference(values.id for values in flows)


def named_flows(partitions: Iterable[PartitionValues]) -> set[str]:
    """The flows that partitions name as owner or successor."""
    return {id for values in partitions for id in (values.owner, values.successor) if id}


def _restore_absent(queue: Queue) -> None:
    """What is still there of the partitions of flows that left in this holddown."""
    by_flow = {absent.flow_id: absent for absent in queue.absent.values()}
    if by_flow:
        for number in queue.unassigned:
            of = by_flow.get(queue.partitions[number].released_by or "")
            if of is not None:
                of.left.push(number)


def _restore_flow(queue: Queue, values: FlowValues) -> Flow:
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
    )
    flow.view_revision = values.view_revision
    enter(queue, flow)
    if values.draining:
        set_draining(queue, flow, values.drain_deadline)
    return flow


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
        queue.warmed[number] = (values.warmed_by, values.warmed_epoch)
    if state is State.UNASSIGNED:
        restore_unassigned(queue, number, values.unowned_since)
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
    if queue.barriers is not None and values.cut is not None:
        queue.barriers.restore(queue.journal, number, values.cut, bool(values.cut_reached))
    if values.retiring:
        change_life(queue, partition, LifeEvent.RETIRED)
    elif state not in (State.REMOVED, State.WAITING, State.FINISHED):
        queue.configured_count += 1


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
