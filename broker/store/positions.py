"""Commits of positions: many partitions of many flows in one statement, each fenced separately.

The statement renews the leases of the flows, locks the partitions in order, and writes if flow,
epoch and seq allow it. The outcomes are read from the locked rows. It waits for no lock (see
`broker.store.leases`): rows that another transaction holds are left out, and the caller asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, Text, and_, bindparam, func, or_, select, true
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.commands import Outcome, Result
from broker.core.state.transitions import State
from broker.store.bulk import Rows, any_of, looked_up, written_over
from broker.store.leases import RENEWAL
from broker.store.ports import PositionCommit
from broker.store.tables import flows, partitions

_ITEMS = Rows(
    "item",
    [
        ("nth", Integer()),
        ("queue_id", Text()),
        ("flow_id", Text()),
        ("seq", partitions.c.seq.type),
        ("number", partitions.c.number.type),
        ("epoch", partitions.c.epoch.type),
        ("position", Text()),
    ],
)
_item = select(*_ITEMS.c).order_by(_ITEMS.c.queue_id, _ITEMS.c.number).subquery("row").c
_by_key = select(partitions).where(
    partitions.c.queue_id == _item.queue_id, partitions.c.number == _item.number
)
_renewed = RENEWAL.returning(flows.c.id).cte("renewed")
_row = looked_up(_by_key.with_for_update(key_share=True, skip_locked=True), "found").c
_locked = (
    select(
        _item.nth,
        _item.position.label("new_position"),
        func.coalesce(_item.seq, _row.seq).label("new_seq"),
        (_row.owner == _item.flow_id).label("owned"),
        _item.flow_id.in_(select(_renewed.c.id)).label("renewed"),
        and_(
            _item.epoch == _row.epoch,
            or_(_item.seq.is_(None), _row.seq.is_(None), _item.seq > _row.seq),
        ).label("fits"),
        *_row,
    )
    .select_from(_item.nth.table.join(_row.seq.table, true()))
    # Evaluated first, so that the flows are locked before the partitions.
    .where(select(func.count()).select_from(_renewed).scalar_subquery() >= 0)
    .cte("locked")
)
_new = {"position": _locked.c.new_position, "seq": _locked.c.new_seq}
_written = (
    written_over(
        postgresql_insert(partitions).from_select(
            [column.name for column in partitions.columns],
            select(*(_new.get(column.name, _locked.c[column.name]) for column in _row)).where(
                _locked.c.owned, _locked.c.renewed, _locked.c.fits
            ),
        ),
        _new,
    )
    .returning(partitions.c.number)
    .cte("written")
)
COMMIT_POSITIONS = select(
    _locked.c.nth,
    _locked.c.epoch,
    _locked.c.owned,
    _locked.c.state,
    _locked.c.renewed,
).add_cte(_written)
THERE = select(_item.nth).join_from(_item.nth.table, looked_up(_by_key, "found"), true())
ALL_POSITIONS = select(partitions.c.number, partitions.c.epoch, partitions.c.position).where(
    partitions.c.queue_id == bindparam("queue")
)
POSITIONS = ALL_POSITIONS.where(any_of(partitions.c.number, "numbers"))


def rounds(items: Sequence[PositionCommit]) -> list[list[int]]:
    """The indices of the items in rounds: a partition occurs once in a round, and its items keep
    their order from round to round.

    A statement can write a row only once.
    """
    found: list[list[int]] = []
    times: dict[tuple[str, int], int] = {}
    for place, item in enumerate(items):
        key = item.queue_id, item.partition
        time = times[key] = times.get(key, -1) + 1
        if time == len(found):
            found.append([])
        found[time].append(place)
    return found


async def commit_positions(
    connection: AsyncConnection, items: Sequence[PositionCommit], places: Sequence[int]
) -> dict[int, Result | None]:
    """Commits the items at these indices, one round; None: another transaction holds the row."""
    rows = [
        (nth, item.queue_id, item.flow_id, item.seq, item.partition, item.epoch, item.position)
        for nth, item in ((place, items[place]) for place in places)
    ]
    parameters = {
        "flow_ids": sorted({items[place].flow_id for place in places}),
        **_ITEMS.parameters(rows),
    }
    found = (await connection.execute(COMMIT_POSITIONS, parameters)).all()
    by_place: dict[int, Any] = {row.nth: row for row in found}
    held: set[int] = set()
    missing = [row for row in rows if row[0] not in by_place]
    if missing:
        held.update((await connection.execute(THERE, _ITEMS.parameters(missing))).scalars())
    return {
        place: None if place in held else _result(items[place], by_place.get(place))
        for place in places
    }


def _result(item: PositionCommit, row: Any) -> Result | None:
    """The first outcome that applies (the contract, *HTTP*); None if the flow's row is held."""
    if row is None or row.state == State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if item.epoch < row.epoch:
        return Result(item.partition, Outcome.STALE_EPOCH, row.epoch)
    if item.epoch > row.epoch or not row.owned:
        return Result(item.partition, Outcome.NOT_OWNER)
    if not row.renewed:
        return None
    return Result(item.partition, Outcome.OK)
