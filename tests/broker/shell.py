"""The shell of the broker under a clock that tests move: replicas on one database in memory.

`@virtual` runs an async test on an event loop whose time passes only when nothing else is left to
do, and then at once: a test that waits an hour takes a millisecond, alarms and timeouts come in
their order, and a wait for something that will never happen fails at once instead of hanging.

A `World` has the database and the replicas. Each replica's `Net` is what is between it and the
database: it can be slow, lose calls or answers, hold calls until told, and notifications can be
kept from arriving.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from broker.calls import views
from broker.calls.facade import Calls
from broker.core.errors import BrokerError
from broker.core.queue import Queue
from broker.logs.ports import LogOwner, Logs, Positions
from broker.replica import Replica
from broker.store.memory import Fault, MemoryDatabase, MemoryStore
from broker.store.rows import flow_values, partition_values, queue_values

EPOCH = 1_700_000_000.0
# No test plays longer than this, in seconds: it waits for what will never happen.
LONGEST = 50_000.0


class Stuck(RuntimeError):
    """Everybody waits, and nothing will ever happen."""


class _Selector(selectors.DefaultSelector):
    """Lets the loop's time pass instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None or self.loop.passed > self.loop.longest:
                # What is cancelled now gets as long again to end.
                self.loop.longest += LONGEST
                raise Stuck
            self.loop.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.longest = LONGEST
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.passed


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def freeze(seconds: float) -> None:
    """Nobody runs for so long: all processes are frozen, the database's clock goes on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.passed += seconds


async def settle(rounds: int = 200) -> None:
    """Lets everybody run who can, without any time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class LoopAlarms:
    """Alarms by the event loop's time. `on` False: they never ring, only the sweep comes."""

    def __init__(self) -> None:
        self.on = True
        self.rung: Counter[str] = Counter()
        self._handles: dict[str, asyncio.TimerHandle] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        for task in self._tasks:
            task.cancel()

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        known = self._handles.pop(key, None)
        if known is not None:
            known.cancel()
        if delay_seconds is not None and self.on:
            loop = asyncio.get_running_loop()
            self._handles[key] = loop.call_later(max(0.0, delay_seconds), self._ring, key, callback)

    def _ring(self, key: str, callback: Callable[[], None]) -> None:
        self._handles.pop(key, None)
        self.rung[key] += 1
        callback()

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(seconds)
                await callback()

        self._tasks.append(asyncio.ensure_future(again()))

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(self._handles)


class Net:
    """What is between a replica and the database; the hook of its store."""

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
        """Calls of this method wait until the event is set; `met` tells when one does."""
        self.arrived[method] = asyncio.Event()
        self.gates[method] = asyncio.Event()
        return self.gates[method]

    async def met(self, method: str) -> None:
        """Waits until somebody waits at the gate."""
        await self.arrived[method].wait()

    async def __call__(self, method: str) -> Fault | None:
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


class Store(MemoryStore):
    """A replica's store. `deaf`: it hears of no other replica's changes."""

    deaf = False

    async def listen(self) -> AsyncIterator[Any]:
        async for queue_ids in super().listen():
            if not self.deaf:
                yield queue_ids


class House:
    """Stands for the logs: remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.error: BrokerError | None = None
        self.topics: dict[str, int] = {}
        self.ended: dict[int, str] = {}

    async def access(self, log: str, purpose: str) -> None:
        if self.error is not None:
            raise self.error

    async def ensure(self, log: str, partition_count: int, owner: LogOwner) -> None:
        self.told.append(("ensure", log, partition_count, owner))

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Iterable[int] = (),
    ) -> None:
        self.told.append(("set_partition_count", log, partition_count, sorted(discard)))

    async def drop(self, log: str, owner: LogOwner) -> None:
        self.told.append(("drop", log))

    async def partition_count(self, log: str) -> int:
        """How many partitions a topic has."""
        if self.error is not None:
            raise self.error
        return self.topics[log]

    async def positions(self, log: str, where: object) -> Mapping[int, str]:
        """There are no messages."""
        return {}

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Any]:
        """The log does not say where it ends."""
        return {}

    async def ends(self, log: str, partitions: Iterable[int]) -> Mapping[int, str]:
        """Where these partitions end, as far as a test says it."""
        return {number: self.ended[number] for number in partitions if number in self.ended}

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Iterable[Positions],
    ) -> None:
        self.told.append(("maintain", log, partition_count, list(committed)))


class Shortcuts:
    """The calls of a replica, under names of their own: tests make many."""

    def __init__(self, replica: Replica, logs: Logs) -> None:
        calls = Calls(replica, logs)
        self.rows = calls.flows._rows
        self.create_queue = calls.queues.create
        self.queue = calls.queues.get
        self.list_queues = calls.queues.list
        self.change_queue = calls.queues.change
        self.delete_queue = calls.queues.delete
        self.rebalance_now = calls.queues.rebalance
        self.rebalance_status = calls.monitoring.rebalance_status
        self.rebalances = calls.monitoring.rebalances
        self.partitions = calls.monitoring.partitions
        self.flows = calls.monitoring.flows
        self.events = calls.monitoring.events
        self.set_positions = calls.logs.set_positions
        self.log_access = calls.logs.access
        self.keep_logs = calls.logs.maintain
        self.bind = calls.flows.bind
        self.authenticate = calls.flows.authenticate
        self.heartbeat = calls.flows.heartbeat
        self.commit = calls.flows.commit
        self.release = calls.flows.release
        self.ready = calls.flows.ready
        self.drain = calls.flows.drain
        self.unbind = calls.flows.unbind
        self.update = calls.updates.get
        self.wait_update = calls.updates.wait
        self.watch = calls.updates.watch


class Service(Shortcuts):
    """A replica of the service, with what tests look at."""

    def __init__(self, world: World) -> None:
        self.net = Net()
        self.database = Store(world.database, hook=self.net)
        self.alarms = LoopAlarms()
        self.house = House()
        loop = asyncio.get_running_loop()
        # A replica's own clock has nothing to do with the database's.
        origin = next(world.numbers) * 1000.0
        self.replica = Replica(
            self.database,
            self.alarms,
            lambda: f"commit-{next(world.numbers)}",
            lambda: loop.time() - origin,
        )
        super().__init__(self.replica, self.house)

    def memory(self, queue_id: str) -> Queue | None:
        """The queue as this replica has it in memory."""
        coordinator = self.replica._coordinators.get(queue_id)
        return coordinator.queue if coordinator else None

    async def join(self, name: str, who: str, *, lease: float = 10.0, warmup: bool = False) -> str:
        """Binds a flow; its id."""
        bound = await self.bind(name, f"client {who}", f"i-{who}", lease, warmup)
        return bound.flow_id

    async def view(self, name: str, flow_id: str) -> dict[int, tuple[int, str]]:
        """(epoch, state) by partition, as the flow is told."""
        update = await self.update(name, flow_id)
        return {p.partition: (p.epoch, p.state) for p in update.partitions}


class World:
    """A database and the replicas of a service on it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.numbers = itertools.count(1)
        # By how much the database's clock was set since.
        self.clock_set_by = 0.0
        self.database = MemoryDatabase(lambda: EPOCH + loop.time() + self.clock_set_by)
        self.services: list[Service] = []

    @property
    def now(self) -> float:
        return self.database.clock()

    async def replica(self) -> Service:
        """One more replica."""
        service = Service(self)
        await service.replica.start()
        await settle()
        self.services.append(service)
        return service

    def kill(self, service: Service) -> None:
        """The replica's process dies: nothing of it reaches the database any more."""
        service.net.away = True
        service.alarms.stop()
        self.services.remove(service)

    def stored(self, name: str) -> tuple[str, Queue]:
        """The queue as the database has it."""
        queue_id = self.database.find(name)
        assert queue_id is not None
        return queue_id, self.database.load(queue_id)

    def check(self, name: str) -> Queue:
        """The queue, which every replica that is up to date must have in memory as it is stored."""
        queue_id, stored = self.stored(name)
        for service in self.services:
            memory = service.memory(queue_id)
            if memory is not None and memory.revision == stored.revision:
                assert picture(memory) == picture(stored)
        return stored


def picture(queue: Queue) -> Any:
    """Everything there is of a queue, to be compared."""
    return (
        queue_values(queue, queue.next_deadline()),
        sorted(flow_values(flow) for flow in queue.flows.values()),
        [partition_values(queue, partition) for partition in queue.partitions],
    )


def spec(name: str = "orders", partitions: int = 4, **settings: Any) -> views.QueueSpec:
    """A queue that rebalances at once, unless told otherwise."""
    return views.QueueSpec(name, partitions, **{"rebalance_delay": 0.0, **settings})
