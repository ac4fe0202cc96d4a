"""One replica of the service: the queues it has in memory, and what keeps them up to date.

A queue is loaded when it is first used. After that four things bring it forward: what this replica
commits, what others notify, its alarm, and the **sweep**. Once a second the sweep stamps that a
replica serves. It finds queues with something due (the replica that had them in memory may be dead)
and queues in memory that fell behind (a notification may be lost with its sender).

**Many partitions and the garbage collector.** A full pass of the collector over 100,000 partitions
takes some 100 ms, during which the process serves no queue. The partitions are in no reference
cycle and stay for as long as their queue is used, so the collector does not have to visit them:
what is in memory after many of them came is taken out of its sight (`gc.freeze`). It is still freed
when the last reference goes. Garbage in cycles would stay for ever, so it is collected before: one
pass over what came since the last time. What is open at that moment must leave no cycle when it
ends: connections, streams, polls, and the coordinators of queues.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import structlog

from broker.core.errors import QueueNotFound
from broker.core.queue import Queue
from broker.core.records import CutsAwaited, Entry
from broker.postgres.checks import REPORTER
from broker.replica.alarms import Alarms
from broker.replica.clock import StoreClock
from broker.replica.coordinator import Coordinator
from broker.replica.events import EventCounters, EventLog
from broker.replica.renewals import Renewals
from broker.replica.store_calls import Answer, Batcher, Item, store_available
from broker.store.ports import Store, StoreUnavailable
from broker.tracing import Traces, traces
from counterpoise.lease_time import lease_time

_log = structlog.get_logger()

SWEEP_SECONDS = 1.0
MOST_DUE = 1000
IDLE_SECONDS = 600.0
# So many partitions that came are taken out of the garbage collector's sight.
MANY = 10_000


class Replica:
    """Coordinators by queue."""

    def __init__(
        self,
        store: Store,
        alarms: Alarms,
        new_id: Callable[[], str],
        monotonic: Callable[[], float] = lease_time,
    ) -> None:
        """`new_id` makes ids that are never made again; `monotonic` gives seconds."""
        self.store = store
        self.clock = StoreClock(monotonic)
        self.tally = EventCounters()
        self._event_log = EventLog()
        # How many partitions each queue had when it was last taken out of the collector's sight.
        self._known: WeakKeyDictionary[Queue, int] = WeakKeyDictionary()
        self._came = 0
        self._alarms = alarms
        self._new_id = new_id
        self.monotonic = monotonic
        self._ids: dict[str, str] = {}
        self._batchers: list[Batcher[Any, Any]] = []
        self._finds = self.batcher(self._find)
        self._coordinators: dict[str, Coordinator] = {}
        self._used: dict[str, float] = {}
        self.renewals = Renewals(store)
        self._traces: Traces | None = None
        self._to_notify: set[str] = set()
        self._outage_id = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifying: asyncio.Task[None] | None = None
        self.stopping = False
        # Takes the cuts that are due from the log of a queue, by its name.
        self.settle_cuts: Callable[[str], Coroutine[Any, Any, None]] = _no_logs

    async def start(self) -> None:
        """Begins to serve. Raises StoreUnavailable."""
        self._traces = traces(self.store)
        await self.store.start()
        self._alarms.start()
        await self._sweep()
        self._alarms.every("sweep", SWEEP_SECONDS, self.sweep)
        self._spawn(self._listen())

    async def stop(self) -> None:
        """Finishes what is under way and stops.

        What is not done by then is somebody else's, or for the next start.
        """
        self.stopping = True
        for coordinator in self._coordinators.values():
            coordinator.notifier.end()
        self._alarms.stop()
        await self._alarms.finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(c.stop() for c in self._coordinators.values()))
        await asyncio.gather(self.renewals.finish(), *(one.finish() for one in self._batchers))
        if self._notifying is not None:
            await asyncio.wait([self._notifying], timeout=1)
            self._notifying.cancel()
        await self.store.stop()

    def batcher(
        self, call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], most: int = 1000
    ) -> Batcher[Item, Answer]:
        """A batcher of calls of the store. They outlast callers that give up, but not `stop`."""
        made = Batcher(call, most)
        self._batchers.append(made)
        return made

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Queues

    async def coordinator(self, name: str) -> Coordinator:
        """The coordinator of the queue of this name. Raises QueueNotFound, Unavailable."""
        queue_id = self._ids.get(name)
        if queue_id is None:
            found = await self._finds.put(name)
            if found is None:
                raise QueueNotFound(name)
            queue_id = self._ids[name] = found
        return self._of(queue_id, name)

    async def _find(self, names: Sequence[str]) -> Sequence[str | None]:
        """Each name once, however many call for its queue together."""
        with store_available():
            found = {name: await self.store.find(name) for name in dict.fromkeys(names)}
        return [found[name] for name in names]

    def known(self, name: str) -> Coordinator | None:
        """As `coordinator`, if the name is known here."""
        queue_id = self._ids.get(name)
        return None if queue_id is None else self._of(queue_id, name)

    def _of(self, queue_id: str, name: str = "") -> Coordinator:
        coordinator = self._coordinators.get(queue_id)
        if coordinator is None:
            coordinator = self._coordinators[queue_id] = Coordinator(
                queue_id,
                name,
                self.store,
                self.clock,
                self._alarms,
                self.renewals,
                self._new_id,
                self._changed,
                self._committed,
                self._traces,
            )
        elif name:
            coordinator.name = name
        self._used[queue_id] = self.monotonic()
        return coordinator

    def _committed(self, coordinator: Coordinator, entries: Sequence[Entry]) -> None:
        name = coordinator.name or coordinator.queue_id
        if any(map(_awaits_cuts, entries)) and not self.stopping:
            self._spawn(self.settle_cuts(name))
        self.tally.note(name, entries)
        self._event_log.note(name, entries)

    def coordinator_of(self, queue_id: str, name: str = "") -> Coordinator:
        """The coordinator of the queue with this id, which may be gone; `name` as far as known."""
        return self._of(queue_id, name)

    def loaded(self) -> list[Coordinator]:
        """The coordinators of the queues in memory, which are as last known."""
        return [one for one in self._coordinators.values() if one.queue is not None]

    def adopt(self, queue: Queue) -> None:
        """A queue that was just created here, which will be used soon."""
        self._ids[queue.name] = queue.id
        self._of(queue.id, queue.name).adopt(queue)

    def forget_name(self, name: str) -> None:
        """The name may mean another queue now, or none."""
        self._ids.pop(name, None)

    def _drop(self, queue_id: str) -> None:
        self._coordinators.pop(queue_id, None)
        self._used.pop(queue_id, None)
        for name in [name for name, known in self._ids.items() if known == queue_id]:
            del self._ids[name]
        self._alarms.set(queue_id, None, _nothing)

    def _changed(self, coordinator: Coordinator, ours: bool) -> None:
        if coordinator.gone:
            name, queue_id = coordinator.name or coordinator.queue_id, coordinator.queue_id
            # Its name may be another queue's already.
            if self._ids.get(name, queue_id) == queue_id:
                self.tally.queues.forget(name)
            self._drop(queue_id)
        elif ours:
            self.notify(coordinator.queue_id)
        queue = coordinator.queue
        if queue is None:
            return
        came = len(queue.partitions) - self._known.get(queue, 0)
        if not came:
            return
        self._known[queue] = len(queue.partitions)
        self._came += came
        if self._came >= MANY:
            self._came = 0
            gc.collect()
            gc.freeze()

    # Other replicas

    def notify(self, queue_id: str) -> None:
        """Tells the other replicas soon that a queue changed."""
        self._to_notify.add(queue_id)
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._to_notify:
            queue_ids, self._to_notify = sorted(self._to_notify), set()
            with suppress(StoreUnavailable):  # The sweep of the others finds it.
                await self.store.notify(queue_ids)

    async def _listen(self) -> None:
        async for queue_ids in self.store.listen():
            for queue_id in list(self._coordinators) if queue_ids is None else queue_ids:
                coordinator = self._coordinators.get(queue_id)
                if coordinator is not None:
                    coordinator.catch_up()

    async def sweep(self) -> None:
        """What has to be done once a second whether anything happens or not."""
        try:
            await self._sweep()
        except StoreUnavailable as error:
            REPORTER.report(str(error), error.code)

    async def _sweep(self) -> None:
        pulse = await self.clock.read(self.store)
        if pulse.outage is not None and pulse.outage.id != self._outage_id:
            self._outage_id = pulse.outage.id
            if pulse.outage.seconds < 0:
                _log.warning("the database's clock went back", seconds=-pulse.outage.seconds)
            for coordinator in list(self._coordinators.values()):
                # The alarm was set by the time as it was.
                coordinator.ring()
        for queue_id in await self.store.due(MOST_DUE):
            coordinator = self._of(queue_id)
            # What is due may be in commits of which no notice came.
            coordinator.catch_up()
            coordinator.advance()
        await self._find_missed()
        self._evict()

    async def _find_missed(self) -> None:
        """Queues that were committed to elsewhere, and watched ones that are to be loaded anew."""
        known = {
            queue_id: -1 if coordinator.queue is None else coordinator.queue.revision
            for queue_id, coordinator in self._coordinators.items()
            if coordinator.idle and (coordinator.queue is not None or coordinator.notifier.watches)
        }
        if not known:
            return
        stored = await self.store.revisions(sorted(known))
        for queue_id, revision in known.items():
            coordinator = self._coordinators.get(queue_id)
            if coordinator is not None and stored.get(queue_id) != revision:
                coordinator.catch_up()

    def _evict(self) -> None:
        """Forgets queues that nobody has used for a while and that wait for nothing.

        Should a lease end in one, the sweep finds it.
        """
        horizon = self.monotonic() - IDLE_SECONDS
        for queue_id, used in list(self._used.items()):
            coordinator = self._coordinators[queue_id]
            needed = coordinator.waits or coordinator.notifier.watches
            if used < horizon and coordinator.idle and not needed:
                self._drop(queue_id)


def _awaits_cuts(entry: Entry) -> bool:
    """Whether cuts are due (`broker.core.cuts`); the call that resizes reads the first itself."""
    return any(isinstance(one, CutsAwaited) and one.attempt > 0 for one in entry.records)


async def _no_logs(_queue: str) -> None:
    """Nobody knows the logs."""


def _nothing() -> None:
    """What rings when no alarm is set."""
