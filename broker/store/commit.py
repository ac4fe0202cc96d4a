"""The commit of what a replica decided on a queue: one statement, `sql/commit.sql`.

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
many there are (`broker.store.bulk`).

A statement sees the database as it was when it arrived, and locked rows as they are. That is
enough: rows that are inserted meanwhile belong to a commit of another replica, which has raised the
revision. The positions in the answer are those of the database at that time, and as written.

**Rows are sent as JSON**, by the names of their columns. For the few rows of a usual commit that is
faster than an array for each column; for the hundreds of a rebalance it takes this process a third
less and the database hardly more, because a column in which all rows agree is sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from sqlalchemy import BigInteger, Text, bindparam, select

from broker.store.bulk import PreparedStatement
from broker.store.connections import ConnectionLost, Connections
from broker.store.levels import LEVEL, check_level
from broker.store.ports import (
    Commit,
    Conflict,
    LeaseRenewed,
    LogTrimmed,
    Overdue,
    Positions,
    PositionSuperseded,
    QueueGone,
    Stored,
)
from broker.store.rows import (
    FlowValues,
    PartitionValues,
    common_and_rows,
    encode,
    first_writes,
    flow_values,
    partition_values,
    queue_values,
)
from broker.store.tables import queues, records

COMMIT = PreparedStatement.read("commit")
STORED_COMMIT = PreparedStatement(
    select(
        queues.c.name,
        queues.c.level,
        select(records.c.revision)
        .where(
            records.c.queue_id == bindparam("queue"),
            records.c.revision == bindparam("revision", type_=BigInteger),
            records.c.commit_id == bindparam("commit", type_=Text),
        )
        .exists()
        .label("stored"),
    ).where(queues.c.id == bindparam("queue"))
)
COLUMNS = ("numbers", "epochs", "positions", "done_above")
_NEW_FLOW_COLUMNS = (*FlowValues._fields, "token_hash", "reason")


class PostgresCommits:
    """`Store.commit` in Postgres."""

    _connections: Connections

    async def commit(self, commit: Commit) -> Positions:
        parameters = commit_parameters(commit)
        try:
            [row] = await self._connections.fetch(COMMIT, parameters)
        except ConnectionLost:
            # If it was carried out, the revision has moved.
            [row] = await self._connections.fetch(COMMIT, parameters)
            if not row["held"] and (found := await self._stored(commit)) and found["stored"]:
                return {}
        if row["may"]:
            columns = (row[name] or () for name in COLUMNS)
            return {number: Stored(*stored) for number, *stored in zip(*columns, strict=True)}
        if not row["held"]:
            found = await self._stored(commit)
            if found is None:
                raise QueueGone(commit.queue.id)
            check_level(found["name"], found["level"])
            raise Conflict(commit.queue.id)
        if row["renewed"]:
            raise LeaseRenewed(frozenset(row["renewed"]))
        if row["superseded"]:
            raise PositionSuperseded(frozenset(row["superseded"]))
        if row["overdue"]:
            raise Overdue(commit.queue.id)
        assert not row["passed"], "a commit is refused without a reason"
        [fence] = commit.fences
        raise LogTrimmed(fence.log)

    async def _stored(self, commit: Commit) -> Any:
        """The queue's name and level, and whether this commit was carried out; None if the queue
        is gone.
        """
        revision = commit.seen + 1
        given = {"queue": commit.queue.id, "revision": revision, "commit": commit.commit_id}
        return next(iter(await self._connections.fetch(STORED_COMMIT, given)), None)


def commit_parameters(commit: Commit) -> Mapping[str, Any]:
    """What `sql/commit.sql` takes."""
    queue, fence = commit.queue, next(iter(commit.fences), None)
    first, last = commit.valid or (None, None)
    numbers = written_numbers(commit)
    every_partition, partitions = common_and_rows(
        PartitionValues._fields,
        [partition_values(queue, queue.partitions[number]) for number in numbers],
    )
    every_new_flow, new_flows = _new_flows(commit)
    rows = {
        "queue_row": queue_values(queue, commit.next_deadline),
        "entries": entry_rows(commit),
        "flows": _known_flows(commit),
        "every_new_flow": every_new_flow,
        "new_flows": new_flows,
        "every_partition": every_partition,
        "partitions": partitions,
        "positions": _position_changes(commit, numbers),
        "children": child_rows(commit),
        "acts": [asdict(act) for act in commit.acts],
    }
    return {
        "queue": queue.id,
        "seen": commit.seen,
        "level": LEVEL,
        "commit": commit.commit_id,
        "valid_from": first,
        "valid_until": last,
        "fence_log": fence and fence.log,
        "fence_announced": fence and fence.announced,
        "removed_numbers": sorted(commit.removed),
        "removed_keys": sorted(commit.removed.values()),
        "shown": sorted(commit.shown - {*numbers}),
        **{name: orjson.dumps(value).decode() for name, value in rows.items()},
    }


def written_numbers(commit: Commit) -> Sequence[int]:
    """The partitions whose rows are written."""
    numbers = {partition.number for partition in commit.partitions}
    numbers.update(write.partition for write in commit.writes)
    return sorted(numbers.union(commit.positions, commit.passed, commit.first_positions))


def _position_changes(commit: Commit, numbers: Sequence[int]) -> Sequence[Mapping[str, Any]]:
    """For each of the partitions, what is to happen to its position; empty if none changes."""
    if not (commit.writes or commit.positions or commit.passed or commit.first_positions):
        return ()
    changes: dict[int, dict[str, Any]] = {number: {} for number in numbers}
    for number, write in first_writes(commit.writes).items():
        changes[number] = {
            "release_flow": write.flow_id,
            "release_epoch": write.epoch,
            "release_seq": write.seq,
            "release_position": write.position,
            "release_done_above": write.done_above,
        }
    for number, position in commit.positions.items():
        changes[number] |= {"is_set": True, "set_position": position}
    for number, passed in commit.passed.items():
        changes[number] |= {
            "is_set": True,
            "set_position": passed.position,
            "set_done_above": passed.done_above,
            "is_passed": True,
            "seen_position": passed.seen_position,
            "seen_done_above": passed.seen_done_above,
        }
    for number, position in commit.first_positions.items():
        changes[number]["first_position"] = position
    return [*changes.values()]


def _known_flows(commit: Commit) -> Sequence[Mapping[str, Any]]:
    """The flows that the database has: what changed, who leaves, whose lease begins anew."""
    rows: dict[str, dict[str, Any]] = {
        flow.id: {
            "id": flow.id,
            "draining": flow.draining,
            "drain_deadline": flow.drain_deadline,
            "held_until": flow.held_until,
            "view_revision": flow.view_revision,
            "active": flow.active,
        }
        for flow in commit.flows
        if flow.id not in commit.token_hashes
    }
    for flow_id in commit.renewed:
        rows.setdefault(flow_id, {"id": flow_id})["renewed"] = True
    for flow_id, reason in commit.left.items():
        rows.setdefault(flow_id, {"id": flow_id})["reason"] = reason
    for flow_id in commit.expired:
        rows.setdefault(flow_id, {"id": flow_id})["expired"] = True
    return [row for flow_id, row in rows.items() if flow_id not in commit.token_hashes]


def _new_flows(commit: Commit) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The flows that bind with this commit, as `common_and_rows`."""
    rows = [
        (*flow_values(flow), rf"\x{token_hash.hex()}", commit.left.get(flow.id))
        for flow in commit.flows
        if (token_hash := commit.token_hashes.get(flow.id)) is not None
    ]
    return common_and_rows(_NEW_FLOW_COLUMNS, rows)


def entry_rows(commit: Commit) -> Sequence[Mapping[str, Any]]:
    """The records of the commit."""
    return [
        {
            "revision": entry.revision,
            "at": entry.at,
            "rebalance_id": entry.rebalance_id,
            "records": orjson.Fragment(encode(entry.records)),
        }
        for entry in commit.entries
    ]


def child_rows(commit: Commit) -> Sequence[Mapping[str, Any]]:
    """The new keys of a dynamic queue."""
    return [
        {"key": key, "number": number, "parents": parents}
        for number, key, parents in commit.children
    ]
