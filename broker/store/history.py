"""The entries of a queue: what was committed, by revision.

The entries of a rebalance name it. What led to it (flows that bound or left, settings) is in the
entries before it that belong to no rebalance: those of its holddown, among others. `history` reads
them with it, newest first and limited in number, because a queue may have very many of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.records import Entry
from broker.core.stored import ShownEntry
from broker.pieces import pieces
from broker.store.bulk import any_of
from broker.store.connections import Connections
from broker.store.ports import QueueGone
from broker.store.rows import decode, decode_shown
from broker.store.tables import flows, queues, records

# The most entries that are read beside those of rebalances.
MOST_BETWEEN = 5000
# Each has at most a slice, so these take some milliseconds.
ENTRIES_AT_ONCE = 10
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
NAMES = select(flows.c.id, flows.c.client_name).where(any_of(flows.c.id, "flow_ids"))


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
        kept = [row for row in found if row.revision is not None]
        missed_count = max(0, found[0].current - revision)
        if len(kept) != (missed_count if limit is None else min(limit, missed_count)):
            raise KeyError(revision)
        # The oldest entries are forgotten first.
        if kept and kept[0].revision != revision + 1:
            raise KeyError(revision)
        return kept

    async def history(self, queue_id: str, limit: int, before: int | None) -> Sequence[ShownEntry]:
        async with self._connections.single() as connection:
            return await _history(connection, queue_id, limit, before)

    async def client_names(self, flow_ids: Sequence[str]) -> Mapping[str, str]:
        if not flow_ids:
            return {}
        found = await self._connections.rows(NAMES, {"flow_ids": [*flow_ids]})
        return {row.id: row.client_name for row in found}


async def _history(
    connection: AsyncConnection, queue_id: str, limit: int, before: int | None
) -> list[ShownEntry]:
    """See `Store.history`."""
    named = and_(records.c.queue_id == queue_id, records.c.rebalance_id.is_not(None))
    newest = (
        select(records.c.rebalance_id)
        .distinct()
        .where(named)
        .order_by(records.c.rebalance_id.desc())
        .limit(limit)
    )
    if before is not None:
        newest = newest.where(records.c.rebalance_id < before)
    of_rebalances = select(*_ENTRY).where(named, records.c.rebalance_id.in_(newest))
    found = await _entries(connection, queue_id, of_rebalances.order_by(records.c.revision))
    if not found:
        return []
    revisions = [entry.revision for entry in found]
    former = (
        select(func.max(records.c.revision))
        .where(named, records.c.revision < min(revisions))
        .scalar_subquery()
    )
    between = (
        select(*_ENTRY)
        .where(
            records.c.queue_id == queue_id,
            records.c.rebalance_id.is_(None),
            records.c.revision > func.coalesce(former, 0),
            records.c.revision < max(revisions),
        )
        .order_by(records.c.revision.desc())
        .limit(MOST_BETWEEN)
    )
    found += await _entries(connection, queue_id, between)
    return sorted(found, key=lambda entry: entry.revision)


async def _entries(
    connection: AsyncConnection, queue_id: str, query: Select[Any]
) -> list[ShownEntry]:
    """The entries, read in pieces."""
    found: list[ShownEntry] = []
    revisions = query.with_only_columns(records.c.revision)
    chosen = (await connection.execute(revisions)).scalars().all()
    async for some in pieces(chosen, ENTRIES_AT_ONCE):
        rows = await connection.execute(SOME_ENTRIES, {"revisions": [*some], "queue": queue_id})
        found += map(_shown, rows)
    return found


def _shown(row: Any) -> ShownEntry:
    """A stored entry, for showing."""
    return ShownEntry(row.revision, row.at, decode_shown(row.records), row.rebalance_id)
