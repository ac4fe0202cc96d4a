"""Writes the flows' rows of a commit: flows that are bound, that left, and that renewed their
leases.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Text, bindparam, case, insert, not_, or_, select, true
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.state.model import Flow
from broker.store.bulk import NOW, Rows, looked_up, written_over
from broker.store.leases import lease_over
from broker.store.ports import Commit, LeaseRenewed
from broker.store.rows import FlowValues, flow_values
from broker.store.tables import flows

_FLOW_CHANGES = ("draining", "drain_deadline", "view_revision", "active")
_KNOWN = Rows(
    "known",
    [
        ("id", flows.c.id.type),
        *((key, flows.c[key].type) for key in _FLOW_CHANGES),
        ("changed", Boolean()),
        ("renewed", Boolean()),
        ("reason", Text()),
        ("fenced", Boolean()),
    ],
)
_known = select(*_KNOWN.c).order_by(_KNOWN.c.id).subquery("row").c
_locked = looked_up(
    select(flows).where(flows.c.id == _known.id).with_for_update(key_share=True), "locked"
)
_changes = {
    **{key: case((_known.changed, _known[key]), else_=_locked.c[key]) for key in _FLOW_CHANGES},
    "lease_expires_at": case(
        (_known.renewed, NOW + _locked.c.lease_seconds), else_=_locked.c.lease_expires_at
    ),
    "reason": _known.reason,
    "left_at": case((_known.reason.is_not(None), NOW)),
}
UPDATE_FLOWS = written_over(
    postgresql_insert(flows).from_select(
        [column.name for column in flows.columns],
        select(*(_changes.get(column.name, _locked.c[column.name]) for column in flows.columns))
        .select_from(_known.id.table.join(_locked, true()))
        .where(_locked.c.reason.is_(None), or_(not_(_known.fenced), lease_over(_locked))),
    ),
    _changes,
).returning(flows.c.id)
_NEW = Rows(
    "new",
    [
        *((key, flows.c[key].type) for key in FlowValues._fields),
        ("token_hash", flows.c.token_hash.type),
        ("reason", Text()),
    ],
)
INSERT_FLOWS = insert(flows).from_select(
    ["queue_id", *_NEW.types, "lease_expires_at", "left_at"],
    select(
        bindparam("queue", type_=Text),
        *_NEW.c,
        NOW + _NEW.c.lease_seconds,
        case((_NEW.c.reason.is_not(None), NOW)),
    ),
)


async def update_flows(connection: AsyncConnection, commit: Commit) -> None:
    """Updates flows that were bound before, also those that left. Raises LeaseRenewed."""
    changed = {flow.id: flow for flow in commit.flows if flow.id not in commit.token_hashes}
    ids = sorted(
        (changed.keys() | commit.left.keys() | commit.renewed) - commit.token_hashes.keys()
    )
    if not ids:
        return
    rows = [
        (
            flow_id,
            *_flow_changes(changed.get(flow_id)),
            flow_id in changed,
            flow_id in commit.renewed,
            commit.left.get(flow_id),
            flow_id in commit.expired,
        )
        for flow_id in ids
    ]
    updated = await connection.execute(UPDATE_FLOWS, _KNOWN.parameters(rows))
    written = set(updated.scalars())
    renewed = commit.expired - written
    if renewed:
        raise LeaseRenewed(renewed)
    assert changed.keys() - commit.left.keys() <= written, "a bound flow has no row"


def _flow_changes(flow: Flow | None) -> tuple[Any, ...]:
    if flow is None:
        return (None,) * len(_FLOW_CHANGES)
    values = flow_values(flow)
    return tuple(getattr(values, key) for key in _FLOW_CHANGES)


async def insert_flows(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts new flows; after `update_flows`, which makes room for their seats and instances."""
    rows = [
        (*flow_values(flow), commit.token_hashes[flow.id], commit.left.get(flow.id))
        for flow in commit.flows
        if flow.id in commit.token_hashes
    ]
    if rows:
        parameters = {"queue": commit.queue.id, **_NEW.parameters(rows)}
        await connection.execute(INSERT_FLOWS, parameters)
