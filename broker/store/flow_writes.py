"""The flows' rows of a commit: flows that are bound, that left, and that renewed their leases.

Parts of the statement that commits (`broker.store.writing`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Text,
    and_,
    bindparam,
    case,
    insert,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert

from broker.core.state.model import Flow
from broker.store.leases import lease_over
from broker.store.ports import Commit, LeaseRenewed
from broker.store.rows import FlowValues, flow_values
from broker.store.schema.bulk import NOW, Rows, looked_up, written_over
from broker.store.schema.tables import flows

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


def locked_flows(begins: ColumnElement[bool]) -> CTE:
    """Locks the given flows that are known, in order, once `begins` holds.

    The rows as they are to be written; `fits`: what was decided still holds; `fenced`: it must.
    """
    return (
        select(
            *(
                _changes.get(column.name, _locked.c[column.name]).label(column.name)
                for column in flows.columns
            ),
            _known.fenced,
            and_(_locked.c.reason.is_(None), or_(not_(_known.fenced), lease_over(_locked))).label(
                "fits"
            ),
        )
        .select_from(_known.id.table.join(_locked, true()))
        .where(begins)
        .cte("locked_flows")
    )


def updated_flows(locked: CTE, may: ColumnElement[bool]) -> CTE:
    """Writes the flows that fit, if it `may`."""
    names = [column.name for column in flows.columns]
    return (
        written_over(
            postgresql_insert(flows).from_select(
                names, select(*(locked.c[name] for name in names)).where(locked.c.fits, may)
            ),
            _changes,
        )
        .returning(flows.c.id)
        .cte("updated_flows")
    )


_NEW = Rows(
    "new",
    [
        *((key, flows.c[key].type) for key in FlowValues._fields),
        ("token_hash", flows.c.token_hash.type),
        ("reason", Text()),
    ],
)
_COLUMNS = ["queue_id", *_NEW.types, "lease_expires_at", "left_at"]


def inserted_flows(may: ColumnElement[bool]) -> CTE:
    """Inserts the new flows, if it `may`."""
    new = select(
        bindparam("queue", type_=Text),
        *_NEW.c,
        NOW + _NEW.c.lease_seconds,
        case((_NEW.c.reason.is_not(None), NOW)),
    )
    rows = insert(flows).from_select(_COLUMNS, new.where(may))
    return rows.returning(flows.c.id).cte("inserted_flows")


def flow_parameters(commit: Commit) -> dict[str, Any]:
    """The parameters of both."""
    changed = {flow.id: flow for flow in commit.flows if flow.id not in commit.token_hashes}
    ids = sorted(
        (changed.keys() | commit.left.keys() | commit.renewed) - commit.token_hashes.keys()
    )
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
    return {
        "fenced_flows": len(commit.expired),
        **_KNOWN.parameters(rows),
        **_NEW.parameters(_new(commit)),
    }


def check_flows(commit: Commit, fitting: set[str]) -> None:
    """Raises LeaseRenewed if a lease that should be over is not."""
    renewed = commit.expired - fitting
    if renewed:
        raise LeaseRenewed(renewed)
    changed = {flow.id for flow in commit.flows}
    bound = changed - commit.token_hashes.keys() - commit.left.keys()
    assert bound <= fitting, "a bound flow has no row"


def _flow_changes(flow: Flow | None) -> tuple[Any, ...]:
    if flow is None:
        return (None,) * len(_FLOW_CHANGES)
    values = flow_values(flow)
    return tuple(getattr(values, key) for key in _FLOW_CHANGES)


def _new(commit: Commit) -> list[tuple[Any, ...]]:
    return [
        (*flow_values(flow), commit.token_hashes[flow.id], commit.left.get(flow.id))
        for flow in commit.flows
        if flow.id in commit.token_hashes
    ]
