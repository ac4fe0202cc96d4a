"""The entries of a queue: what was committed, by revision.

The entries of a rebalance name it. What led to it (flows that bound or left, settings) is in the
entries before it that belong to no rebalance: those of its holddown, among others. `history` names
them with it, newest first and limited in number, because a queue may have very many of them. They
are read some at a time (`entries_at`), because together they may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.records import Entry
from broker.core.stored import ShownEntry
from broker.store.bulk import any_of
from broker.store.connections import Connections
from broker.store.ports import NamedFlow, QueueGone, WentBack
from broker.store.rows import decode, decode_shown
from broker.store.tables import flows, queues, records

# The most entries that are read beside those of rebalances.
MOST_BETWEEN = 5000
_ENTRY = (
    records.c.revision,
    records.c.at,
    records.c.records,
    records.c.rebalance_id,
    records.c.commit_id,
)
SOME_ENTRIES = (
    select(*_ENTRY)
    .where(records.c.queue_id == bindparam("queue"), any_of(records.c.revision, "revisions"))
    .order_by(records.c.revision)
)
NAMED = select(
    flows.c.id,
    flows.c.client_name,
    case((flows.c.reason == "lease_expired", flows.c.left_at)).label("expired_at"),
).where(any_of(flows.c.id, "flow_ids"))


class PostgresHistory:
    """The entries of queues in Postgres."""

    _connections: Connections

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        return [
            Entry(row.revision, row.at, decode(row.records), row.rebalance_id, row.commit_id)
            for row in await self._rows_after(queue_id, revision, limit)
        ]

    async def changes_after(self, queue_id: str, revision: int, limit: int) -> Sequence[ShownEntry]:
        return list(map(_shown, await self._rows_after(queue_id, revision, limit)))

    async def _rows_after(
        self, queue_id: str, revision: int, limit: int | None
    ) -> Sequence[Row[Any]]:
        missed = and_(records.c.queue_id == queues.c.id, records.c.revision > revision)
        query = (
            select(queues.c.revision.label("current"), *_ENTRY)
            .select_from(queues.outerjoin(records, missed))
            .where(queues.c.id == queue_id)
            .order_by(records.c.revision)
            .limit(limit)
        )
        found = await self._connections.rows(query)
        if not found:
            raise QueueGone(queue_id)
        missed_count = found[0].current - revision
        if missed_count < 0:
            raise WentBack(revision)
        kept = [row for row in found if row.revision is not None]
        if len(kept) != (missed_count if limit is None else min(limit, missed_count)):
            raise KeyError(revision)
        # The oldest entries are forgotten first.
        if kept and kept[0].revision != revision + 1:
            raise KeyError(revision)
        return kept

    async def history(
        self, queue_id: str, limit: int, before: int | None, most_entries: int
    ) -> Sequence[int]:
        async with self._connections.single() as connection:
            return await _history(connection, queue_id, limit, before, most_entries)

    async def entries_at(self, queue_id: str, revisions: Sequence[int]) -> Sequence[ShownEntry]:
        asked = {"revisions": [*revisions], "queue": queue_id}
        return [*map(_shown, await self._connections.rows(SOME_ENTRIES, asked))]

    async def flows_named(self, flow_ids: Sequence[str]) -> Mapping[str, NamedFlow]:
        if not flow_ids:
            return {}
        found = await self._connections.rows(NAMED, {"flow_ids": [*flow_ids]})
        return {row.id: NamedFlow(row.client_name, row.expired_at) for row in found}


async def _history(
    connection: AsyncConnection, queue_id: str, limit: int, before: int | None, most_entries: int
) -> list[int]:
    """See `Store.history`."""
    named = and_(records.c.queue_id == queue_id, records.c.rebalance_id.is_not(None))
    newest = (
        select(records.c.rebalance_id, func.count().label("entries"))
        .where(named)
        .group_by(records.c.rebalance_id)
        .order_by(records.c.rebalance_id.desc())
        .limit(limit)
    )
    if before is not None:
        newest = newest.where(records.c.rebalance_id < before)
    chosen: list[int] = []
    for row in await connection.execute(newest):
        most_entries -= row.entries
        if chosen and most_entries < 0:
            break
        chosen.append(row.rebalance_id)
    of_rebalances = select(records.c.revision).where(named, records.c.rebalance_id.in_(chosen))
    revisions = [*(await connection.scalars(of_rebalances))] if chosen else []
    if not revisions:
        return []
    former = (
        select(func.max(records.c.revision))
        .where(named, records.c.revision < min(revisions))
        .scalar_subquery()
    )
    between = (
        select(records.c.revision)
        .where(
            records.c.queue_id == queue_id,
            records.c.rebalance_id.is_(None),
            records.c.revision > func.coalesce(former, 0),
            records.c.revision < max(revisions),
        )
        .order_by(records.c.revision.desc())
        .limit(MOST_BETWEEN)
    )
    return sorted([*revisions, *(await connection.scalars(between))])


def _shown(row: Any) -> ShownEntry:
    """A stored entry, for showing."""
    return ShownEntry(row.revision, row.at, decode_shown(row.records), row.rebalance_id)
