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

The parts of the statement come first:

- the rows of flows that are bound, that left, and that renewed their leases;
- the rows of partitions, with the positions of releases and of administrators;
- the keys of a dynamic queue: new ones, and what is left of removed ones.

The statement itself follows, then the functions that execute it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson
from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    extract,
    false,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.model import Flow, Partition, Settings
from broker.core.queue import Queue
from broker.pieces import pieces
from broker.store.bulk import NOW, PreparedStatement, Rows, any_of, looked_up, written_over
from broker.store.connections import ConnectionLost, Connections
from broker.store.leases import lease_over
from broker.store.ports import (
    Act,
    Commit,
    Conflict,
    LeaseRenewed,
    LogTrimmed,
    NameTaken,
    Overdue,
    PositionSuperseded,
    PositionWrite,
    QueueGone,
)
from broker.store.rows import (
    FlowValues,
    PartitionValues,
    encode,
    first_writes,
    flow_values,
    partition_values,
    queue_values,
)
from broker.store.tables import audit, flows, lineage, partitions, queues, records
from broker.store.trims import FENCE_LOG, fence_parameters, fenced

_FLOW_CHANGES = ("draining", "drain_deadline", "view_revision", "active")
_FLOW_ROWS = Rows(
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
_given_flow = select(*_FLOW_ROWS.c).order_by(_FLOW_ROWS.c.id).subquery("row").c
_locked_flow = looked_up(
    select(flows).where(flows.c.id == _given_flow.id).with_for_update(key_share=True), "locked"
)
_flow_update = {
    **{
        key: case((_given_flow.changed, _given_flow[key]), else_=_locked_flow.c[key])
        for key in _FLOW_CHANGES
    },
    "lease_expires_at": case(
        (_given_flow.renewed, NOW + _locked_flow.c.lease_seconds),
        else_=_locked_flow.c.lease_expires_at,
    ),
    "reason": _given_flow.reason,
    "left_at": case((_given_flow.reason.is_not(None), NOW)),
}


def locked_flows(begins: ColumnElement[bool]) -> CTE:
    """Locks the given flows that are known, in order, once `begins` holds.

    The rows as they are to be written; `fits`: what was decided still holds; `fenced`: it must.
    """
    return (
        select(
            *(
                _flow_update.get(column.name, _locked_flow.c[column.name]).label(column.name)
                for column in flows.columns
            ),
            _given_flow.fenced,
            and_(
                _locked_flow.c.reason.is_(None),
                or_(not_(_given_flow.fenced), lease_over(_locked_flow)),
            ).label("fits"),
        )
        .select_from(_given_flow.id.table.join(_locked_flow, true()))
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
            _flow_update,
        )
        .returning(flows.c.id)
        .cte("updated_flows")
    )


_NEW_FLOW_ROWS = Rows(
    "new",
    [
        *((key, flows.c[key].type) for key in FlowValues._fields),
        ("token_hash", flows.c.token_hash.type),
        ("reason", Text()),
    ],
)
_NEW_FLOW_COLUMNS = ["queue_id", *_NEW_FLOW_ROWS.types, "lease_expires_at", "left_at"]


def inserted_flows(may: ColumnElement[bool]) -> CTE:
    """Inserts the new flows, if it `may`."""
    new = select(
        bindparam("queue", type_=Text),
        *_NEW_FLOW_ROWS.c,
        NOW + _NEW_FLOW_ROWS.c.lease_seconds,
        case((_NEW_FLOW_ROWS.c.reason.is_not(None), NOW)),
    )
    rows = insert(flows).from_select(_NEW_FLOW_COLUMNS, new.where(may))
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
        **_FLOW_ROWS.parameters(rows),
        **_NEW_FLOW_ROWS.parameters(_new_flow_values(commit)),
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


def _new_flow_values(commit: Commit) -> list[tuple[Any, ...]]:
    return [
        (*flow_values(flow), commit.token_hashes[flow.id], commit.left.get(flow.id))
        for flow in commit.flows
        if flow.id in commit.token_hashes
    ]


# The partitions' rows, with the positions of releases and of administrators


_PARTITION_ROWS = Rows(
    "changed",
    [
        *((key, partitions.c[key].type) for key in PartitionValues._fields),
        ("write_flow", Text()),
        ("write_epoch", BigInteger()),
        ("write_seq", BigInteger()),
        ("write_position", Text()),
        ("set", Boolean()),
        ("set_position", Text()),
        ("first_position", Text()),
    ],
    alike=True,
)
_given_partition = select(*_PARTITION_ROWS.c).order_by(_PARTITION_ROWS.c.number).subquery("row").c
_locked_partition = looked_up(
    select(partitions)
    .where(
        partitions.c.queue_id == bindparam("queue"), partitions.c.number == _given_partition.number
    )
    .with_for_update(key_share=True),
    "locked",
)
_PARTITION_COLUMNS = ["queue_id", *PartitionValues._fields, "position", "seq"]


def locked_partitions(begins: ColumnElement[bool]) -> CTE:
    """Locks the given partitions in order, once `begins` holds.

    The rows as they are to be written; `fits`: the owner and epoch of a release still hold.
    """
    return (
        select(
            bindparam("queue", type_=Text).label("queue_id"),
            *(_given_partition[key] for key in PartitionValues._fields),
            case(
                (_given_partition["set"], _given_partition.set_position),
                else_=func.coalesce(
                    _given_partition.write_position,
                    _locked_partition.c.position,
                    _given_partition.first_position,
                ),
            ).label("position"),
            case(
                (
                    _given_partition.epoch == _locked_partition.c.epoch,
                    func.coalesce(_given_partition.write_seq, _locked_partition.c.seq),
                )
            ).label("seq"),
            func.coalesce(
                or_(
                    _given_partition.write_flow.is_(None),
                    and_(
                        _locked_partition.c.owner == _given_partition.write_flow,
                        _locked_partition.c.epoch == _given_partition.write_epoch,
                        or_(
                            _given_partition.write_seq.is_(None),
                            _locked_partition.c.seq.is_(None),
                            _given_partition.write_seq > _locked_partition.c.seq,
                        ),
                    ),
                ),
                false(),
            ).label("fits"),
        )
        .select_from(_given_partition.number.table.outerjoin(_locked_partition, true()))
        .where(begins)
        .cte("locked_partitions")
    )


def written_partitions(locked: CTE, may: ColumnElement[bool]) -> CTE:
    """Writes them, if it `may`."""
    return (
        written_over(
            postgresql_insert(partitions).from_select(
                _PARTITION_COLUMNS,
                select(*(locked.c[name] for name in _PARTITION_COLUMNS)).where(may),
            ),
            _PARTITION_COLUMNS[2:],
        )
        .returning(partitions.c.number, partitions.c.epoch, partitions.c.position)
        .cte("written_partitions")
    )


INSERT_PARTITIONS = insert(partitions).from_select(
    ["queue_id", *PartitionValues._fields, "position"],
    select(
        bindparam("queue", type_=Text),
        *(_PARTITION_ROWS.c[key] for key in PartitionValues._fields),
        case(
            (_PARTITION_ROWS.c["set"], _PARTITION_ROWS.c.set_position),
            else_=_PARTITION_ROWS.c.first_position,
        ),
    ),
)
# Partitions without any owner so far differ only in their numbers.
FRESH = partition_values(Queue("", "", Settings(partition_count=1), 0.0), Partition(0))
_number = func.unnest(bindparam("numbers", type_=ARRAY(Integer))).column_valued("number")
INSERT_FRESH_PARTITIONS = insert(partitions).from_select(
    ["queue_id", *PartitionValues._fields],
    select(
        bindparam("queue", type_=Text),
        _number,
        *(
            literal(value, partitions.c[key].type)
            for key, value in zip(PartitionValues._fields[1:], FRESH[1:], strict=True)
        ),
    ),
)


async def partition_parameters(commit: Commit) -> dict[str, Any]:
    """The parameters of both."""
    found: list[tuple[Any, ...]] = []
    async for rows in _partition_rows(commit):
        found += rows.values()
    return _PARTITION_ROWS.parameters(found)


async def insert_partitions(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts the rows of a new queue."""
    async for rows in _partition_rows(commit):
        others = {number: row for number, row in rows.items() if row[1:] != _FRESH_ROW[1:]}
        fresh = [number for number in rows if number not in others]
        if fresh:
            await connection.execute(
                INSERT_FRESH_PARTITIONS, {"queue": commit.queue.id, "numbers": fresh}
            )
        if others:
            parameters = {
                "queue": commit.queue.id,
                **_PARTITION_ROWS.parameters(list(others.values())),
            }
            await connection.execute(INSERT_PARTITIONS, parameters)


async def _partition_rows(commit: Commit) -> AsyncIterator[dict[int, tuple[Any, ...]]]:
    """The rows by number, each with its position write and its set positions; lowest numbers first,
    so many at once."""
    queue, writes = commit.queue, first_writes(commit.writes)
    numbers = {partition.number for partition in commit.partitions}
    numbers |= writes.keys() | commit.positions.keys() | commit.first_positions.keys()
    async for some in pieces(sorted(numbers), ROWS_AT_ONCE):
        yield {
            number: (
                *partition_values(queue, queue.partitions[number]),
                *_write_values(writes.get(number)),
                # Null instead of false: hardly ever is one set, and nulls are not sent.
                number in commit.positions or None,
                commit.positions.get(number),
                commit.first_positions.get(number),
            )
            for number in some
        }


# A turn of the mailbox changes four slices at most; a new queue has more.
ROWS_AT_ONCE = 1024
_NO_WRITE = (None,) * 4
_FRESH_ROW = (*FRESH, *_NO_WRITE, None, None, None)


def _write_values(write: PositionWrite | None) -> tuple[Any, ...]:
    return (write.flow_id, write.epoch, write.seq, write.position) if write else _NO_WRITE


# The keys of a dynamic queue


_CHILD_ROWS = Rows("child", [(key, lineage.c[key].type) for key in ("key", "number", "parents")])
_CHILD_COLUMNS = ["queue_id", *_CHILD_ROWS.types]


def _children() -> Select[Any]:
    return select(
        bindparam("queue", type_=Text), *(_CHILD_ROWS.value(key) for key in _CHILD_ROWS.types)
    ).select_from(_CHILD_ROWS.table)


INSERT_CHILDREN = insert(lineage).from_select(_CHILD_COLUMNS, _children())


def inserted_children(may: ColumnElement[bool]) -> CTE:
    """Remembers new keys, if it `may`."""
    rows = insert(lineage).from_select(_CHILD_COLUMNS, _children().where(may))
    return rows.returning(lineage.c.key).cte("inserted_children")


def deleted_partitions(may: ColumnElement[bool]) -> CTE:
    """Deletes removed partitions, if it `may`."""
    return (
        delete(partitions)
        .where(
            partitions.c.queue_id == bindparam("queue", type_=Text),
            any_of(partitions.c.number, "removed_numbers"),
            may,
        )
        .returning(partitions.c.number)
        .cte("deleted_partitions")
    )


def forgotten_parents(may: ColumnElement[bool]) -> CTE:
    """Leaves the keys of removed partitions, if it `may`."""
    return (
        update(lineage)
        .where(
            lineage.c.queue_id == bindparam("queue", type_=Text),
            any_of(lineage.c.key, "removed_keys"),
            may,
        )
        .values(parents=None)
        .returning(lineage.c.key)
        .cte("forgotten_parents")
    )


def lineage_parameters(commit: Commit) -> dict[str, Any]:
    """The parameters of all three."""
    return {
        "removed_numbers": sorted(commit.removed),
        "removed_keys": sorted(commit.removed.values()),
        **_CHILD_ROWS.parameters(_child_values(commit)),
    }


async def insert_children(connection: AsyncConnection, commit: Commit) -> None:
    """Remembers the keys of a new queue."""
    if rows := _child_values(commit):
        parameters = {"queue": commit.queue.id, **_CHILD_ROWS.parameters(rows)}
        await connection.execute(INSERT_CHILDREN, parameters)


def _child_values(commit: Commit) -> list[tuple[Any, ...]]:
    return [(key, number, _parents_json(parents)) for number, key, parents in commit.children]


def _parents_json(parents: tuple[str, ...]) -> str:
    return orjson.dumps(parents).decode()


# The statement


_ENTRY_ROWS = Rows(
    "entry", [(key, records.c[key].type) for key in ("revision", "at", "rebalance_id", "records")]
)
_RECORD_COLUMNS = ["queue_id", "commit_id", *_ENTRY_ROWS.types]
_ACT_ROWS = Rows("act", [(field.name, audit.c[field.name].type) for field in fields(Act)])
_SHOWN_ROWS = Rows("shown", [("number", Integer())])
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
            _record_values(queue).select_from(_ENTRY_ROWS.table).where(may),
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
            ["at", *_ACT_ROWS.types],
            select(NOW, *(_ACT_ROWS.value(key) for key in _ACT_ROWS.types)).where(may),
        )
        .returning(audit.c.id)
        .cte("acted")
    )
    by_key = select(partitions.c.epoch, partitions.c.position).where(
        partitions.c.queue_id == queue, partitions.c.number == _SHOWN_ROWS.c.number
    )
    found = looked_up(by_key, "found")
    positions = union_all(
        select(written.c.number, written.c.epoch, written.c.position),
        select(_SHOWN_ROWS.c.number, found.c.epoch, found.c.position).join_from(
            _SHOWN_ROWS.table, found, true()
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
        *(_ENTRY_ROWS.value(key) for key in _ENTRY_ROWS.types),
    )


COMMIT = PreparedStatement(_commit_statement())
CREATE_QUEUE = (
    postgresql_insert(queues)
    .values({column.name: bindparam(column.name) for column in queues.columns})
    .on_conflict_do_nothing()
    .returning(queues.c.id)
)
RECORD = insert(records).from_select(
    _RECORD_COLUMNS, _record_values(bindparam("queue", type_=Text)).select_from(_ENTRY_ROWS.table)
)
PASS_FENCE = select(fenced(true(), FENCE_LOG, bindparam("commit", type_=Text)))
STORED_COMMIT = PreparedStatement(
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


async def insert_queue(connection: AsyncConnection, commit: Commit) -> None:
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


async def write_commit(
    connections: Connections, commit: Commit
) -> Mapping[int, tuple[int, str | None]]:
    """Commits; returns positions as `Store.commit`.

    Raises Conflict, QueueGone, LeaseRenewed, PositionSuperseded, LogTrimmed or Overdue; then
    nothing is written.
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
        raise PositionSuperseded(frozenset(row["behind"]))
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
        **_ACT_ROWS.parameters([_act_values(act) for act in commit.acts]),
        **_SHOWN_ROWS.parameters(
            [(number,) for number in sorted(commit.shown - {*changed["changed_number"]})]
        ),
    }


def _act_values(act: Act) -> list[Any]:
    values = asdict(act)
    return [
        _json(values[key]) if isinstance(type, JSONB) else values[key]
        for key, type in _ACT_ROWS.types.items()
    ]


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _entries(commit: Commit) -> Mapping[str, Any]:
    return _ENTRY_ROWS.parameters(
        [
            (entry.revision, entry.at, entry.rebalance_id, encode(entry.records).decode())
            for entry in commit.entries
        ]
    )
