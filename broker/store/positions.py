"""Commits of positions: many partitions of many flows in one statement, `sql/positions.sql`.

The statement renews the leases of the flows, locks the partitions in order, and writes if flow,
epoch and seq allow it. The outcomes are read from the locked rows. It waits for no lock (see
`broker.store.leases`): rows that another transaction holds are left out, and the caller sends those
items again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Integer, Text, bindparam, func, literal_column, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from broker.core.commands import Outcome, Result
from broker.core.transitions import State
from broker.store.bulk import PreparedStatement, any_of
from broker.store.connections import Connections
from broker.store.leases import BOUND
from broker.store.ports import PositionCommit, PositionOutcomes, Positions, Stored
from broker.store.tables import partitions

COMMIT_POSITIONS = PreparedStatement.read("positions")
_key = (
    func.unnest(
        bindparam("queue_ids", type_=ARRAY(Text)), bindparam("numbers", type_=ARRAY(Integer))
    )
    .table_valued("queue_id", "number", name="key")
    .render_derived()
)
_by_key = select(partitions.c.number).where(
    partitions.c.queue_id == _key.c.queue_id, partitions.c.number == _key.c.number
)
# The limit keeps the planner from an ordinary join (`broker.store.bulk`).
THERE = PreparedStatement(
    select(*_key.c).join_from(_key, _by_key.limit(literal_column("1")).lateral("found"), true())
)
_of_queue = select(
    partitions.c.number, partitions.c.epoch, partitions.c.position, partitions.c.done_above
).where(partitions.c.queue_id == bindparam("queue", type_=Text))
POSITIONS = PreparedStatement(_of_queue.where(any_of(partitions.c.number, "numbers")))
ALL_POSITIONS = PreparedStatement(_of_queue)


class PostgresPositions:
    """`Store.commit_positions` and `Store.positions` in Postgres."""

    _connections: Connections

    async def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> PositionOutcomes:
        results: list[Result | None] = [None] * len(items)
        positions: dict[tuple[str, int], Stored] = {}
        replaced: dict[int, str | None] = {}
        wanted = frozenset(shown)
        in_rounds = rounds(items)
        for places in in_rounds:
            some = [items[place] for place in places]
            # The latest positions are those that the last round finds.
            last = places is in_rounds[-1]
            found = await self._connections.fetch(
                COMMIT_POSITIONS, _parameters(some, wanted if last else ())
            )
            rows: dict[int, Mapping[str, Any]] = {}
            for row in found:
                if row["place"] is not None:
                    rows[row["place"] - 1] = row
                elif (key := (row["queue_id"], row["number"])) in wanted:
                    positions[key] = Stored(row["epoch"], row["position"], row["done_above"])
            locked = await self._locked(some, rows)
            for place, item in enumerate(some):
                if place not in locked:
                    row = rows.get(place)
                    result = results[places[place]] = _result(item, row)
                    if row is not None and row["fits"] and result.outcome is Outcome.OK:
                        replaced[places[place]] = row["position"]
        return PositionOutcomes(results, positions, replaced)

    async def _locked(
        self, items: Sequence[PositionCommit], rows: Mapping[int, Mapping[str, Any]]
    ) -> Collection[int]:
        """The places of the items that were left out, because another transaction has locked the
        partition or the flow.
        """
        missing = {
            (item.queue_id, item.partition): place
            for place, item in enumerate(items)
            if place not in rows
        }
        not_renewed = [place for place, row in rows.items() if not row["renewed"]]
        locked: set[int] = set()
        if missing:
            queue_ids, numbers = zip(*missing, strict=True)
            there = await self._connections.fetch(
                THERE, {"queue_ids": queue_ids, "numbers": numbers}
            )
            locked.update(missing[row["queue_id"], row["number"]] for row in there)
        if not_renewed:
            # Such a flow is gone, unless its row is locked.
            flow_ids = sorted({items[place].flow_id for place in not_renewed})
            found = await self._connections.fetch(BOUND, {"flow_ids": flow_ids})
            bound = {flow_id for (flow_id,) in found}
            locked.update(
                place
                for place in not_renewed
                if items[place].flow_id in bound
                and rows[place]["owned"]
                and rows[place]["epoch"] == items[place].epoch
            )
        return locked

    async def positions(self, queue_id: str, partitions: Sequence[int] | None = None) -> Positions:
        if partitions is None:
            found = await self._connections.fetch(ALL_POSITIONS, {"queue": queue_id})
        else:
            given = {"queue": queue_id, "numbers": partitions}
            found = await self._connections.fetch(POSITIONS, given)
        return {number: Stored(*stored) for number, *stored in found}


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


def _parameters(
    items: Sequence[PositionCommit], shown: Collection[tuple[str, int]]
) -> Mapping[str, Any]:
    """What `sql/positions.sql` takes."""
    return {
        "queue_ids": [item.queue_id for item in items],
        "numbers": [item.partition for item in items],
        "flow_ids": [item.flow_id for item in items],
        "epochs": [item.epoch for item in items],
        "seqs": [item.seq for item in items],
        "positions": [item.position for item in items],
        "done_above": [item.done_above for item in items],
        "shown_queue_ids": [queue_id for queue_id, _ in shown],
        "shown_numbers": [number for _, number in shown],
    }


def _result(item: PositionCommit, row: Mapping[str, Any] | None) -> Result:
    """The first outcome that applies (the contract, *HTTP*)."""
    if row is None or row["state"] == State.REMOVED:
        return Result(item.partition, Outcome.NO_SUCH_PARTITION)
    if item.epoch < row["epoch"]:
        return Result(item.partition, Outcome.STALE_EPOCH, row["epoch"])
    if item.epoch > row["epoch"] or not row["owned"] or not row["renewed"]:
        return Result(item.partition, Outcome.NOT_OWNER)
    return Result(item.partition, Outcome.OK)
