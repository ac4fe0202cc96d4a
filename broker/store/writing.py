"""The statement that commits what a replica decided on a queue.

One statement does all of it, so a commit is one round trip and takes its locks for as long as the
database needs to carry it out, however slow or frozen the replica is:

1. The queue's row is locked, if it has the revision that the replica has seen.
2. The flows, then the partitions are locked, each in the order of their keys, then the row of the
   log if there is a fence against trims.
3. `verdict`: every fence is compared with the locked rows, and the clock is read.
4. If all of them hold, everything is written; otherwise nothing.

So every write is fenced in its WHERE clause, and the answer shows which fence did not hold. All
locks in this package are taken in this order, so there are no deadlocks. Rows in parameters are
joined to the table once, where it is locked. So every plan looks rows up by their keys, however
many there are.

A statement sees the database as it was when it arrived, and locked rows as they are. That is
enough: rows that are inserted meanwhile belong to a commit of another replica, which has raised the
revision. The positions in the answer are those of the database at that time, and as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Double,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    extract,
    false,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.connections import ConnectionLost, Connections
from broker.store.flow_writes import (
    check_flows,
    flow_parameters,
    inserted_flows,
    locked_flows,
    updated_flows,
)
from broker.store.key_ports import Act
from broker.store.lineage_writes import (
    deleted_partitions,
    forgotten_parents,
    insert_children,
    inserted_children,
    lineage_parameters,
)
from broker.store.partition_writes import (
    insert_partitions,
    locked_partitions,
    partition_parameters,
    written_partitions,
)
from broker.store.ports import (
    Commit,
    Conflict,
    LogTrimmed,
    NameTaken,
    Overdue,
    PositionBehind,
    QueueGone,
)
from broker.store.rows import encode, queue_values
from broker.store.schema.bulk import NOW, Prepared, Rows, looked_up
from broker.store.schema.tables import audit, partitions, queues, records
from broker.store.trims import FENCE_LOG, fence_parameters, fenced

_ENTRIES = Rows(
    "entry", [(key, records.c[key].type) for key in ("revision", "at", "rebalance_id", "records")]
)
_RECORD_COLUMNS = ["queue_id", "commit_id", *_ENTRIES.types]
_ACTS = Rows("act", [(field.name, audit.c[field.name].type) for field in fields(Act)])
_SHOWN = Rows("shown", [("number", Integer())])
# Without the columns that never change: setting a key column would also conflict with the locks of
# foreign keys.
_QUEUE_COLUMNS = [
    column for column in queues.columns if column.name not in ("id", "name", "created_at")
]


def _commit_statement() -> Any:
    queue = bindparam("queue", type_=Text)
    held = (
        select(queues.c.id)
        .where(queues.c.id == queue, queues.c.revision == bindparam("seen", type_=BigInteger))
        .with_for_update(key_share=True)
        .cte("held")
    )
    is_held = select(func.count()).select_from(held).scalar_subquery() > 0
    known_flows = locked_flows(is_held)
    flows_locked = select(func.count()).select_from(known_flows).scalar_subquery() >= 0
    known_partitions = locked_partitions(and_(is_held, flows_locked))
    partitions_locked = select(func.count()).select_from(known_partitions).scalar_subquery() >= 0
    # It may be passed by a commit that is refused for another reason; then a trim waits a minute.
    passed = fenced(and_(is_held, partitions_locked), FENCE_LOG, bindparam("commit", type_=Text))
    passes = select(func.count()).select_from(passed).scalar_subquery()
    waited = and_(partitions_locked, passes >= 0)
    fitting = select(known_flows.c.id).where(known_flows.c.fits)
    fenced_flows = select(func.count()).where(known_flows.c.fits, known_flows.c.fenced)
    behind = select(known_partitions.c.number).where(not_(known_partitions.c.fits))
    in_time = extract("epoch", func.clock_timestamp()).between(
        bindparam("from", type_=Double), bindparam("until", type_=Double)
    )
    looked = select(
        is_held.label("held"),
        (fenced_flows.scalar_subquery() == bindparam("fenced_flows", type_=Integer)).label(
            "expired"
        ),
        func.array(fitting.scalar_subquery(), type_=ARRAY(Text)).label("fitting"),
        func.array(behind.scalar_subquery(), type_=ARRAY(Integer)).label("behind"),
        or_(FENCE_LOG.is_(None), passes > 0).label("passed"),
        # After all waits for locks. Without times nothing is too late.
        case((waited, func.coalesce(not_(in_time), false()))).label("overdue"),
    ).cte("looked")
    verdict = select(
        *looked.c,
        and_(
            looked.c.held,
            looked.c.expired,
            func.cardinality(looked.c.behind) == 0,
            looked.c.passed,
            not_(looked.c.overdue),
        ).label("may"),
    ).cte("verdict")
    may = select(verdict.c.may).scalar_subquery()

    moved = (
        update(queues)
        .where(queues.c.id == queue, queues.c.revision == bindparam("seen"), may)
        .values({column.name: _queue_value(column) for column in _QUEUE_COLUMNS})
        .returning(queues.c.id)
        .cte("moved")
    )
    recorded = (
        insert(records)
        .from_select(
            _RECORD_COLUMNS,
            _record_values(queue).select_from(_ENTRIES.table).where(may),
        )
        .returning(records.c.revision)
        .cte("recorded")
    )
    updated = updated_flows(known_flows, may)
    # Those who left make room for the seats and instances of new flows.
    room = select(func.count()).select_from(updated).scalar_subquery() >= 0
    inserted = inserted_flows(and_(may, room))
    written = written_partitions(known_partitions, may)
    acted = (
        insert(audit)
        .from_select(
            ["at", *_ACTS.types],
            select(NOW, *(_ACTS.value(key) for key in _ACTS.types)).where(may),
        )
        .returning(audit.c.id)
        .cte("acted")
    )
    by_key = select(partitions.c.epoch, partitions.c.position).where(
        partitions.c.queue_id == queue, partitions.c.number == _SHOWN.c.number
    )
    found = looked_up(by_key, "found")
    positions = union_all(
        select(written.c.number, written.c.epoch, written.c.position),
        select(_SHOWN.c.number, found.c.epoch, found.c.position).join_from(
            _SHOWN.table, found, true()
        ),
    ).subquery("positions")
    by_number = positions.c.number
    shown = select(
        func.array_agg(aggregate_order_by(positions.c.number, by_number)).label("numbers"),
        func.array_agg(aggregate_order_by(positions.c.epoch, by_number)).label("epochs"),
        func.array_agg(aggregate_order_by(positions.c.position, by_number)).label("positions"),
    ).cte("shown_positions")
    told = (select(column).scalar_subquery().label(column.name) for column in shown.c)
    return select(*verdict.c, *told).add_cte(
        moved,
        recorded,
        inserted,
        acted,
        inserted_children(may),
        deleted_partitions(may),
        forgotten_parents(may),
    )


def _queue_value(column: Any) -> Any:
    """JSON is given as encoded text."""
    if isinstance(column.type, JSONB):
        return cast(bindparam(column.name, type_=Text), JSONB)
    return bindparam(column.name, type_=column.type)


def _record_values(queue_id: Any) -> Any:
    return select(
        queue_id,
        bindparam("commit", type_=Text),
        *(_ENTRIES.value(key) for key in _ENTRIES.types),
    )


COMMIT = Prepared(_commit_statement())
CREATE_QUEUE = (
    postgresql_insert(queues)
    .values({column.name: bindparam(column.name) for column in queues.columns})
    .on_conflict_do_nothing()
    .returning(queues.c.id)
)
RECORD = insert(records).from_select(
    _RECORD_COLUMNS, _record_values(bindparam("queue", type_=Text)).select_from(_ENTRIES.table)
)
PASS_FENCE = select(fenced(true(), FENCE_LOG, bindparam("commit", type_=Text)))
STORED_COMMIT = Prepared(
    select(
        select(queues.c.id).where(queues.c.id == bindparam("queue")).exists().label("there"),
        select(records.c.revision)
        .where(
            records.c.queue_id == bindparam("queue"),
            records.c.revision == bindparam("revision", type_=BigInteger),
            records.c.commit_id == bindparam("commit", type_=Text),
        )
        .exists()
        .label("stored"),
    )
)


async def record_acts(connection: AsyncConnection, acts: Sequence[Act]) -> None:
    """Writes the audit, one row for each act, in the transaction of what was done."""
    if acts:
        rows = [{"at": NOW, **asdict(act)} for act in acts]
        await connection.execute(insert(audit).values(rows))


async def create(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts a queue with its partitions and first records. Nobody is bound to it yet.

    Raises NameTaken, LogTrimmed.
    """
    row = {"id": commit.queue.id, **queue_values(commit.queue, commit.next_deadline)}
    if (await connection.execute(CREATE_QUEUE, row)).first() is None:
        raise NameTaken(commit.queue.name)
    await connection.execute(
        RECORD, {"queue": commit.queue.id, "commit": commit.commit_id, **_entries(commit)}
    )
    await insert_partitions(connection, commit)
    await insert_children(connection, commit)
    await record_acts(connection, commit.acts)
    if commit.fence is not None:
        given = {"commit": commit.commit_id, **fence_parameters(commit.fence)}
        if (await connection.execute(PASS_FENCE, given)).first() is None:
            raise LogTrimmed(commit.fence.log)


async def write(connections: Connections, commit: Commit) -> Mapping[int, tuple[int, str | None]]:
    """Commits; returns positions as `Store.commit`.

    Raises Conflict, QueueGone, LeaseRenewed, PositionBehind, LogTrimmed or Overdue; then nothing is
    written.
    """
    parameters = await _parameters(commit)
    try:
        [row] = await connections.fetch(COMMIT, parameters)
    except ConnectionLost:
        # If it was carried out, the revision has moved.
        [row] = await connections.fetch(COMMIT, parameters)
        if not row["held"] and (await _stored(connections, commit))["stored"]:
            return {}
    if row["may"]:
        numbers, epochs, positions = (row[key] or () for key in ("numbers", "epochs", "positions"))
        return dict(zip(numbers, zip(epochs, positions, strict=True), strict=True))
    if not row["held"]:
        there = (await _stored(connections, commit))["there"]
        raise Conflict(commit.queue.id) if there else QueueGone(commit.queue.id)
    check_flows(commit, set(row["fitting"]))
    if row["behind"]:
        raise PositionBehind(frozenset(row["behind"]))
    if row["overdue"]:
        raise Overdue(commit.queue.id)
    assert not row["passed"], "a commit is refused without a reason"
    assert commit.fence is not None
    raise LogTrimmed(commit.fence.log)


async def _stored(connections: Connections, commit: Commit) -> Any:
    parameters = {
        "queue": commit.queue.id,
        "revision": commit.seen + 1,
        "commit": commit.commit_id,
    }
    [row] = await connections.fetch(STORED_COMMIT, parameters)
    return row


async def _parameters(commit: Commit) -> dict[str, Any]:
    row = queue_values(commit.queue, commit.next_deadline)
    first, last = commit.valid or (None, None)
    changed = await partition_parameters(commit)
    return {
        "queue": commit.queue.id,
        "seen": commit.seen,
        "commit": commit.commit_id,
        "from": first,
        "until": last,
        **{
            column.name: _json(row[column.name])
            if isinstance(column.type, JSONB)
            else row[column.name]
            for column in _QUEUE_COLUMNS
        },
        **_entries(commit),
        **flow_parameters(commit),
        **changed,
        **lineage_parameters(commit),
        **fence_parameters(commit.fence),
        **_ACTS.parameters([_act_values(act) for act in commit.acts]),
        **_SHOWN.parameters(
            [(number,) for number in sorted(commit.shown - {*changed["changed_number"]})]
        ),
    }


def _act_values(act: Act) -> list[Any]:
    values = asdict(act)
    return [
        _json(values[key]) if isinstance(type, JSONB) else values[key]
        for key, type in _ACTS.types.items()
    ]


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _entries(commit: Commit) -> Mapping[str, Any]:
    return _ENTRIES.parameters(
        [
            (entry.revision, entry.at, entry.rebalance_id, encode(entry.records).decode())
            for entry in commit.entries
        ]
    )
