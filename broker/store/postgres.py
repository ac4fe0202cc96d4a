"""The store in Postgres: the tables of `migrations/control` through SQLAlchemy Core and asyncpg.

Frequent operations are one statement and thus one round trip: commits of decisions, commits of
positions, renewals, the pulse. The driver gets them directly (`Connections.fetch`), and each stands
beside its statement: `PostgresStore` inherits them from `commit`, `positions`, `leases` and, for
what was committed, `history`. The rest is here: queues, and the notifications of other replicas.

Locks are taken in one order (`commit`), and one plan works for any number of rows (`bulk`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from broker.core.access import ALL_QUEUES
from broker.core.queue import Queue
from broker.store.access_keys import PostgresKeys, matching, record_acts
from broker.store.bulk import PreparedStatement, any_of
from broker.store.commit import PostgresCommits
from broker.store.conditions import PostgresConditions
from broker.store.connections import Connections
from broker.store.creation import insert_queue
from broker.store.history import PostgresHistory
from broker.store.leases import PostgresLeases
from broker.store.measurements import PostgresMeasurements
from broker.store.mirrors import PostgresMirrors
from broker.store.notifications import Notifications
from broker.store.ports import (
    Act,
    Commit,
    FlowRow,
    FlowsBound,
    LogTrimmed,
    QueueGone,
    QueueRow,
    StoreUnavailable,
)
from broker.store.positions import PostgresPositions
from broker.store.reading import read, restore
from broker.store.rows import (
    queue_row,
)
from broker.store.tables import bound, flows, outages, partitions, queues, records, service
from broker.store.trims import End, PostgresTrims, announce_end

T = TypeVar("T")

PURGE_AT_ONCE = 10_000
ANALYZE_FROM = 2_000


class PostgresStore(PostgresCommits, PostgresPositions, PostgresLeases, PostgresHistory):
    """The store of one replica: at most `pool_size` connections, and one more for LISTEN."""

    def __init__(
        self,
        database_url: str,
        pool_size: int = 8,
        *,
        listen_url: str | None = None,
        connect_seconds: float = 5.0,
        answer_seconds: float = 30.0,
        heartbeat_seconds: float = 5.0,
    ) -> None:
        """`listen_url`: another way to the same database, for notifications of other replicas.

        After `heartbeat_seconds` without a notification, that connection is tested.
        """
        self._connections = Connections(
            database_url,
            pool_size,
            connect_seconds=connect_seconds,
            answer_seconds=answer_seconds,
        )
        self.keys = PostgresKeys(self._connections)
        self.trims = PostgresTrims(self._connections.fetch)
        self.conditions = PostgresConditions(self._connections.fetch)
        self.measurements = PostgresMeasurements(self._connections.fetch)
        self.mirrors = PostgresMirrors(self._connections.fetch)
        listening = self._connections if listen_url is None else Connections(listen_url, 1)
        self._notifications = Notifications(
            listening.connect, uuid4().hex, heartbeat_seconds=heartbeat_seconds
        )

    def count_round_trips(self, heard: Callable[[float], object]) -> None:
        """`heard` is called with the seconds of each answered round trip of `fetch`."""
        self._connections.heard = heard

    async def start(self) -> None:
        await self._connections.open_first()

    async def asked(self, question: Callable[[Connection], T]) -> T:
        """The answer of a transaction of its own, in SQLAlchemy's blocking form.

        Raises StoreUnavailable.
        """
        async with self._connections.transaction() as connection:
            return await connection.run_sync(question)

    async def stop(self) -> None:
        self._notifications.close()
        await self._connections.close()

    # Queues

    async def create(self, commit: Commit) -> None:
        await self._connections.carry_out(lambda one: insert_queue(one, commit))
        if len(commit.partitions) >= ANALYZE_FROM:
            # Plans that were made while the table was small would read all of it. An ANALYZE that
            # waited would end the autovacuum of this table. Where large queues come and go, none
            # would ever reach its end, and the files would grow without a bound. If it fails, the
            # queue is there all the same.
            with suppress(StoreUnavailable):
                async with self._connections.single() as connection:
                    await connection.execute(text(f"ANALYZE (SKIP_LOCKED) {partitions.fullname}"))

    async def delete(
        self, queue_id: str, *, force: bool, act: Act | None = None, end: End | None = None
    ) -> None:
        lock = select(queues.c.id).where(queues.c.id == queue_id).with_for_update()
        in_use = select(flows.c.id).where(flows.c.queue_id == queue_id, bound).limit(1)
        async with self._connections.transaction() as connection:
            if (await connection.execute(lock)).first() is None:
                raise QueueGone(queue_id)
            if not force and (await connection.execute(in_use)).first() is not None:
                raise FlowsBound(queue_id)
            await self._lock_all(connection, queue_id)
            await connection.execute(delete(partitions).where(partitions.c.queue_id == queue_id))
            await connection.execute(delete(queues).where(queues.c.id == queue_id))
            await record_acts(connection, () if act is None else (act,))
            if end is not None and not await announce_end(connection, end):
                raise LogTrimmed(end.log)

    async def _lock_all(self, connection: AsyncConnection, queue_id: str) -> None:
        for table, key in ((flows, flows.c.id), (partitions, partitions.c.number)):
            locked = (
                select(key)
                .where(table.c.queue_id == queue_id)
                .order_by(key)
                .with_for_update()
                .cte("locked")
            )
            await connection.execute(select(func.count()).select_from(locked))

    async def find(self, name: str) -> str | None:
        found = await self._connections.rows(select(queues.c.id).where(queues.c.name == name))
        return found[0].id if found else None

    async def list(
        self, limit: int, after: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> Sequence[QueueRow]:
        of_queue = and_(flows.c.queue_id == queues.c.id, bound)
        query = (
            select(
                queues,
                select(func.count()).where(of_queue).scalar_subquery().label("flow_count"),
                select(func.count())
                .where(of_queue, flows.c.active)
                .scalar_subquery()
                .label("active_flow_count"),
            )
            .order_by(queues.c.name)
            .limit(limit)
        )
        if after is not None:
            query = query.where(queues.c.name > after)
        if "*" not in patterns:
            query = query.where(matching(queues.c.name, patterns))
        return [
            queue_row(row.id, row._asdict(), row.flow_count, row.active_flow_count)
            for row in await self._connections.rows(query)
        ]

    async def load(self, queue_id: str) -> Queue:
        async with self._connections.snapshot() as connection:
            rows = await read(connection, queue_id)
        return restore(queue_id, rows)

    async def revisions(self, queue_ids: Sequence[str]) -> Mapping[str, int]:
        query = select(queues.c.id, queues.c.revision).where(any_of(queues.c.id, "queue_ids"))
        found = await self._connections.rows(query, {"queue_ids": [*queue_ids]})
        return {row.id: row.revision for row in found}

    async def purge(self, flows_before: float, records_before: float) -> None:
        newest = select(queues.c.revision).where(queues.c.id == records.c.queue_id)
        old = and_(records.c.at < records_before, records.c.revision < newest.scalar_subquery())
        await self._purge(
            (flows.c.id,), flows.c.reason.is_not(None) & (flows.c.left_at < flows_before)
        )
        await self._purge((records.c.queue_id, records.c.revision), old)
        latest = select(func.max(outages.c.id)).scalar_subquery()
        await self._purge(
            (outages.c.id,), and_(outages.c.began < records_before, outages.c.id < latest)
        )

    async def _purge(self, key: tuple[ColumnElement[Any], ...], old: ColumnElement[bool]) -> None:
        """In small steps, so that no statement reaches its time limit."""
        [table] = {column.table for column in key}
        some = select(*key).where(old).limit(PURGE_AT_ONCE)
        statement = delete(table).where(tuple_(*key).in_(some)).returning(literal(1))
        while len(await self._connections.rows(statement)) == PURGE_AT_ONCE:
            pass

    async def flow_rows(self, flow_ids: Sequence[str]) -> Mapping[str, FlowRow]:
        query = select(flows.c.id, flows.c.queue_id, flows.c.token_hash, flows.c.reason).where(
            any_of(flows.c.id, "flow_ids")
        )
        found = await self._connections.rows(query, {"flow_ids": [*flow_ids]})
        return {row.id: FlowRow(*tuple(row)) for row in found}

    # Other replicas

    async def notify(self, queue_ids: Sequence[str]) -> None:
        payloads = self._notifications.payloads(queue_ids)
        if not payloads:
            return
        try:
            await self._connections.fetch(NOTIFY, {"payloads": payloads})
        except StoreUnavailable:
            return  # Best effort: the sweep of the other replicas finds the changes.

    def listen(self) -> AsyncIterator[Sequence[str] | None]:
        return self._notifications.listen()


NOTIFY = PreparedStatement(
    select(
        func.pg_notify(
            service.c.channel,
            func.unnest(bindparam("payloads", type_=ARRAY(Text))),
        )
    ).where(service.c.id == 1)
)
