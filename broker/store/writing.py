"""The transaction that commits what a replica decided on a queue.

Every statement is fenced in its WHERE clause and returns the rows that it changed. A missing row
shows which fence held. All locks in this package are taken in one order, so there are no deadlocks:
the queue, then flows by id, then partitions by queue and number. Rows in parameters are joined to
the table once, where it is locked. So every plan looks rows up by their keys, however many there
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    Double,
    Text,
    bindparam,
    extract,
    func,
    insert,
    literal,
    not_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.bulk import NOW, Rows
from broker.store.connections import IDLE_SECONDS
from broker.store.flow_writes import insert_flows, update_flows
from broker.store.key_ports import Act
from broker.store.partition_writes import insert_partitions, write_partitions
from broker.store.ports import Commit, Conflict, NameTaken, Overdue, QueueGone
from broker.store.rows import encode, queue_values
from broker.store.tables import audit, queues, records

# The queue's row, if it has the expected revision, and then the records.

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
# Without the columns that never change: setting a key column would also conflict with the locks of
# foreign keys.
_QUEUE_COLUMNS = [
    column.name for column in queues.columns if column.name not in ("id", "name", "created_at")
]
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
    .values({column.name: bindparam(column.name) for column in queues.columns})
    .on_conflict_do_nothing()
    .returning(queues.c.id)
)
RECORD = insert(records).from_select(
    _RECORD_COLUMNS,
    _record_values(bindparam("queue", type_=Text), bindparam("commit", type_=Text)).select_from(
        _ENTRIES.table
    ),
)


OVERDUE = select(
    not_(
        extract("epoch", func.clock_timestamp()).between(
            bindparam("from", type_=Double), bindparam("until", type_=Double)
        )
    )
)
# Encoding a large commit takes time between statements (`connections.IDLE_SECONDS`).
LARGE = 5000
LARGE_ROWS_PER_SECOND = 10_000
TAKE_TIME = select(
    func.set_config("idle_in_transaction_session_timeout", bindparam("limit", type_=Text), True)
)


async def record_acts(connection: AsyncConnection, acts: Sequence[Act]) -> None:
    """Writes the audit, one row for each act, in the transaction of what was done."""
    if acts:
        rows = [{"at": NOW, **asdict(act)} for act in acts]
        await connection.execute(insert(audit).values(rows))


def _idle_limit(commit: Commit) -> str:
    seconds = IDLE_SECONDS + len(commit.partitions) / LARGE_ROWS_PER_SECOND
    return f"{int(seconds * 1000)}ms"


async def create(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts a queue with its partitions, flows and first records. Raises NameTaken."""
    row = {"id": commit.queue.id, **queue_values(commit.queue, commit.next_deadline)}
    if (await connection.execute(CREATE_QUEUE, row)).first() is None:
        raise NameTaken(commit.queue.name)
    await connection.execute(
        RECORD, {"queue": commit.queue.id, "commit": commit.commit_id, **_entries(commit)}
    )
    await insert_flows(connection, commit)
    await insert_partitions(connection, commit)
    await record_acts(connection, commit.acts)


async def write(connection: AsyncConnection, commit: Commit) -> None:
    """Writes a commit. Raises Conflict, QueueGone, LeaseRenewed, PositionBehind or Overdue.

    If it raises, the transaction must be rolled back.
    """
    if len(commit.partitions) >= LARGE:
        await connection.execute(TAKE_TIME, {"limit": _idle_limit(commit)})
    await _move_queue(connection, commit)
    await update_flows(connection, commit)
    await insert_flows(connection, commit)
    await write_partitions(connection, commit)
    await record_acts(connection, commit.acts)
    if commit.valid is not None:
        # At the end, after all waits for locks.
        first, last = commit.valid
        if (await connection.execute(OVERDUE, {"from": first, "until": last})).scalar_one():
            raise Overdue(commit.queue.id)


async def _move_queue(connection: AsyncConnection, commit: Commit) -> None:
    row = queue_values(commit.queue, commit.next_deadline)
    parameters = {
        "queue": commit.queue.id,
        "seen": commit.seen,
        "commit": commit.commit_id,
        **{name: row[name] for name in _QUEUE_COLUMNS},
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
