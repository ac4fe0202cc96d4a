"""A queue as rows and rows as a queue: what every store writes, and what `load` returns.

The two directions are next to each other, so that both cover every field; the contract suite
compares a loaded queue with the replayed one. Positions, leases and token hashes are not here,
because the model does not have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import orjson

from broker.core.state.model import (
    Absent,
    Flow,
    HandedOver,
    Handoff,
    Instance,
    Partition,
    Rebalance,
    Settings,
)
from broker.core.state.queue import Queue
from broker.core.state.records import Record
from broker.core.state.stored import Unknown, from_json, shown_from_json, to_json
from broker.core.state.transitions import LifeEvent, PartitionEvent, State, Status
from broker.store.ports import PositionWrite, QueueRow

# Columns of a queue's row that are attributes of the queue under the same name.
PLAIN = (
    "trigger",
    "since",
    "holddown_until",
    "flows_before",
    "growing",
    "outage_seen",
)
SETTINGS = tuple(field.name for field in fields(Settings))
_OF_REBALANCE = frozenset(field.name for field in fields(Rebalance))
_STATES = {state.value: state for state in State}
_HANDED_OVER: dict[str | None, HandedOver] = {how.value: how for how in HandedOver}
# After this many restored partitions the journal forgets them.
_CHUNK = 1000


class FlowValues(NamedTuple):
    """The row of a bound flow. `active`: owns at least one partition."""

    id: str
    instance_id: str
    client_name: str
    seat: int
    lease_seconds: float
    warmup: bool
    bound_at: float
    binder: str | None
    attempt: int
    draining: bool
    drain_deadline: float | None
    view_revision: int
    active: bool
    key_id: str | None


class PartitionValues(NamedTuple):
    """The row of a partition.

    `unowned_since` is null also when the partition never had an owner. `successor` and `warm`
    belong to its handoff. `warmed_by` said ready in the latest handoff, for `warmed_epoch`.
    """

    number: int
    state: str
    epoch: int
    owner: str | None
    retiring: bool
    handed_over: str | None
    let_go: str
    released_by: str | None
    unowned_since: float | None
    successor: str | None
    deadline: float | None
    handoff_since: float | None
    warm: bool | None
    warmed_by: str | None
    warmed_epoch: int | None


def queue_values(queue: Queue, next_deadline: float | None) -> dict[str, Any]:
    """The row of a queue without its id; JSON columns are JSON values."""
    return {
        "name": queue.name,
        "created_at": queue.created_at,
        **{name: getattr(queue.settings, name) for name in SETTINGS},
        "revision": queue.revision,
        "status": queue.status.value,
        **{name: getattr(queue, name) for name in PLAIN},
        "next_seat": queue.next_bind_number,
        "departed": _absent_values(queue),
        "rebalance": queue.rebalance and asdict(queue.rebalance),
        "last_rebalance": queue.last_rebalance and asdict(queue.last_rebalance),
        "retiring_count": len(queue.retiring),
        "next_deadline": next_deadline,
    }


def flow_values(flow: Flow) -> FlowValues:
    """The row of a flow."""
    return FlowValues(
        flow.id,
        flow.instance_id,
        flow.client_name,
        flow.bind_number,
        flow.lease_seconds,
        flow.warmup,
        flow.bound_at,
        flow.binder,
        flow.attempt,
        flow.draining,
        flow.drain_deadline,
        flow.view_revision,
        flow.active,
        flow.key_id,
    )


def partition_values(queue: Queue, partition: Partition) -> PartitionValues:
    """The row of a partition."""
    number, owner = partition.number, partition.owner
    handoff = queue.handoffs.get(number)
    successor = handoff.named if handoff else None
    warmed_by, warmed_epoch = queue.warmed.get(number, (None, None))
    return PartitionValues(
        number,
        partition.state.value,
        partition.epoch,
        owner.id if owner else None,
        partition.retiring,
        str(partition.handed_over) if partition.handed_over else None,
        str(partition.next_handed_over),
        partition.released_by,
        queue.unassigned.get(number),
        successor.id if successor else None,
        handoff.deadline if handoff else None,
        handoff.since if handoff else None,
        handoff.warm if handoff else None,
        warmed_by,
        warmed_epoch,
    )


def restore_head(queue_id: str, row: Mapping[str, Any]) -> Queue:
    """The queue without flows and partitions, from its row."""
    settings = Settings(**{name: row[name] for name in SETTINGS})
    queue = Queue(queue_id, row["name"], settings, row["created_at"])
    queue.revision = row["revision"]
    queue.status = Status(row["status"])
    for name in PLAIN:
        setattr(queue, name, row[name])
    queue.next_bind_number = row["next_seat"]
    queue.absent = {
        _instance(name): Absent(number, str(dict(held).get("flow", f"left by {name}")))
        for name, (number, held) in (row["departed"] or {}).items()
    }
    queue.rebalance = _rebalance(row["rebalance"])
    queue.last_rebalance = _rebalance(row["last_rebalance"])
    return queue


def _rebalance(values: Mapping[str, Any] | None) -> Rebalance | None:
    """An entry of the history; it is only shown, so what a newer version added is left out."""
    if not values:
        return None
    return Rebalance(**{name: at for name, at in values.items() if name in _OF_REBALANCE})


def _absent_values(queue: Queue) -> dict[str, Any]:
    """By instance: its name, after the id of its key and a line feed, which no name contains."""
    return {
        instance if key_id is None else f"{key_id}\n{instance}": [
            absent.bind_number,
            [["flow", absent.flow_id]],
        ]
        for (key_id, instance), absent in queue.absent.items()
    }


def _instance(name: str) -> Instance:
    key_id, separator, instance = name.partition("\n")
    return (key_id, instance) if separator else (None, name)


def encode(records: Iterable[Record]) -> bytes:
    """Records as JSON."""
    return orjson.dumps([to_json(record) for record in records], default=_array)


def decode(values: Iterable[Mapping[str, Any]]) -> tuple[Record, ...]:
    """The records that `encode` made, from JSON values."""
    return tuple(from_json(value) for value in values)


def decode_shown(values: Iterable[Mapping[str, Any]]) -> tuple[Record | Unknown, ...]:
    """As `decode`, for showing."""
    return tuple(shown_from_json(value) for value in values)


def _array(value: object) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} in a record")


def first_writes(writes: Iterable[PositionWrite]) -> dict[int, PositionWrite]:
    """By partition. The first write counts, because the release with it ends the epoch."""
    first: dict[int, PositionWrite] = {}
    for write in writes:
        first.setdefault(write.partition, write)
    return first


def queue_row(
    queue_id: str, row: Mapping[str, Any], flow_count: int, active_flow_count: int
) -> QueueRow:
    """The queue for a listing, from its row."""
    queue = restore_head(queue_id, row)
    retiring = row["retiring_count"]
    scale_status = "ScalingDown" if retiring else queue.scale_status
    operational = queue.settings.partition_count + retiring
    return QueueRow(queue, operational, scale_status, flow_count, active_flow_count)


def restore(
    queue_id: str,
    row: Mapping[str, Any],
    flows: Iterable[FlowValues],
    partitions: Iterable[PartitionValues],
    gone: Iterable[FlowValues] = (),
) -> Queue:
    """The queue from its rows: flows by bind number, partitions by number; its journal is empty.

    `gone` are flows that left and are still named by partitions (`missing_flows`). Flows and
    partitions enter through the same methods as in `replay`, so that all counts and rankings are
    right.
    """
    queue = restore_head(queue_id, row)
    left = [_restore_flow(queue, values) for values in gone]
    for values in flows:
        _restore_flow(queue, values)
    for place, partition in enumerate(partitions, start=1):
        _restore_partition(queue, partition)
        if place % _CHUNK == 0:
            queue.journal.forget()
    for flow in left:
        queue.leave(flow)
    _restore_absent(queue, row)
    queue.next_bind_number = row["next_seat"]
    due, known = row["next_deadline"], queue.next_deadline()
    if due is not None and (known is None or due < known):
        # Nothing else in it is due by then, so it is the rest of a decision that was cut off.
        queue.unfinished_at, queue.changed = due, True
    queue.touched = set()
    queue.journal.forget()
    return queue


def missing_flows(flows: Iterable[FlowValues], partitions: Iterable[PartitionValues]) -> set[str]:
    """The flows that partitions name as owner or successor, and that are not among `flows`."""
    named = {id for values in partitions for id in (values.owner, values.successor) if id}
    return named.difference(values.id for values in flows)


def _restore_absent(queue: Queue, row: Mapping[str, Any]) -> None:
    """What is still there of the partitions of flows that left in this holddown.

    A version before this one wrote (number, epoch) of each in the row of the queue.
    """
    for name, (_, held) in (row["departed"] or {}).items():
        absent = queue.absent[_instance(name)]
        for number, epoch in held:
            partition = queue.find(number) if isinstance(number, int) else None
            if partition is not None and number in queue.unassigned:
                raised = partition.next_handed_over == HandedOver.FORCED
                if raised or (
                    partition.next_handed_over == HandedOver.ORPHANED and partition.epoch == epoch
                ):
                    partition.released_by = absent.flow_id
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
        values.seat,
        values.lease_seconds,
        values.warmup,
        values.bound_at,
        values.binder,
        values.attempt,
        values.key_id,
    )
    flow.view_revision = values.view_revision
    queue.enter(flow)
    if values.draining:
        queue.set_draining(flow, values.drain_deadline)
    return flow


def _restore_partition(queue: Queue, values: PartitionValues) -> None:
    number, state = values.number, _STATES[values.state]
    partition = Partition(number)
    assert number == len(queue.partitions), f"partition {len(queue.partitions)} is missing"
    queue.partitions.append(partition)
    partition.epoch = values.epoch
    partition.handed_over = _HANDED_OVER.get(values.handed_over)
    partition.next_handed_over = _HANDED_OVER[values.let_go]
    partition.released_by = _known(queue, values.released_by)
    if values.warmed_by is not None and values.warmed_epoch is not None:
        queue.warmed[number] = (values.warmed_by, values.warmed_epoch)
    if state is State.UNASSIGNED:
        queue.restore_unassigned(number, values.unowned_since)
    elif state is State.REMOVED:
        queue.place(partition, PartitionEvent.REMOVED)
    else:
        assert values.owner is not None
        owner = queue.flows[values.owner]
        queue.place(partition, PartitionEvent.GRANTED, owner=owner)
        if state is not State.OWNED:
            warming = state is State.WARMING
            event = PartitionEvent.WARMUP_STARTED if warming else PartitionEvent.REVOKED
            queue.place(partition, event, owner=owner, handoff=_handoff(queue, values))
    if values.retiring:
        queue.resize(partition, LifeEvent.RETIRED)


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
