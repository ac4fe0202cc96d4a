"""Support for the contract suite: a database for each store, and a replica that decides and
commits.

A ground makes stores on one database (each is one replica's) and lets time pass in that database,
so no test waits for a lease to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from itertools import count
from typing import Any, Protocol
from uuid import uuid4

import psycopg

from broker.core import commands as c
from broker.core import records as r
from broker.core.model import Flow, Handoff, Partition, Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide, follow
from broker.core.records import Entry
from broker.core.replay import replay_all
from broker.store.ports import Commit, PositionCommit, Store, StoreUnavailable
from broker.store.postgres import PostgresStore
from broker.store.trims import Fence
from broker.testing.database import MemoryDatabase
from broker.testing.store import MemoryStore

_numbers = count(1)


class Ground(Protocol):
    """One database, with control over its time."""

    async def store(self) -> Store:
        """A new store on the database, started; it stops with the ground."""

    def holding(
        self, flow_ids: Sequence[str], partitions: Sequence[tuple[str, int]] = ()
    ) -> AbstractContextManager[None]:
        """Another transaction holds these flows, and partitions as (queue, number)."""

    def pass_time(self, seconds: float) -> None:
        """Deadlines come nearer by so many seconds, and the last stamp gets older.

        Negative: the database's clock goes back.
        """


class MemoryGround:
    """A database in memory, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.database = MemoryDatabase(lambda: self.now)

    async def store(self) -> Store:
        return MemoryStore(self.database)

    @contextmanager
    def holding(
        self, flow_ids: Sequence[str], partitions: Sequence[tuple[str, int]] = ()
    ) -> Iterator[None]:
        database = self.database
        database.held_flows, database.held_partitions = {*flow_ids}, {*partitions}
        yield
        database.held_flows, database.held_partitions = set(), set()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


class PostgresGround:
    """A database in Postgres. Its clock runs by itself; `pass_time` changes the stored times."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def store(self) -> PostgresStore:
        store = PostgresStore(self.url, pool_size=5)
        self._stack.push_async_callback(store.stop)
        await store.start()
        return store

    @contextmanager
    def holding(
        self, flow_ids: Sequence[str], partitions: Sequence[tuple[str, int]] = ()
    ) -> Iterator[None]:
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "SELECT FROM counterpoise.flows WHERE id = ANY(%s) FOR NO KEY UPDATE",
                [[*flow_ids]],
            )
            for place in partitions:
                connection.execute(
                    "SELECT FROM counterpoise.partitions WHERE queue_id = %s AND number = %s"
                    " FOR NO KEY UPDATE",
                    place,
                )
            yield

    def pass_time(self, seconds: float) -> None:
        by = {"by": seconds}
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "UPDATE counterpoise.flows SET lease_expires_at = lease_expires_at - %(by)s"
                " WHERE reason IS NULL",
                by,
            )
            connection.execute(
                "UPDATE counterpoise.service SET stamped_at = stamped_at - %(by)s", by
            )
            connection.execute(
                "UPDATE counterpoise.queues SET next_deadline = next_deadline - %(by)s,"
                " since = since - %(by)s, holddown_until = holddown_until - %(by)s",
                by,
            )

    async def until_waiting(self) -> None:
        """Until a session waits for a lock."""
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        async with asyncio.timeout(240):
            while not self.sql(waiting):  # noqa: ASYNC110 - the database's state
                await asyncio.sleep(0.02)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Runs a statement like an administrator; returns its rows."""
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []


class Replica:
    """One queue on one replica: decides at a given time and commits to its store."""

    def __init__(self, store: Store, now: float = 1000.0) -> None:
        self.store = store
        self.now = now
        self.queue: Queue
        self._mark = 0
        self._begins: dict[int, str] = {}
        self._removed: dict[int, str] = {}

    @property
    def id(self) -> str:
        return self.queue.id

    async def create(
        self,
        partitions: int = 4,
        name: str | None = None,
        fence: Fence | None = None,
        **settings: Any,
    ) -> Commit:
        """Creates a queue; `rebalance_delay` is 0 by default."""
        settings = {"rebalance_delay": 0.0, "log": "builtin:orders", **settings}
        self.queue = Queue(
            str(uuid4()),
            name or f"orders{next(_numbers)}",
            Settings(partition_count=partitions, **settings),
            self.now,
        )
        self._mark = self.queue.journal.mark()
        records = (r.PartitionsAdded(0, partitions, self.now),)
        fences = () if fence is None else (fence,)
        commit = self.commit_of(self.replay(records), seen=0, fences=fences)
        await self.store.create(commit)
        self.settle()
        return commit

    async def create_dynamic(self, *keys: str, **settings: Any) -> Commit:
        """Creates a dynamic queue with these roots; `rebalance_delay` is 0 by default."""
        settings = {"rebalance_delay": 0.0, "log": "stream://elsewhere", **settings}
        self.queue = Queue(
            str(uuid4()),
            f"orders{next(_numbers)}",
            Settings(partition_count=0, partitioning="dynamic", **settings),
            self.now,
        )
        self._mark = self.queue.journal.mark()
        roots = tuple(r.Child(number, key, ()) for number, key in enumerate(keys))
        ended = r.WaitsEnded(tuple(range(len(roots))), self.now)
        entry = self.replay((r.ChildrenAdded(roots, self.now), ended))
        commit = self.commit_of(entry, seen=0)
        await self.store.create(commit)
        self.settle()
        return commit

    async def follow(self, queue_id: str) -> Replica:
        """Loads a queue."""
        self.queue = await self.store.load(queue_id)
        return self

    async def catch_up(self) -> None:
        """Replays the commits of others."""
        follow(self.queue, await self.store.entries_after(self.id, self.queue.revision))
        self.settle()

    def replay(self, records: Sequence[r.Record], rebalance_id: int | None = None) -> Entry:
        """Applies records under the next revision."""
        revision = self.queue.revision + 1
        replay_all(self.queue, records, revision)
        return Entry(revision, self.now, tuple(records), rebalance_id)

    def decide(self, *commands: c.Command) -> list[Entry]:
        """Decides commands; they are applied to the queue in memory only."""
        self._mark = self.queue.journal.mark()
        self._begins, self._removed = {}, {}
        entries: list[Entry] = []
        for command in commands:
            decision = decide(self.queue, command, self.now)
            entries += decision.entries
            self._begins.update(decision.effects.begins)
            self._removed.update(decision.effects.removed)
        return entries

    def commit_of(self, *entries: Entry, seen: int | None = None, **more: Any) -> Commit:
        """The transaction with all changes since the queue was last settled."""
        queue = self.queue
        changed = list(queue.journal.changed_since(self._mark))
        partitions = {p.number: p for p in changed if isinstance(p, Partition)}
        partitions |= {
            h.number: queue.partitions[h.number]
            for h in changed
            if isinstance(h, Handoff) and h.number in queue.partitions
        }
        removed = self._removed
        flows = {flow.id: flow for flow in changed if isinstance(flow, Flow)}
        flows |= queue.flows
        said = [record for entry in entries for record in entry.records]
        bound = {record.flow_id for record in said if isinstance(record, r.FlowBound)}
        left = {record.flow_id: record.reason for record in said if isinstance(record, r.FlowLeft)}
        flows = {id: flow for id, flow in flows.items() if id in bound or id in queue.flows}
        values: dict[str, Any] = {
            "partitions": [partitions[number] for number in sorted(partitions.keys() - removed)],
            "children": [
                child for one in said if isinstance(one, r.ChildrenAdded) for child in one.children
            ],
            "removed": removed,
            "first_positions": {n: at for n, at in self._begins.items() if n not in removed},
            "flows": list(flows.values()),
            "token_hashes": {flow_id: token_hash(flow_id) for flow_id in bound},
            "left": left,
            "next_deadline": queue.next_deadline(),
        }
        first = entries[0].revision if entries else queue.revision + 1
        return Commit(
            queue,
            first - 1 if seen is None else seen,
            f"commit-{next(_numbers)}",
            entries,
            **(values | more),
        )

    def settle(self) -> None:
        """Makes the decided changes final in memory."""
        self.queue.journal.forget()
        self.queue.touched = set()
        self._mark = 0

    def take_back(self) -> None:
        """Undoes the decisions since then."""
        self.queue.journal.undo(self._mark)

    async def do(self, *commands: c.Command, **more: Any) -> Commit:
        """Decides and commits; undoes the decision if that fails."""
        commit = self.commit_of(*self.decide(*commands), **more)
        try:
            await self.store.commit(commit)
        except BaseException:
            self.take_back()
            raise
        self.settle()
        return commit

    async def bind(
        self, *names: str, lease: float = 10.0, warmup: bool = False, **binds: Any
    ) -> Commit:
        """Flows bind, in one commit; ids and instances are derived from the names."""
        return await self.do(*(bind(name, lease=lease, warmup=warmup, **binds) for name in names))

    def position(
        self,
        flow_id: str,
        partition: int,
        position: str,
        *,
        epoch: int | None = None,
        seq: int | None = None,
        done_above: str | None = None,
    ) -> PositionCommit:
        """A commit of one position, by default in the partition's present epoch."""
        if epoch is None:
            epoch = self.queue.partitions[partition].epoch
        return PositionCommit(self.id, flow_id, seq, partition, epoch, position, done_above)

    def owned(self, flow_id: str) -> list[int]:
        return sorted(self.queue.flows[flow_id].owned)


async def serve(ground: Ground, store: Store, seconds: float) -> None:
    """Lets time pass while a replica serves; `seconds` is whole.

    In steps well below the size of an outage, so that a stall of the machine does not look like
    one.
    """
    for _ in range(round(seconds)):
        ground.pass_time(1)
        await store.pulse()


def bind(
    name: str,
    instance: str | None = None,
    *,
    lease: float = 10.0,
    warmup: bool = False,
    **binds: Any,
) -> c.Bind:
    """The bind command of a flow of this name."""
    return c.Bind(name, instance or f"i-{name}", f"client {name}", lease, warmup, **binds)


def token_hash(flow_id: str) -> bytes:
    """A fake hash of the flow's token."""
    return b"hash of " + flow_id.encode()


async def outcomes(calls: Iterable[Callable[[], Awaitable[object]]]) -> list[str]:
    """The result of each call; for an error, the name of its exception."""
    ends = []
    for call in calls:
        try:
            await call()
        except Exception as error:
            away = isinstance(error, StoreUnavailable)
            ends.append("StoreUnavailable" if away else type(error).__name__)
        else:
            ends.append("ok")
    return ends
