"""The store of one replica on the database in memory.

A `MemoryDatabase` is the database, each `MemoryStore` on it is one replica's store. Replicas share
nothing but rows and records. With `hook` a simulation can make a call wait or fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from broker.core.access import ALL_QUEUES
from broker.core.state.queue import Queue
from broker.core.state.records import Entry
from broker.core.state.stored import ShownEntry
from broker.memory.conditions import MemoryConditions
from broker.memory.database import MemoryDatabase
from broker.memory.keys import MemoryKeys
from broker.memory.trims import MemoryTrims
from broker.store.key_ports import Act
from broker.store.ports import (
    Commit,
    Committed,
    Expiry,
    FlowRow,
    Lease,
    Outage,
    PositionCommit,
    Positions,
    Pulse,
    QueueRow,
    StoreError,
    StoreUnavailable,
)

__all__ = ["Fault", "Hook", "MemoryDatabase", "MemoryStore"]


class Fault(Enum):
    """How a call fails: `LOST` before anything happened, `UNKNOWN` after it was carried out."""

    LOST = "lost"
    UNKNOWN = "unknown"


T = TypeVar("T")
Hook = Callable[[str], Awaitable[Fault | None]]


class MemoryStore:
    """A replica's store. Each call first awaits `hook` with the method's name; see `Fault`."""

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        clock: Callable[[], float] = time.time,
        hook: Hook | None = None,
    ) -> None:
        self.database = database or MemoryDatabase(clock)
        self.hook = hook
        self.keys = MemoryKeys(self.database, self._call)
        self.trims = MemoryTrims(self.database.trims, self._call)
        self.conditions = MemoryConditions(self.database, self._call)
        self._listening: list[_Listening] = []

    async def start(self) -> None:
        await self._call("start", lambda: None)

    async def stop(self) -> None:
        """Nothing to close."""

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        return await self._call("pulse", lambda: self.database.pulse(gap_seconds))

    async def create(self, commit: Commit) -> None:
        await self._call("create", lambda: self.database.create(commit))

    async def delete(self, queue_id: str, *, force: bool, act: Act | None = None) -> None:
        await self._call("delete", lambda: self.database.delete(queue_id, force=force, act=act))

    async def find(self, name: str) -> str | None:
        return await self._call("find", lambda: self.database.find(name))

    async def list(
        self, limit: int, after: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> Sequence[QueueRow]:
        return await self._call("list", lambda: self.database.list(limit, after, patterns))

    async def load(self, queue_id: str) -> Queue:
        return await self._call("load", lambda: self.database.load(queue_id))

    async def revisions(self, queue_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._call("revisions", lambda: self.database.revisions(queue_ids))

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        return await self._call(
            "entries_after", lambda: self.database.entries_after(queue_id, revision, limit)
        )

    async def changes_after(self, queue_id: str, revision: int, limit: int) -> Sequence[ShownEntry]:
        return await self._call(
            "changes_after", lambda: self.database.changes_after(queue_id, revision, limit)
        )

    async def history(self, queue_id: str, limit: int, before: int | None) -> Sequence[ShownEntry]:
        return await self._call("history", lambda: self.database.history(queue_id, limit, before))

    async def client_names(self, flow_ids: Sequence[str]) -> Mapping[str, str]:
        return await self._call("client_names", lambda: self.database.client_names(flow_ids))

    async def commit(self, commit: Commit) -> Positions:
        return await self._call("commit", lambda: self.database.commit(commit))

    async def expiries(self, queue_id: str) -> Expiry:
        return await self._call("expiries", lambda: self.database.expiries(queue_id))

    async def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        return await self._call("renew", lambda: self.database.renew(flow_ids))

    async def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> Committed:
        return await self._call(
            "commit_positions", lambda: self.database.commit_positions(items, shown)
        )

    async def positions(self, queue_id: str, partitions: Sequence[int] | None = None) -> Positions:
        return await self._call("positions", lambda: self.database.positions(queue_id, partitions))

    async def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        return await self._call("leases", lambda: self.database.leases(flow_ids))

    async def flow_rows(self, flow_ids: Sequence[str]) -> Mapping[str, FlowRow]:
        return await self._call("flow_rows", lambda: self.database.flow_rows(flow_ids))

    async def outages(self, after: int) -> Sequence[Outage]:
        return await self._call("outages", lambda: self.database.outages_after(after))

    async def due(self, limit: int) -> Sequence[str]:
        return await self._call("due", lambda: self.database.due(limit))

    async def purge(self, flows_before: float, records_before: float) -> None:
        await self._call("purge", lambda: self.database.purge(flows_before, records_before))

    async def notify(self, queue_ids: Sequence[str]) -> None:
        try:
            await self._call("notify", lambda: self._notify(queue_ids))
        except StoreUnavailable:
            return

    def _notify(self, queue_ids: Sequence[str]) -> None:
        for listener in self.database.listeners:
            listener.heard(self, queue_ids)

    async def listen(self) -> AsyncIterator[Sequence[str] | None]:
        listening = _Listening(self)
        self._listening.append(listening)
        self.database.listeners.append(listening)
        try:
            while True:
                yield await listening.next()
        finally:
            self._listening.remove(listening)
            self.database.listeners.remove(listening)

    def interrupt(self) -> None:
        """Breaks this replica's `listen`: pending notifications are lost, and None says so."""
        for listening in self._listening:
            listening.miss()

    async def _call(self, method: str, work: Callable[[], T]) -> T:
        fault = await self.hook(method) if self.hook else None
        if fault is None:
            return work()
        if fault is Fault.UNKNOWN:
            with contextlib.suppress(StoreError):
                work()
        raise StoreUnavailable(f"{method}: {fault.value}")


class _Listening:
    """The notifications of a replica that it has not fetched; at first, that it may have missed
    some.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._queue_ids: dict[str, None] = {}
        self._something = asyncio.Event()
        self.miss()

    def heard(self, speaker: object, queue_ids: Sequence[str]) -> None:
        if speaker is not self._store and queue_ids:
            self._queue_ids.update(dict.fromkeys(queue_ids))
            self._something.set()

    def miss(self) -> None:
        self._missed = True
        self._something.set()

    async def next(self) -> Sequence[str] | None:
        await self._something.wait()
        self._something.clear()
        queue_ids = None if self._missed else tuple(self._queue_ids)
        self._missed = False
        self._queue_ids.clear()
        return queue_ids
