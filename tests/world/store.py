"""The database of a world, and a replica's connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from broker.core.queue import Queue
from broker.store.ports import StoreError, StoreUnavailable
from broker.store.rows import flow_values, partition_values, queue_values
from broker.testing.database import MemoryDatabase
from broker.testing.loop import VirtualLoop
from broker.testing.process import Process
from broker.testing.store import Fault, MemoryStore

T = TypeVar("T")
# Unix seconds at the start of a world.
EPOCH = 1_700_000_000.0


class Database(MemoryDatabase):
    """The database. Its clock follows the loop's and can be set."""

    def __init__(self, loop: VirtualLoop) -> None:
        # By how many seconds its clock was set since the world began.
        self.clock_set_by = 0.0
        super().__init__(lambda: EPOCH + loop.now + self.clock_set_by)


class Way:
    """What lies between a replica and the database. Here no call ever fails."""

    async def there(self, method: str) -> Fault | None:
        """Waits until the call arrives. Returns how it fails, or None."""
        return None

    async def failed(self, method: str, fault: Fault) -> None:
        """Waits until the caller learns that the call failed."""

    async def back(self, method: str) -> None:
        """Waits until the answer arrives."""

    def notices(self) -> Iterable[float | None]:
        """When a listener is notified, in seconds, None at once; called once per listener.

        A listener is notified as many times as there are values.
        """
        return (None,)


class Store(MemoryStore):
    """One replica's store, where calls can be slow, lost or not answered.

    `deaf`: the replica gets no notifications of other replicas.
    """

    database: Database

    def __init__(self, database: Database, process: Process, way: Way) -> None:
        super().__init__(database)
        self.process, self.way = process, way
        self.deaf = False

    async def listen(self) -> AsyncIterator[Any]:
        async for queue_ids in super().listen():
            if not self.deaf:
                yield queue_ids

    async def _call(self, method: str, work: Callable[[], T]) -> T:
        process, way = self.process, self.way
        await process.alive()
        fault = await way.there(method)
        await process.alive()
        if fault is None:
            result = work()
            await way.back(method)
            await process.alive()
            return result
        if fault is Fault.UNKNOWN:
            with suppress(StoreError):
                work()
        await way.failed(method, fault)
        await process.alive()
        raise StoreUnavailable(f"{method}: {fault.value}")

    def _notify(self, queue_ids: Sequence[str]) -> None:
        for listener in self.database.listeners:
            for seconds in self.way.notices():
                if seconds is None:
                    listener.heard(self, queue_ids)
                else:
                    self.process.loop.call_later(seconds, listener.heard, self, queue_ids)


def picture(queue: Queue) -> Any:
    """All values of a queue, for comparison."""
    return (
        queue_values(queue, queue.next_deadline()),
        sorted(flow_values(flow) for flow in queue.flows.values()),
        [partition_values(queue, partition) for _, partition in sorted(queue.partitions.items())],
    )
