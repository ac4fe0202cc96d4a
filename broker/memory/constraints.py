"""The rows of the database in memory, and the rules that the real one enforces by constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.core.state.records import Entry
from broker.core.state.transitions import State
from broker.store.conditions import Condition
from broker.store.ports import Commit
from broker.store.rows import (
    FlowValues,
    LineageValues,
    PartitionValues,
    flow_values,
    partition_values,
)

OWNED_STATES = (State.OWNED, State.WARMING, State.REVOKING)


@dataclass(slots=True)
class StoredFlow:
    """A row of flows."""

    queue_id: str
    values: FlowValues
    token_hash: bytes
    lease_expires_at: float
    reason: str | None = None
    left_at: float | None = None
    conditions: tuple[Condition, ...] = ()
    conditions_seq: int | None = None


@dataclass(slots=True)
class StoredQueue:
    """The rows of a queue, its partitions and records."""

    row: dict[str, Any]
    partitions: dict[int, PartitionValues] = field(default_factory=dict)
    positions: dict[int, tuple[str | None, int | None]] = field(default_factory=dict)
    lineage: dict[str, LineageValues] = field(default_factory=dict)
    entries: list[tuple[Entry, bytes]] = field(default_factory=list)


def check(commit: Commit, stored: StoredQueue, flows: Mapping[str, StoredFlow]) -> None:
    """What the constraints of the real database refuse, so that the simulation meets it too."""
    _hold(commit.queue.revision >= stored.row["revision"], "a revision goes back")
    bound = {
        flow.values.id: flow.values
        for flow in flows.values()
        if flow.queue_id == commit.queue.id and not flow.reason
    }
    for flow in commit.flows:
        values = flow_values(flow)
        known = flows.get(flow.id)
        _hold(known is None or known.reason is None, "a flow comes back")
        _hold(known is None or flow.id not in commit.token_hashes, "a flow is made twice")
        before = bound.get(flow.id, values)
        _hold(values.view_revision >= before.view_revision, "a view goes back")
        bound[flow.id] = values
    numbers = {values.number for values in stored.lineage.values()}
    for child in commit.children:
        _hold(child.key not in stored.lineage, "a key is another partition's")
        _hold(child.partition not in numbers, "a number is another partition's")
    left = [values for id, values in bound.items() if id not in commit.left]
    _hold(len({values.seat for values in left}) == len(left), "a seat is taken twice")
    _hold(
        len({(values.key_id, values.instance_id) for values in left}) == len(left),
        "an instance is twice",
    )
    for partition in commit.partitions:
        after = partition_values(commit.queue, partition)
        _check_partition(stored.partitions.get(after.number), after)


def _check_partition(before: PartitionValues | None, after: PartitionValues) -> None:
    owned = after.state in OWNED_STATES
    _hold(owned is (after.owner is not None), "an owner without its state, or the reverse")
    moving = after.state in (State.WARMING, State.REVOKING)
    _hold(moving is (after.deadline is not None), "a handoff without its state, or the reverse")
    if before is not None:
        _hold(after.epoch >= before.epoch, "an epoch goes back")
        other = after.owner is not None and after.owner != before.owner
        _hold(not other or after.epoch > before.epoch, "another owner in the same epoch")


def _hold(condition: bool, violation: str) -> None:
    """Raises AssertionError: only a defect can break a constraint."""
    if not condition:
        raise AssertionError(violation)
