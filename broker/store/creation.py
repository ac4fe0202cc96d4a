"""The creation of a queue: several statements in one transaction. No caller waits for its locks."""

from __future__ import annotations

from sqlalchemy import JSON, bindparam, func, insert, literal_column, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.store.access_keys import record_acts
from broker.store.commit import child_rows, entry_rows, written_numbers
from broker.store.ports import Commit, LogTrimmed, NameTaken
from broker.store.rows import PartitionValues, common_and_rows, partition_values, queue_values
from broker.store.tables import lineage, partitions, queues, records
from broker.store.trims import PASS_FENCE

_PARTITION_COLUMNS = (*PartitionValues._fields, "position")
CREATE_QUEUE = (
    postgresql_insert(queues)
    .values({column.name: bindparam(column.name) for column in queues.columns})
    .on_conflict_do_nothing()
    .returning(queues.c.id)
)
# The rows are given as in `sql/commit.sql`. Partitions without an owner so far differ only in their
# numbers.
_given = func.json_populate_recordset(
    func.json_populate_record(
        literal_column(f"NULL::{partitions.fullname}"), bindparam("common", type_=JSON)
    ),
    bindparam("rows", type_=JSON),
).table_valued(*_PARTITION_COLUMNS, name="given")
INSERT_PARTITIONS = insert(partitions).from_select(
    ["queue_id", *_PARTITION_COLUMNS], select(bindparam("queue"), *_given.c)
)


async def insert_queue(connection: AsyncConnection, commit: Commit) -> None:
    """Inserts a queue with its partitions and first records. Nobody is bound to it yet.

    Raises NameTaken, LogTrimmed.
    """
    queue = commit.queue
    row = {"id": queue.id, "level": 0, **queue_values(queue, commit.next_deadline)}
    if (await connection.execute(CREATE_QUEUE, row)).first() is None:
        raise NameTaken(queue.name)
    entries = [
        {"queue_id": queue.id, "commit_id": commit.commit_id, **entry}
        for entry in entry_rows(commit)
    ]
    await connection.execute(insert(records), entries)
    common, rows = common_and_rows(
        _PARTITION_COLUMNS,
        [
            (
                *partition_values(queue, queue.partitions[number]),
                commit.positions.get(number, commit.first_positions.get(number)),
            )
            for number in written_numbers(commit)
        ],
    )
    given = {"queue": queue.id, "common": common, "rows": rows}
    await connection.execute(INSERT_PARTITIONS, given)
    if children := [{"queue_id": queue.id, **child} for child in child_rows(commit)]:
        await connection.execute(insert(lineage), children)
    await record_acts(connection, commit.acts)
    for fence in commit.fences:
        given = {"log": fence.log, "announced": fence.announced, "commit": commit.commit_id}
        if (await connection.execute(PASS_FENCE, given)).first() is None:
            raise LogTrimmed(fence.log)
