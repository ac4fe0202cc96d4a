"""Replicas of the broker on one database in memory, in a virtual world.

A `World` has the database and the replicas. Each replica has a `Net` between it and the database. A
`Net` can lose calls or answers, hold calls until a test releases them, and suppress notifications.
Tests run under `broker.testing.loop.virtual`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import UNSET

from broker.calls.bound_flows import BoundFlow
from broker.core.access import Caller
from broker.core.queue import Queue
from broker.replica.replica import Replica
from broker.service import Calls
from broker.store.ports import StoreError
from broker.testing.loop import running, settle
from broker.testing.process import Process, VirtualAlarms
from broker.testing.store import Fault
from counterpoise import wire
from tests.world.log import Logs
from tests.world.store import Database, Store, Way, picture

P = ParamSpec("P")
T = TypeVar("T")


class Net(Way):
    """The network between a replica and the database, controlled by the test."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, list[Fault]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.arrived: dict[str, asyncio.Event] = {}
        self.away = False
        self.before: Callable[[str], Awaitable[Fault | None]] | None = None

    def fail(self, method: str, fault: Fault, times: int = 1) -> None:
        """The next calls of this method fail."""
        self.faults.setdefault(method, []).extend([fault] * times)

    def hold(self, method: str) -> asyncio.Event:
        """Calls of this method wait until the event is set; `met` waits for the first of them."""
        self.arrived[method] = asyncio.Event()
        self.gates[method] = asyncio.Event()
        return self.gates[method]

    async def met(self, method: str) -> None:
        """Waits until a call waits at the gate."""
        await self.arrived[method].wait()

    async def there(self, method: str) -> Fault | None:
        self.calls[method] += 1
        gate = self.gates.get(method)
        if gate is not None and not gate.is_set():
            self.arrived[method].set()
            await gate.wait()
        if self.before is not None:
            fault = await self.before(method)
            if fault is not None:
                return fault
        if self.away:
            return Fault.LOST
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else None


class ReplicaCalls:
    """The calls of a replica by short names, because tests make many.

    Those of flows find the flow first, by its id and the name of its queue.
    """

    def __init__(self, replica: Replica, logs: Logs) -> None:
        calls = self.calls = Calls(replica, logs)
        self.create_queue = calls.queues.create
        self.queue = calls.queues.get
        self.list_queues = calls.queues.list
        self.delete_queue = calls.queues.delete
        self.rebalance_now = calls.queues.rebalance
        self.rebalance_status = calls.monitoring.rebalance_status
        self.rebalances = calls.monitoring.rebalances
        self.partitions = calls.monitoring.partitions
        self.flows = calls.monitoring.flows
        self.events = calls.monitoring.events
        self.set_positions = calls.positions.set
        self.log_access = calls.logs.access
        self.keep_logs = calls.log_upkeep.maintain
        self.bind = calls.flows.bind
        self.authenticate = calls.bound_flows.authenticate
        self.lineage = calls.lineage.graph
        self.add_children = calls.lineage.add_children
        self.unbind = calls.flows.unbind

        flow = calls.bound_flows.of
        self.heartbeat = _on(flow, calls.flows.heartbeat)
        self.commit = _on(flow, calls.commits.commit)
        self.release = _on(flow, calls.flows.release)
        self.ready = _on(flow, calls.flows.ready)
        self.children = _on(flow, calls.flows.children)
        self.drain = _on(flow, calls.flows.drain)
        self.wait_update = _on(flow, calls.updates.wait)

    async def change_queue(
        self,
        name: str,
        changes: Mapping[str, object],
        discard: bool,
        caller: Caller | None = None,
    ) -> wire.Queue:
        """The queue after the change."""
        changed = await self.calls.queues.change(name, changes, discard, caller)
        assert isinstance(changed, wire.Queue)
        return changed

    async def update(self, name: str, flow_id: str) -> wire.Update:
        """The flow's view, with everything that any replica has committed."""
        flow = await self.calls.bound_flows.of(name, flow_id)
        return await self.calls.flow_views.view(flow, fresh=True)

    async def watch(self, name: str, flow_id: str, after: int) -> AsyncIterator[wire.Update]:
        flow = await self.calls.bound_flows.of(name, flow_id)
        async for view in self.calls.updates.watch(flow, after):
            yield view


def _on(
    find: Callable[[str, str], Awaitable[BoundFlow]],
    call: Callable[Concatenate[BoundFlow, P], Awaitable[T]],
) -> Callable[Concatenate[str, str, P], Coroutine[Any, Any, T]]:
    """A call of a flow by the name of its queue and its id."""

    async def on(name: str, flow_id: str, /, *args: P.args, **options: P.kwargs) -> T:
        return await call(await find(name, flow_id), *args, **options)

    return on


class Service(ReplicaCalls):
    """A replica of the service, with the objects that tests inspect."""

    def __init__(self, world: World) -> None:
        self.net = Net()
        self.process = Process(running(), origin_seconds=next(world.numbers) * 1000.0)
        self.database = Store(world.database, self.process, self.net)
        self.alarms = VirtualAlarms(self.process)
        self.logs = Logs()
        self.replica = Replica(
            self.database,
            self.alarms,
            lambda: f"commit-{next(world.numbers)}",
            self.process.now,
        )
        super().__init__(self.replica, self.logs)

    def memory(self, queue_id: str) -> Queue | None:
        """The queue in this replica's memory."""
        coordinator = self.replica._coordinators.get(queue_id)
        return coordinator.queue if coordinator else None

    async def join(self, name: str, who: str, *, lease: float = 10.0, warmup: bool = False) -> str:
        """Binds a flow; returns its id."""
        bound = await self.bind(name, f"client {who}", f"i-{who}", lease, warmup)
        return bound.flow_id

    async def view(self, name: str, flow_id: str) -> dict[int, tuple[int, str]]:
        """(epoch, state) by partition, from the flow's view."""
        update = await self.update(name, flow_id)
        return {p.partition: (p.epoch, p.state) for p in update.partitions}


class World:
    """A database and the replicas of a service on it."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.database = Database(running())
        self.services: list[Service] = []

    @property
    def now(self) -> float:
        return self.database.clock()

    async def replica(self) -> Service:
        """Starts one more replica."""
        service = Service(self)
        await service.replica.start()
        await settle()
        self.services.append(service)
        return service

    def kill(self, service: Service) -> None:
        """The replica's process dies: none of its calls reach the database any more."""
        service.net.away = True
        service.alarms.stop()
        self.services.remove(service)

    def stored(self, name: str) -> tuple[str, Queue]:
        """The queue in the database."""
        queue_id = self.database.find(name)
        assert queue_id is not None
        return queue_id, self.database.load(queue_id)

    def check(self, name: str) -> Queue:
        """The stored queue; the memory of every up-to-date replica must equal it."""
        queue_id, stored = self.stored(name)
        for service in self.services:
            memory = service.memory(queue_id)
            if memory is not None and memory.revision == stored.revision:
                assert picture(memory) == picture(stored)
        return stored


def unreadable(one: Service, queue: wire.Queue, error: StoreError) -> None:
    """This queue cannot be loaded by the replica any more."""
    load = one.database.load

    async def loads(queue_id: str) -> Queue:
        if queue_id == queue.id:
            raise error
        return await load(queue_id)

    one.database.load = loads  # type: ignore[method-assign]
    one.replica._coordinators[queue.id].queue = None


def dynamic(name: str = "orders", *keys: str, **settings: Any) -> wire.QueueCreate:
    """A dynamic queue on a log of a kind that the service does not know; root a if none is named.

    It rebalances at once by default.
    """
    more = {"rebalance_delay": 0.0, "log": "stream://elsewhere", **settings}
    roots = tuple(map(wire.Root, keys or ("a",)))
    return wire.QueueCreate(name, partitioning="dynamic", partitions=roots, **more)


def spec(name: str = "orders", partitions: int | None = 4, **settings: Any) -> wire.QueueCreate:
    """A queue that by default rebalances at once, and is resized without order."""
    more = {"rebalance_delay": 0.0, "ordered_resize": False, **settings}
    return wire.QueueCreate(name, UNSET if partitions is None else partitions, **more)
