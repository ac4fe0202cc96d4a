"""The partitions' rows of a commit, with the positions of releases and of administrators.

Parts of the statement that commits (`broker.store.writing`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.state.model import Partition, Settings
from broker.core.state.queue import Queue
from broker.pieces import pieces
from broker.store.ports import Commit, PositionWrite
from broker.store.rows import PartitionValues, first_writes, partition_values
from broker.store.schema.bulk import Rows, looked_up, written_over
from broker.store.schema.tables import partitions

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
        ("first_position", Text()),
    ],
    alike=True,
)
_row = select(*_ROWS.c).order_by(_ROWS.c.number).subquery("row").c
_locked = looked_up(
    select(partitions)
    .where(partitions.c.queue_id == bindparam("queue"), partitions.c.number == _row.number)
    .with_for_update(key_share=True),
    "locked",
)
_COLUMNS = ["queue_id", *PartitionValues._fields, "position", "seq"]


def locked_partitions(begins: ColumnElement[bool]) -> CTE:
    """Locks the given partitions in order, once `begins` holds.

    The rows as they are to be written; `fits`: the owner and epoch of a release still hold.
    """
    return (
        select(
            bindparam("queue", type_=Text).label("queue_id"),
            *(_row[key] for key in PartitionValues._fields),
            case(
                (_row["set"], _row.set_position),
                else_=func.coalesce(_row.write_position, _locked.c.position, _row.first_position),
            ).label("position"),
            case(
                (_row.epoch == _locked.c.epoch, func.coalesce(_row.write_seq, _locked.c.seq))
            ).label("seq"),
            func.coalesce(
                or_(
                    _row.write_flow.is_(None),
                    and_(
                        _locked.c.owner == _row.write_flow,
                        _locked.c.epoch == _row.write_epoch,
                        or_(
                            _row.write_seq.is_(None),
                            _locked.c.seq.is_(None),
                            _row.write_seq > _locked.c.seq,
                        ),
                    ),
                ),
                false(),
            ).label("fits"),
        )
        .select_from(_row.number.table.outerjoin(_locked, true()))
        .where(begins)
        .cte("locked_partitions")
    )


def written_partitions(locked: CTE, may: ColumnElement[bool]) -> CTE:
    """Writes them, if it `may`."""
    return (
        written_over(
            postgresql_insert(partitions).from_select(
                _COLUMNS, select(*(locked.c[name] for name in _COLUMNS)).where(may)
            ),
            _COLUMNS[2:],
        )
        .returning(partitions.c.number, partitions.c.epoch, partitions.c.position)
        .cte("written_partitions")
    )


INSERT_PARTITIONS = insert(partitions).from_select(
    ["queue_id", *PartitionValues._fields, "position"],
    select(
        bindparam("queue", type_=Text),
        *(_ROWS.c[key] for key in PartitionValues._fields),
        case((_ROWS.c["set"], _ROWS.c.set_position), else_=_ROWS.c.first_position),
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
    return _ROWS.parameters(found)


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
            parameters = {"queue": commit.queue.id, **_ROWS.parameters(list(others.values()))}
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
                *_write(writes.get(number)),
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


def _write(write: PositionWrite | None) -> tuple[Any, ...]:
    return (write.flow_id, write.epoch, write.seq, write.position) if write else _NO_WRITE
