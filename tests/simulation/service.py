"""The service of the simulation: real replicas on the real database in memory, with faults between.

A `Node` is one replica's process: it can crash, freeze and lose its connection to the database.
`Observed` is the database; it reports each transaction to the checker of its queue.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from broker.core.commands import Quota
from broker.core.errors import BrokerError
from broker.core.queue import Queue
from broker.core.records import (
    CutsTaken,
    Record,
    RevokesStarted,
    WarmupsEnded,
)
from broker.replica.replica import Replica
from broker.service import Calls
from broker.store.ports import (
    Commit,
    Overdue,
    PositionCommit,
    PositionOutcomes,
    Positions,
    StoreError,
    StoreUnavailable,
)
from broker.testing.loop import VirtualLoop
from broker.testing.process import Process, VirtualAlarms
from broker.testing.store import Fault
from tests.simulation.account import Transaction
from tests.simulation.checker import Checker
from tests.simulation.faraway import FarLogs
from tests.simulation.plan import BUILTIN, Config
from tests.world.log import Log, Logs
from tests.world.store import Database, Store, Way

# The queue of a run, and one that reads its log, too, in some of the runs.
QUEUE, FOLLOWER = "orders", "copy"
UPKEEP_SECONDS = 4.0
# How long an administrator's failed call and a failed commit take.
REFUSED_SECONDS = 0.05


class Observed(Database):
    """The database; it reports each transaction to the checker of its queue and to `wrote`."""

    def __init__(self, loop: VirtualLoop, checkers: Mapping[str, Checker]) -> None:
        """`checkers`: by the name of the queue."""
        super().__init__(loop)
        self.checkers = checkers
        # By the id of the queue.
        self._watched: dict[str, Checker] = {}
        self.records: Counter[str] = Counter()
        # What else was committed that must occur.
        self.met: Counter[str] = Counter()
        # Each is called once, when the next handoffs begin.
        self.on_handoffs: list[Callable[[], None]] = []
        self.wrote: Callable[[Sequence[Record]], None] | None = None

    def pulse(self, gap_seconds: float) -> Any:
        pulse = super().pulse(gap_seconds)
        for checker in self.checkers.values():
            checker.pulsed(self.clock())
        return pulse

    def _write(self, commit: Commit, stored: Any) -> None:
        super()._write(commit, stored)
        numbers = {partition.number for partition in commit.partitions}
        touched = {write.partition for write in commit.writes} | commit.positions.keys()
        touched |= commit.first_positions.keys()
        # Of a partition that is gone only the last word of its owner is known.
        last = {write.partition: (write.position, None) for write in commit.writes}
        positions = {number: stored.positions.get(number, last.get(number)) for number in touched}
        for entry in commit.entries:
            self.records.update(type(record).__name__ for record in entry.records)
            self.met.update(_of_resizes(commit.queue, entry.records))
            if self.wrote is not None:
                self.wrote(entry.records)
        checker = self._watched[commit.queue.id] = self.checkers[commit.queue.name]
        checker.committed(
            Transaction(
                self.clock(),
                [entry.revision for entry in commit.entries],
                stored.row,
                [stored.partitions[number] for number in sorted(numbers - commit.removed.keys())],
                [self.flows[flow.id].values for flow in commit.flows],
                commit.left,
                commit.renewed,
                {number: at[0] for number, at in sorted(positions.items()) if at is not None},
                commit.positions.keys(),
                {number: (key, parents) for number, key, parents in commit.children},
                sorted(commit.removed),
                {number: stored.done_above.get(number) for number in positions},
            )
        )
        if self.on_handoffs and begins_handoffs(commit):
            begun, self.on_handoffs = self.on_handoffs, []
            for callback in begun:
                callback()

    def commit(self, commit: Commit) -> Positions:
        try:
            return super().commit(commit)
        except Overdue:
            self._watched[commit.queue.id].came_late(self.clock())
            raise

    def renew(self, flow_ids: Sequence[str]) -> Any:
        leases = super().renew(flow_ids)
        for checker in self.checkers.values():
            checker.renewed(leases, self.clock())
        return leases

    def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> PositionOutcomes:
        results = super().commit_positions(items, shown)
        for item in items:
            stored = self.queues.get(item.queue_id)
            if stored is not None and item.partition in stored.positions:
                position = stored.positions[item.partition][0]
                checker = self._watched[item.queue_id]
                above = stored.done_above.get(item.partition)
                checker.committed_positions({item.partition: position}, {item.partition: above})
        return results


def _of_resizes(queue: Queue, records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if isinstance(record, CutsTaken) and record.cuts and queue.name == FOLLOWER:
            yield "cuts of a follower"


def begins_handoffs(commit: Commit) -> bool:
    """Whether the commit revokes partitions."""
    records = (record for entry in commit.entries for record in entry.records)
    return any(isinstance(record, RevokesStarted | WarmupsEnded) for record in records)


class Road(Way):
    """A replica's connection to the database, under the present weather."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._crashes = False

    async def there(self, method: str) -> Fault | None:
        node, weather = self.node, self.node.weather
        luck = node.rng.random()
        delay = node.latency()
        if delay:
            await node.loop.sleep(delay)
            await node.alive()
        away = node.cut or weather.away or (weather.mute and method != "pulse")
        if away or luck < weather.refuses:
            return Fault.LOST
        fate = None
        if method == "commit" and node.next_commit is not None:
            fate, node.next_commit = node.next_commit, None
            node.disturbed(0.0)
        if fate == "crash before":
            node.crash()
        self._crashes = fate == "crash after"
        unknown = self._crashes or fate == "unknown" or luck > 1.0 - weather.forgets
        return Fault.UNKNOWN if unknown else None

    async def failed(self, method: str, fault: Fault) -> None:
        if self._crashes and fault is Fault.UNKNOWN:
            self.node.crash()
        else:
            await self.node.loop.sleep(REFUSED_SECONDS)

    async def back(self, method: str) -> None:
        delay = self.node.latency()
        if delay:
            await self.node.loop.sleep(delay)

    def notices(self) -> Iterator[float]:
        node, weather = self.node, self.node.weather
        fate = node.rng.random()
        if fate >= weather.notify_lost:
            for _ in range(2 if fate > 1.0 - weather.doubles else 1):
                yield node.latency() * (1 + 10 * (fate > 0.9))


class Stalling(Store):
    """A store that delays a commit that begins handoffs, if the weather says so."""

    process: Node

    async def commit(self, commit: Commit) -> Positions:
        node, weather = self.process, self.process.weather
        if weather.stall_seconds and begins_handoffs(commit):
            seconds, weather.stall_seconds = weather.stall_seconds, 0.0
            node.disturbed(seconds)
            await node.loop.sleep(seconds)
            if self.database.queues[commit.queue.id].row["revision"] == commit.seen:
                node.on_stalled()
        return await super().commit(commit)


class Weather:
    """The present faults between processes. Probabilities are per message."""

    def __init__(self) -> None:
        # `mute`: the database answers nothing but the time.
        self.away = self.mute = False
        self.slow = 1.0
        # How long the next commit that begins handoffs takes.
        self.stall_seconds = 0.0
        self.refuses = self.forgets = 0.0
        # Whether the log answers no replica.
        self.log_away = False
        self.lost = self.doubles = self.notify_lost = 0.0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class Node(Process):
    """One replica's process, from its start to its end. A restart makes a new node."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        loop: VirtualLoop,
        database: Observed,
        log: Log,
        weather: Weather,
        config: Config,
        new_id: Callable[[], str],
    ) -> None:
        origin_seconds = rng.random() * 1e5
        super().__init__(loop, origin_seconds, 1.0 + config.drift * (2 * rng.random() - 1))
        self.name, self.rng = name, rng
        self.weather, self.config = weather, config
        self.cut = False
        self.next_commit: str | None = None
        # The fate of the next call to the log: a crash before it or after it.
        self.next_log_call: str | None = None
        self.on_stalled: Callable[[], None] = lambda: None
        # Requests of administrators that it is working on, with their queues.
        self.asked: set[tuple[str, int]] = set()
        # How long it stays away after a crash.
        self.away_seconds = 1.0
        self.on_crash: Callable[[Node], None] = lambda node: None
        self.disturbed: Callable[[float], None] = lambda seconds: None
        self.ready = False
        self.store = Stalling(database, self, Road(self))
        self.alarms = VirtualAlarms(self)
        self.replica = Replica(self.store, self.alarms, new_id, self.now)
        logs = {config.settings.get("log", BUILTIN): log}
        quota = None if config.moves is None else Quota(1000, 0, config.moves)
        shown = FarLogs(logs, self) if config.reshapes else Logs(logs)
        self.calls = Calls(self.replica, shown, quota)
        loop.create_task(self._begin())

    async def _begin(self) -> None:
        while True:
            try:
                await self.replica.start()
                break
            except StoreUnavailable:
                await self.loop.sleep(0.5)
                await self.alive()
        self.ready = True
        self.alarms.every("upkeep", UPKEEP_SECONDS, self.upkeep)

    async def upkeep(self) -> None:
        """Like `Broker.upkeep`, as far as logs are concerned."""
        with suppress(BrokerError, StoreError):
            await self.calls.log_upkeep.maintain()

    def crash(self) -> None:
        """The process ends at once."""
        if not self.dead:
            self.die()
            self.alarms.stop()
            self.on_crash(self)

    async def stop(self) -> None:
        """The process shuts down in order."""
        await self.replica.stop()
        self.crash()

    def latency(self) -> float:
        """Of one message to the database or to a client, in seconds."""
        least, most, often = self.config.latency
        rng = self.rng
        if rng.random() >= often:
            return 0.0
        return (least + (most - least) * rng.random()) * self.weather.slow
