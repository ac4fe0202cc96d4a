"""The service of the simulation: real replicas on the real database in memory, and what is between.

A `Node` is one replica's process: it can crash, freeze and be cut off from the database. `Observed`
is the database, which tells the checker of each transaction. `serve` stands for the routes of the
API: it makes a call of the service from what a client sent, and JSON values from the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from broker.calls import views
from broker.calls.facade import Calls
from broker.core.errors import BrokerError, FlowGone
from broker.core.records import Record, RevokesStarted, WarmupsEnded
from broker.logs.ports import LogOwner, Positions
from broker.logs.trimming import trim_floor
from broker.replica import Replica
from broker.store.memory import MemoryDatabase, MemoryStore
from broker.store.ports import Commit, Overdue, PositionCommit, StoreError, StoreUnavailable
from counterpoise.calls import Call
from tests.simulation.checker import Checker, Transaction
from tests.simulation.loop import SimLoop
from tests.simulation.plan import Config

T = TypeVar("T")
EPOCH = 1_700_000_000.0
QUEUE = "orders"
UPKEEP_SECONDS = 4.0
# An administrator's call and a commit that fails take this long.
REFUSED_SECONDS = 0.05


class Observed(MemoryDatabase):
    """The database; each transaction is told to the checker and to `wrote`."""

    def __init__(self, loop: SimLoop, checker: Checker) -> None:
        # By how much its clock was set since.
        self.clock_set_by = 0.0
        super().__init__(lambda: EPOCH + loop.now + self.clock_set_by)
        self.checker = checker
        self.records: Counter[str] = Counter()
        # Called once, when handoffs begin.
        self.on_handoffs: Callable[[], None] | None = None
        self.wrote: Callable[[Sequence[Record]], None] | None = None

    def pulse(self, gap_seconds: float) -> Any:
        pulse = super().pulse(gap_seconds)
        self.checker.pulsed(self.clock())
        return pulse

    def _write(self, commit: Commit, stored: Any) -> None:
        super()._write(commit, stored)
        numbers = {partition.number for partition in commit.partitions}
        touched = {write.partition for write in commit.writes} | commit.positions.keys()
        touched |= commit.first_positions.keys()
        for entry in commit.entries:
            self.records.update(type(record).__name__ for record in entry.records)
            if self.wrote is not None:
                self.wrote(entry.records)
        self.checker.committed(
            Transaction(
                self.clock(),
                [entry.revision for entry in commit.entries],
                stored.row,
                [stored.partitions[number] for number in sorted(numbers)],
                [self.flows[flow.id].values for flow in commit.flows],
                commit.left,
                commit.renewed,
                {number: stored.positions[number][0] for number in sorted(touched)},
                commit.positions.keys(),
            )
        )
        if self.on_handoffs is not None and begins_handoffs(commit):
            begun, self.on_handoffs = self.on_handoffs, None
            begun()

    def commit(self, commit: Commit) -> None:
        try:
            super().commit(commit)
        except Overdue:
            self.checker.came_late(self.clock())
            raise

    def renew(self, flow_ids: Sequence[str]) -> Any:
        leases = super().renew(flow_ids)
        self.checker.renewed(leases, self.clock())
        return leases

    def commit_positions(self, items: Sequence[PositionCommit]) -> Any:
        results = super().commit_positions(items)
        for item in items:
            stored = self.queues.get(item.queue_id)
            if stored is not None and item.partition in stored.positions:
                position = stored.positions[item.partition][0]
                self.checker.committed_positions({item.partition: position})
        return results


def begins_handoffs(commit: Commit) -> bool:
    """Whether owners are told to let go."""
    records = (record for entry in commit.entries for record in entry.records)
    return any(isinstance(record, RevokesStarted | WarmupsEnded) for record in records)


class Log:
    """The messages: of each partition how many there are, and which are kept. Stands for the
    built-in log, which knows its partition count, and for the port `Logs`."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.count = 0
        self.revision = 0
        self.ends_at: dict[int, int] = {}
        self.firsts: dict[int, int] = {}

    def append(self, partition: int) -> None:
        """One more message; routed with the count that the log knows."""
        if partition < self.count:
            self.ends_at[partition] = self.ends_at.get(partition, 0) + 1
            self.checker.published(partition)

    async def access(self, log: str, purpose: str) -> None:
        """Nobody needs credentials here."""

    async def ensure(self, log: str, partition_count: int, owner: LogOwner) -> None:
        self.count = partition_count

    async def partition_count(self, log: str) -> int:
        return self.count

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        if revision >= self.revision:
            self.count, self.revision = partition_count, revision
        for number in discard:
            if number >= self.count:
                self.firsts[number] = self.ends_at.get(number, 0)
                self.checker.discarded(number)

    async def drop(self, log: str, owner: LogOwner) -> None:
        """No queue is deleted."""

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Any]:
        """Nobody looks."""
        return {}

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        return {number: str(self.ends_at.get(number, 0)) for number in partitions}

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Sequence[Positions],
    ) -> None:
        if self.count != partition_count and revision >= self.revision:
            self.count, self.revision = partition_count, revision
        floor = trim_floor(
            {number: None if at is None else int(at) for number, at in positions.items()}
            for positions in committed
        )
        for number, first in floor.items():
            if first > self.firsts.get(number, 0):
                self.firsts[number] = first
                self.checker.trimmed(number, first)

    async def positions(self, log: str, where: object) -> Mapping[int, str]:
        bounds = self.firsts if where == "earliest" else self.ends_at
        partitions = range(max(self.ends_at, default=0) + 1)
        return {number: str(bounds.get(number, 0)) for number in partitions}


class Store(MemoryStore):
    """A replica's way to the database."""

    def __init__(self, database: Observed, node: Node) -> None:
        super().__init__(database)
        self.node = node

    async def commit(self, commit: Commit) -> None:
        node, weather = self.node, self.node.weather
        if weather.stall_seconds and begins_handoffs(commit):
            seconds, weather.stall_seconds = weather.stall_seconds, 0.0
            node.disturbed(seconds)
            await node.loop.sleep(seconds)
            if self.database.queues[commit.queue.id].row["revision"] == commit.seen:
                node.on_stalled()
        await super().commit(commit)

    async def _call(self, method: str, work: Callable[[], T]) -> T:
        node, loop = self.node, self.node.loop
        await node.alive()
        luck = node.rng.random()
        delay = node.latency()
        if delay:
            await loop.sleep(delay)
            await node.alive()
        weather = node.weather
        away = node.cut or weather.away or (weather.mute and method != "pulse")
        if away or luck < weather.refuses:
            await loop.sleep(REFUSED_SECONDS)
            await node.alive()
            raise StoreUnavailable(f"{method}: lost")
        fate = None
        if method == "commit" and node.next_commit is not None:
            fate, node.next_commit = node.next_commit, None
        if fate is not None:
            node.disturbed(0.0)
        if fate == "crash before":
            node.crash()
            await node.alive()
        unknown = fate == "unknown" or luck > 1.0 - node.weather.forgets
        if unknown or fate == "crash after":
            with suppress(StoreError):
                work()
            if fate == "crash after":
                node.crash()
            else:
                await loop.sleep(REFUSED_SECONDS)
            await node.alive()
            raise StoreUnavailable(f"{method}: unknown")
        result = work()
        delay = node.latency()
        if delay:
            await loop.sleep(delay)
        if node.down or node.frozen:
            await node.alive()
        return result

    def _notify(self, queue_ids: Sequence[str]) -> None:
        node = self.node
        for listener in self.database.listeners:
            fate = node.rng.random()
            if fate < node.weather.notify_lost:
                continue
            times = 2 if fate > 1.0 - node.weather.doubles else 1
            for _ in range(times):
                delay = node.latency() * (1 + 10 * (fate > 0.9))
                node.loop.call_later(delay, listener.heard, self, queue_ids)


class Alarms:
    """Alarms of one process, by its own clock."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handles: dict[str, Any] = {}
        self._tasks: list[Any] = []

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
        if delay_seconds is not None:
            node = self._node
            delay = max(0.0, delay_seconds) / node.rate
            self._handles[key] = node.loop.call_later(delay, self._ring, key, callback)

    def _ring(self, key: str, callback: Callable[[], None]) -> None:
        self._handles.pop(key, None)
        self._node.do(callback)

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        node = self._node

        async def again() -> None:
            while not node.down:
                await node.loop.sleep(seconds / node.rate)
                await node.alive()
                await callback()

        self._tasks.append(node.loop.create_task(again()))


class Weather:
    """How bad things are between everybody at the moment. Probabilities are of each message."""

    def __init__(self) -> None:
        # `mute`: the database tells the time and nothing else.
        self.away = self.mute = False
        self.slow = 1.0
        # How long the next commit takes that begins handoffs.
        self.stall_seconds = 0.0
        self.refuses = self.forgets = 0.0
        self.lost = self.doubles = self.notify_lost = 0.0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class Node:
    """One replica's process, from its start to its end. Its successor is another."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        loop: SimLoop,
        database: Observed,
        log: Log,
        weather: Weather,
        config: Config,
        new_id: Callable[[], str],
    ) -> None:
        self.name, self.rng, self.loop = name, rng, loop
        self.database, self.weather, self.config = database, weather, config
        self.down = self.frozen = self.cut = False
        self.next_commit: str | None = None
        self.on_stalled: Callable[[], None] = lambda: None
        # Requests of administrators that it works on.
        self.asked: set[int] = set()
        # How long it stays away, should it crash.
        self.away_seconds = 1.0
        self.on_crash: Callable[[Node], None] = lambda node: None
        self.disturbed: Callable[[float], None] = lambda seconds: None
        self._backlog: list[Callable[[], object]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self.ready = False
        # The process's own clock has nothing to do with anybody else's.
        origin = rng.random() * 1e5
        self.rate = rate = 1.0 + config.drift * (2 * rng.random() - 1)
        self.store = Store(database, self)
        self.alarms = Alarms(self)
        self.replica = Replica(self.store, self.alarms, new_id, lambda: origin + rate * loop.now)
        self.calls = Calls(self.replica, log)
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
        """As `Broker.upkeep`, on the log's part."""
        with suppress(BrokerError, StoreError):
            await self.calls.logs.maintain()

    def crash(self) -> None:
        """The process is gone at once."""
        if not self.down:
            self.thaw()
            self.down = True
            self.alarms.stop()
            self.on_crash(self)

    async def stop(self) -> None:
        """The process ends in order."""
        await self.replica.stop()
        self.crash()

    def freeze(self) -> None:
        """Nothing of the process runs until it is thawed."""
        self.frozen = True

    def thaw(self) -> None:
        """Everything goes on as if no time had passed."""
        if self.frozen:
            self.frozen = False
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            backlog, self._backlog = self._backlog, []
            for callback in backlog:
                self.loop.call_soon(self.do, callback)

    async def alive(self) -> None:
        """Goes on when the process runs: never, if it is dead."""
        while self.frozen:
            self._waiting.append(self.loop.create_future())
            await self._waiting[-1]
        if self.down:
            await self.loop.create_future()

    def do(self, callback: Callable[[], object]) -> None:
        """Calls back, when the process runs."""
        if self.frozen:
            self._backlog.append(callback)
        elif not self.down:
            callback()

    def latency(self) -> float:
        """Of one way to the database or to a client, in seconds."""
        least, most, often = self.config.latency
        rng = self.rng
        if rng.random() >= often:
            return 0.0
        return (least + (most - least) * rng.random()) * self.weather.slow


# The routes


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _update(view: views.UpdateView) -> dict[str, Any]:
    return {
        "queue": view.queue,
        "flow_id": view.flow_id,
        "revision": view.revision,
        "active": view.active,
        "draining": view.draining,
        "now": _time(view.now),
        "partitions": [
            {
                "partition": seen.partition,
                "epoch": seen.epoch,
                "state": seen.state,
                "position": seen.position,
                "handed_over": seen.handed_over,
                "deadline": None if seen.deadline is None else _time(seen.deadline),
            }
            for seen in view.partitions
        ],
    }


_STATUS = {
    "unavailable": 503,
    "flow_gone": 410,
    "overtaken": 409,
    "flow_not_found": 404,
    "queue_not_found": 404,
    "unauthorized": 401,
    "forbidden": 403,
    "invalid": 422,
}


def problem(error: BrokerError) -> tuple[int, dict[str, Any]]:
    """The status and the problem document that the API answers with."""
    document: dict[str, Any] = {"code": error.code, "title": error.title(), "detail": error.detail}
    if isinstance(error, FlowGone):
        document["reason"] = error.reason
    return _STATUS[error.code], document


async def serve(calls: Calls, call: Call[Any], checker: Checker) -> Any:
    """The body of the answer. Raises BrokerError."""
    began = checker.began()
    parts = call.path.split("/")
    name, flow_id, verb = parts[2], parts[4] if len(parts) > 4 else "", parts[-1]
    body = call.body
    if len(parts) == 4 and parts[3] == "flows":
        bound = await calls.flows.bind(
            name,
            body["client_name"],
            body["instance_id"],
            body["lease_seconds"],
            body["warmup"],
            body["binder"],
            body["attempt"],
        )
        checker.bound(bound.flow_id)
        checker.showed(bound.update, began)
        return {
            "flow_id": bound.flow_id,
            "flow_token": bound.flow_token,
            "lease_seconds": bound.lease_seconds,
            "log": bound.log,
            "start": bound.start,
            "update": _update(bound.update),
        }
    if call.method == "DELETE":
        with suppress(FlowGone):  # Repeating it is no error.
            await calls.flows.authenticate(name, flow_id, call.token or "")
        await calls.flows.unbind(name, flow_id)
        checker.unbound(flow_id)
        return None
    await calls.flows.authenticate(name, flow_id, call.token or "")
    if verb == "updates":
        after, wait = int(call.query["after"]), float(call.query["wait"])
        view = await calls.updates.wait(name, flow_id, after, wait)
        if view is None:
            return None
        checker.showed(view, began)
        return _update(view)
    if verb == "drain":
        view = await calls.flows.drain(name, flow_id, body.get("timeout_seconds"))
        checker.showed(view, began)
        return _update(view)
    items = body["partitions"]
    done: views.ResultsView
    if verb == "commit":
        commits = [views.CommitItem(i["partition"], i["epoch"], i["position"]) for i in items]
        done = await calls.flows.commit(name, flow_id, body["seq"], commits)
    elif verb == "release":
        lets = [
            views.ReleaseItem(
                i["partition"], i["epoch"], i.get("position"), i.get("finished", False)
            )
            for i in items
        ]
        done = await calls.flows.release(name, flow_id, body["seq"], lets)
    else:
        warm = [views.ReadyItem(i["partition"], i["epoch"]) for i in items]
        done = await calls.flows.ready(name, flow_id, warm)
    said = [(i["partition"], i["epoch"], int(i.get("position") or 0)) for i in items]
    checker.answered(verb, flow_id, said, done.results, began)
    checker.showed(done.update, began)
    return {
        "results": [
            {
                "partition": result.partition,
                "outcome": result.outcome,
                "current_epoch": result.current_epoch,
            }
            for result in done.results
        ],
        "update": _update(done.update),
    }
