"""The transaction that commits what a replica decided on a queue.

Every statement is fenced in its WHERE clause and says which rows it changed; a row that is missing
tells which fence held. Whoever locks rows of several tables does it in one order, here and in
`broker.store.postgres`, so that nobody deadlocks: the queue, then flows by id, then partitions by
queue and number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.model import Flow, Partition, Queue, Settings
from broker.store.bulk import NOW, Rows
from broker.store.ports import (
    Commit,
    Conflict,
    LeaseRenewed,
    NameTaken,
    PositionBehind,
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
from broker.store.tables import flows, partitions, queues, records, service

# Whether somebody served all the while, so that leases have run (the contract, *Flow*).
SERVED = (
    select(service.c.stamped_at + service.c.gap_seconds >= NOW).where(service.c.id == 1)
).scalar_subquery()
LEASE_OVER = and_(flows.c.lease_expires_at <= NOW, SERVED)

# The queue's row under its revision, and its records if that was the one.

_ENTRIES = Rows(
    "entry", [(key, records.c[key].type) for key in ("revision", "at", "rebalance_id", "records")]
)


def _record_values(queue_id: Any, commit_id: Any) -> Any:
    return select(
        queue_id,
        commit_id,
        *(_ENTRIES.value(key) for key in _ENTRIES.types),
    )


_RECORD_COLUMNS = ["queue_id", "commit_id", *_ENTRIES.types]
_QUEUE_COLUMNS = [column.name for column in queues.columns if column.name != "id"]
_moved = (
    update(queues)
    .where(queues.c.id == bindparam("queue"), queues.c.revision == bindparam("seen"))
    .values({name: bindparam(name) for name in _QUEUE_COLUMNS})
    .returning(queues.c.id)
    .cte("moved")
)
_recorded = (
    insert(records)
    .from_select(
        _RECORD_COLUMNS,
        _record_values(_moved.c.id, bindparam("commit", type_=Text)).select_from(
            _moved.join(_ENTRIES.table, true())
        ),
    )
    .returning(records.c.revision)
    .cte("recorded")
)
MOVE_QUEUE = select(func.count()).select_from(_moved).add_cte(_recorded)
CREATE_QUEUE = (
    postgresql_insert(queues)
    .values({name: bindparam(name) for name in ["id", *_QUEUE_COLUMNS]})
    .on_conflict_do_nothing()
    .returning(queues.c.id)
)
RECORD = insert(records).from_select(
    _RECORD_COLUMNS,
    _record_values(bindparam("queue", type_=Text), bindparam("commit", type_=Text)).select_from(
        _ENTRIES.table
    ),
)

# Flows: those that are known, those that are new. Rows are locked in order before any is changed;
# parameters are joined to their rows once, there, so that every plan looks rows up by their keys,
# however many there are.

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
_known_locked = (
    select(*_KNOWN.c)
    .where(flows.c.id == _KNOWN.c.id)
    .order_by(flows.c.id)
    .with_for_update(key_share=True, of=flows)
    .cte("locked")
)
_known = _known_locked.c
UPDATE_FLOWS = (
    update(flows)
    .where(
        flows.c.id == _known.id,
        flows.c.reason.is_(None),
        or_(not_(_known.fenced), LEASE_OVER),
    )
    .values(
        {
            **{
                key: case((_known.changed, _known[key]), else_=flows.c[key])
                for key in _FLOW_CHANGES
            },
            "lease_expires_at": case(
                (_known.renewed, NOW + flows.c.lease_seconds), else_=flows.c.lease_expires_at
            ),
            "reason": _known.reason,
            "left_at": case((_known.reason.is_not(None), NOW)),
        }
    )
    .returning(flows.c.id)
)
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

# Partitions, with the positions that go with releases and those that an administrator sets.

_ROWS = Rows(
    "changed",
    [
        *((key, partitions.c[key].type) for key in PartitionValues._fields),
        ("write_flow", Text()),
        ("write_epoch", BigInteger()),
        ("write_seq", BigInteger()),
        ("write_position", Text()),
        ("set", Boolean()),
        ("set_position", Text()),
    ],
)
_rows_locked = (
    select(*_ROWS.c)
    .where(partitions.c.queue_id == bindparam("queue"), partitions.c.number == _ROWS.c.number)
    .order_by(partitions.c.number)
    .with_for_update(key_share=True, of=partitions)
    .cte("locked")
)
_row = _rows_locked.c
UPDATE_PARTITIONS = (
    update(partitions)
    .where(
        partitions.c.queue_id == bindparam("queue"),
        partitions.c.number == _row.number,
        or_(
            _row.write_flow.is_(None),
            and_(
                partitions.c.owner == _row.write_flow,
                partitions.c.epoch == _row.write_epoch,
                or_(
                    _row.write_seq.is_(None),
                    partitions.c.seq.is_(None),
                    _row.write_seq > partitions.c.seq,
                ),
            ),
        ),
    )
    .values(
        {
            **{key: _row[key] for key in PartitionValues._fields[1:]},
            "position": case(
                (_row["set"], _row.set_position),
                else_=func.coalesce(_row.write_position, partitions.c.position),
            ),
            "seq": case(
                (_row.epoch == partitions.c.epoch, func.coalesce(_row.write_seq, partitions.c.seq)),
            ),
        }
    )
    .returning(partitions.c.number)
)
INSERT_PARTITIONS = insert(partitions).from_select(
    ["queue_id", *PartitionValues._fields, "position"],
    select(
        bindparam("queue", type_=Text),
        *(_ROWS.c[key] for key in PartitionValues._fields),
        _ROWS.c.set_position,
    ),
)
# Partitions that nobody has had yet differ in their numbers only.
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


async def create(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts a queue with its partitions, flows and first records. Raises NameTaken."""
    row = {"id": commit.queue.id, **queue_values(commit.queue, commit.next_deadline)}
    if (await connection.execute(CREATE_QUEUE, row)).first() is None:
        raise NameTaken(commit.queue.name)
    await connection.execute(
        RECORD, {"queue": commit.queue.id, "commit": commit.commit_id, **_entries(commit)}
    )
    await _insert_flows(connection, commit)
    await _insert_partitions(connection, commit, _partition_rows(commit))


async def write(connection: AsyncConnection, commit: Commit) -> None:
    """Writes a commit. Raises Conflict, QueueGone, LeaseRenewed or PositionBehind.

    Where it raises, the transaction must be rolled back.
    """
    await _move_queue(connection, commit)
    await _update_flows(connection, commit)
    await _insert_flows(connection, commit)
    await _write_partitions(connection, commit)


async def _move_queue(connection: AsyncConnection, commit: Commit) -> None:
    parameters = {
        "queue": commit.queue.id,
        "seen": commit.seen,
        "commit": commit.commit_id,
        **queue_values(commit.queue, commit.next_deadline),
        **_entries(commit),
    }
    if (await connection.execute(MOVE_QUEUE, parameters)).scalar_one():
        return
    there = select(literal(1)).where(queues.c.id == commit.queue.id)
    if (await connection.execute(there)).first() is None:
        raise QueueGone(commit.queue.id)
    raise Conflict(commit.queue.id)


def _entries(commit: Commit) -> Mapping[str, Any]:
    return _ENTRIES.parameters(
        [
            (entry.revision, entry.at, entry.rebalance_id, encode(entry.records).decode())
            for entry in commit.entries
        ]
    )


async def _update_flows(connection: AsyncConnection, commit: Commit) -> None:
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


async def _insert_flows(connection: AsyncConnection, commit: Commit) -> None:
    rows = [
        (*flow_values(flow), commit.token_hashes[flow.id], commit.left.get(flow.id))
        for flow in commit.flows
        if flow.id in commit.token_hashes
    ]
    if rows:
        parameters = {"queue": commit.queue.id, **_NEW.parameters(rows)}
        await connection.execute(INSERT_FLOWS, parameters)


async def _write_partitions(connection: AsyncConnection, commit: Commit) -> None:
    rows = _partition_rows(commit)
    if not rows:
        return
    parameters = {"queue": commit.queue.id, **_ROWS.parameters(list(rows.values()))}
    written = set((await connection.execute(UPDATE_PARTITIONS, parameters)).scalars())
    missing = rows.keys() - written
    behind = missing & {write.partition for write in commit.writes}
    if behind:
        raise PositionBehind(frozenset(behind))
    await _insert_partitions(connection, commit, {number: rows[number] for number in missing})


async def _insert_partitions(
    connection: AsyncConnection, commit: Commit, rows: Mapping[int, tuple[Any, ...]]
) -> None:
    others = {number: row for number, row in rows.items() if row[1:] != _FRESH_ROW[1:]}
    fresh = [number for number in rows if number not in others]
    if fresh:
        await connection.execute(
            INSERT_FRESH_PARTITIONS, {"queue": commit.queue.id, "numbers": fresh}
        )
    if others:
        parameters = {"queue": commit.queue.id, **_ROWS.parameters(list(others.values()))}
        await connection.execute(INSERT_PARTITIONS, parameters)


def _partition_rows(commit: Commit) -> dict[int, tuple[Any, ...]]:
    """The rows by number, each with the write and the administrator's position that go with it."""
    queue, writes = commit.queue, first_writes(commit.writes)
    numbers = {partition.number for partition in commit.partitions}
    numbers |= writes.keys() | commit.positions.keys()
    return {
        number: (
            *partition_values(queue, queue.partitions[number]),
            *_write(writes.get(number)),
            number in commit.positions,
            commit.positions.get(number),
        )
        for number in sorted(numbers)
    }


_NO_WRITE = (None,) * 4
_FRESH_ROW = (*FRESH, *_NO_WRITE, False, None)


def _write(write: PositionWrite | None) -> tuple[Any, ...]:
    return (write.flow_id, write.epoch, write.seq, write.position) if write else _NO_WRITE
