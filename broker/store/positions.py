"""Commits of positions: many partitions of many flows in one statement, each fenced separately.

The statement renews the leases of the flows, locks the partitions in order, and writes if flow,
epoch and seq allow it. The outcomes are read from the locked rows. It waits for no lock (see
`broker.store.leases`): rows that another transaction holds are left out, and the caller asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    Integer,
    Text,
    and_,
    bindparam,
    func,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert

from broker.core.commands import Outcome, Result
from broker.core.transitions import State
from broker.pieces import pause, pieces
from broker.store.bulk import PreparedStatement, Rows, any_of, looked_up, written_over
from broker.store.connections import Connections
from broker.store.leases import BOUND, RENEWAL
from broker.store.ports import PositionCommit, PositionOutcomes, Positions
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
    .returning(
        partitions.c.queue_id, partitions.c.number, partitions.c.epoch, partitions.c.position
    )
    .cte("written")
)
_SHOWN = Rows("shown", [("queue_id", Text()), ("number", Integer())])
_shown = looked_up(
    select(partitions.c.epoch, partitions.c.position).where(
        partitions.c.queue_id == _SHOWN.c.queue_id, partitions.c.number == _SHOWN.c.number
    ),
    "shown_row",
)
_no_position = (literal(None, Text()).label("queue_id"), literal(None, Integer()).label("number"))
# First the items, by their place; then positions, without a place: those in `shown` as they were
# when the statement arrived, then those that it has written.
COMMIT_POSITIONS = PreparedStatement(
    union_all(
        select(
            _locked.c.nth,
            *_no_position,
            _locked.c.epoch,
            literal(None, Text()).label("position"),
            _locked.c.owned,
            _locked.c.state,
            _locked.c.renewed,
        ),
        select(
            null(), *_SHOWN.c, _shown.c.epoch, _shown.c.position, null(), null(), null()
        ).join_from(_SHOWN.table, _shown, true()),
        select(
            null(),
            _written.c.queue_id,
            _written.c.number,
            _written.c.epoch,
            _written.c.position,
            null(),
            null(),
            null(),
        ),
    )
)
THERE = PreparedStatement(
    select(_item.nth).join_from(_item.nth.table, looked_up(_by_key, "found"), true())
)
_of_queue = select(partitions.c.number, partitions.c.epoch, partitions.c.position).where(
    partitions.c.queue_id == bindparam("queue", type_=Text)
)
POSITIONS = PreparedStatement(_of_queue.where(any_of(partitions.c.number, "numbers")))
ALL_POSITIONS = PreparedStatement(
    _of_queue.where(partitions.c.number > bindparam("after", type_=Integer))
    .order_by(partitions.c.number)
    .limit(bindparam("limit", type_=Integer))
)
# So many rows take some milliseconds.
ROWS_AT_ONCE = 1000


async def positions_of(
    connections: Connections, queue_id: str, partitions: Sequence[int] | None
) -> Positions:
    """Epoch and position by partition, of these or of all, read in pieces (`broker.pieces`)."""
    positions: dict[int, tuple[int, str | None]] = {}
    if partitions is not None:
        async for numbers in pieces(partitions, ROWS_AT_ONCE):
            parameters: dict[str, Any] = {"queue": queue_id, "numbers": [*numbers]}
            for number, epoch, position in await connections.fetch(POSITIONS, parameters):
                positions[number] = (epoch, position)
        return positions
    after = -1
    while True:
        parameters = {"queue": queue_id, "after": after, "limit": ROWS_AT_ONCE}
        found = await connections.fetch(ALL_POSITIONS, parameters)
        for number, epoch, position in found:
            positions[number] = (epoch, position)
        if len(found) < ROWS_AT_ONCE:
            return positions
        after = found[-1]["number"]
        await pause()


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
    connections: Connections, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]]
) -> PositionOutcomes:
    """See `Store.commit_positions`. One statement, unless a partition occurs twice."""
    results: dict[int, Result | None] = {}
    positions: dict[tuple[str, int], tuple[int, str | None]] = {}
    shown = frozenset(shown)
    turns = rounds(items)
    for places in turns:
        # The latest positions are those that the last round sees.
        told = [*shown] if places is turns[-1] else []
        by_place, others, held = await _one_round(connections, items, places, told)
        for row in others:
            if (key := (row["queue_id"], row["number"])) in shown:
                positions[key] = (row["epoch"], row["position"])
        for place in places:
            if place not in held:
                results[place] = _result(items[place], by_place.get(place))
    return PositionOutcomes([results.get(place) for place in range(len(items))], positions)


async def _one_round(
    connections: Connections,
    items: Sequence[PositionCommit],
    places: Sequence[int],
    shown: Sequence[tuple[str, int]],
) -> tuple[dict[int, Any], list[Any], set[int]]:
    """The rows of the statement: those of the items at these places, by place, and those of
    positions. And the places of items for which another transaction holds the partition or the
    flow.
    """
    rows = [
        (nth, item.queue_id, item.flow_id, item.seq, item.partition, item.epoch, item.position)
        for nth, item in ((place, items[place]) for place in places)
    ]
    parameters = {
        "flow_ids": sorted({items[place].flow_id for place in places}),
        **_ITEMS.parameters(rows),
        **_SHOWN.parameters(shown),
    }
    found = await connections.fetch(COMMIT_POSITIONS, parameters)
    by_place, others = {}, []
    for row in found:
        if row["nth"] is None:
            others.append(row)
        else:
            by_place[row["nth"]] = row
    missing = [row for row in rows if row[0] not in by_place]
    there = await connections.fetch(THERE, _ITEMS.parameters(missing)) if missing else ()
    held = {row["nth"] for row in there}
    # A flow whose lease was not renewed is gone, if its row is not held.
    idle = {items[nth].flow_id for nth, row in by_place.items() if not row["renewed"]}
    bound = await connections.fetch(BOUND, {"flow_ids": sorted(idle)}) if idle else ()
    waiting = {row["id"] for row in bound}
    held |= {
        nth
        for nth, row in by_place.items()
        if (row["owned"], row["epoch"]) == (True, items[nth].epoch)
        if not row["renewed"] and items[nth].flow_id in waiting
    }
    return by_place, others, held


def _result(item: PositionCommit, row: Any) -> Result:
    """The first outcome that applies (the contract, *HTTP*)."""
    if row is None or row["state"] == State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if item.epoch < row["epoch"]:
        return Result(item.partition, Outcome.STALE_EPOCH, row["epoch"])
    if item.epoch > row["epoch"] or not row["owned"] or not row["renewed"]:
        return Result(item.partition, Outcome.NOT_OWNER)
    return Result(item.partition, Outcome.OK)
