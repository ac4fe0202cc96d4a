"""A broker scripted by tests, for the API's own part: reading, refusing, streaming.

Everything about queues and flows is tested against the real broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from broker.calls import views
from broker.calls.rendering import results_view
from broker.calls.times import time_of
from broker.core.access import Caller, anybody, flow_caller
from broker.core.commands import Outcome, Result
from broker.core.errors import Forbidden, QueueNotFound, Unauthorized
from broker.replica.events import EventCounters
from broker.service import Broker
from counterpoise import wire

NOW = 1_795_168_800.25
TOKEN = "token-1"
FLOW = "f-1"

QUEUE = wire.Queue(
    id="q-1",
    name="flights",
    partition_count=2,
    operational_partition_count=2,
    access_type="non_exclusive",
    rebalance_delay=5.0,
    max_handoff_time=3.0,
    max_warmup_time=600.0,
    max_concurrent_handoffs=None,
    log="builtin:flights",
    start="earliest",
    rebalance_status="Ready",
    scale_status="Ready",
    flow_count=1,
    active_flow_count=1,
    paused=None,
    paused_partition_count=0,
    pinned_partition_count=0,
    revision=3,
    created_at=time_of(NOW),
    ordered_resize=False,
    retention_seconds=None,
    retention_bytes=None,
    partitioning="fixed",
    mirror_group=None,
    max_weight=1000,
)


def update(revision: int) -> wire.Update:
    """Partition 0 is being handed off, 1 is warming."""
    return wire.Update(
        queue="flights",
        flow_id=FLOW,
        revision=revision,
        active=True,
        draining=False,
        now=time_of(NOW),
        partitions=(
            wire.UpdatePartition(0, 3, "revoking", "1042", "graceful", time_of(NOW + 3)),
            wire.UpdatePartition(1, 4, "warming", None),
        ),
    )


class ScriptedBroker:
    """Knows one queue and one flow. Each call is recorded, and `answers` may replace its result."""

    def __init__(self) -> None:
        self.watching = 0
        self.tally = EventCounters()
        self.callers = Callers(self, "callers")
        self.queues = Part(self, "queues")
        self.bound_flows = BoundFlows(self, "bound_flows")
        self.flows = Part(self, "flows")
        self.commits = Part(self, "commits")
        self.updates = Updates(self, "updates")
        self.logs = Part(self, "logs")
        self.monitoring = Monitoring(self, "monitoring")
        self.conditions = Part(self, "conditions")
        self.reset()

    def reset(self) -> None:
        """Forget the recorded calls and the script."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.stopped = False

    def as_broker(self) -> Broker:
        return cast(Broker, self)

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    def is_reachable(self) -> bool:
        return True

    async def ready_check(self) -> views.ReadyCheck:
        return views.ReadyCheck(database=True, migrations=True)


class Part:
    """One part of the broker; its calls are recorded with the part's name."""

    def __init__(self, broker: ScriptedBroker, name: str) -> None:
        self.broker, self.name = broker, name

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        broker, name = self.broker, f"{self.name}.{name}"

        async def call(*arguments: Any, **_: Any) -> Any:
            broker.calls.append((name, arguments))
            if name in broker.answers:
                return await broker.answers[name](*arguments)
            return await _default(name, *arguments)

        return call


class Callers(Part):
    """A service without keys."""

    some_known = False

    async def any_made(self) -> bool:
        return False

    async def by_flow_token(self, token: str, queue: str | None, address: str | None) -> Caller:
        if token != TOKEN:
            raise Unauthorized("no flow's token")
        if queue != QUEUE.name:
            raise Forbidden("not this flow's queue")
        return flow_caller(FLOW, QUEUE.name, None, address)

    async def by_key(self, *_: object, **__: object) -> Caller:
        raise Unauthorized("no key")

    async def log_in(self, *_: object) -> tuple[str, Caller]:
        return "session-1", anybody()

    async def until_ended(self, _: Caller) -> None:
        await asyncio.Event().wait()


class BoundFlows(Part):
    """A flow and its queue are their names here."""

    async def authenticate(self, queue: str, flow: str, token: str) -> tuple[str, str]:
        answer = self.broker.answers.get("bound_flows.authenticate")
        if answer is not None:
            await answer(queue, flow, token)
        elif token != TOKEN:
            raise Forbidden("not this flow's token")
        return queue, flow

    async def of(self, queue: str, flow: str) -> tuple[str, str]:
        return queue, flow

    def known(self, *_: str) -> None:
        """Every call goes the usual way, where it is recorded."""


class Updates(Part):
    async def wait(self, *arguments: Any, asked: object) -> Any:
        """Recorded without `asked`."""
        return await self.__getattr__("wait")(*arguments)

    async def watch(self, flow: tuple[str, str], after: int) -> AsyncIterator[wire.Update]:
        self.broker.calls.append(("updates.watch", (flow, after)))
        self.broker.watching += 1
        try:
            yield update(after + 1)
            await asyncio.Event().wait()
        finally:
            self.broker.watching -= 1


class Monitoring(Part):
    async def events(self, queue: str, after: int | None) -> AsyncIterator[views.EventView]:
        self.broker.calls.append(("monitoring.events", (queue, after)))
        times = dict.fromkeys(("deadline", "at", "until", "due", "began", "seen_at"), NOW + 3)
        change = {"type": "revoked", "partition": 0, **times, "n": 1.5}
        yield views.EventView(7, NOW, (change,))
        await asyncio.Event().wait()


async def _default(name: str, *arguments: Any) -> Any:
    if arguments and arguments[0] == "missing":
        raise QueueNotFound("missing")
    match name:
        case "queues.get" | "queues.create" | "queues.change":
            return QUEUE
        case "conditions.with_counts":
            return tuple(arguments[0])
        case "queues.list":
            return wire.Page((QUEUE,), None)
        case "flows.heartbeat":
            return wire.Heartbeat(time_of(NOW + 10), 3)
        case "flows.drain":
            return update(3)
        case "commits.commit" | "flows.release" | "flows.ready":
            results = (Result(0, Outcome.OK), Result(1, Outcome.STALE_EPOCH, 5))
            return results_view(results, update(3))
        case "flows.unbind" | "queues.delete":
            return None
        case "updates.wait":
            await asyncio.sleep(arguments[-1])
            return None
    raise AssertionError(f"{name} is not scripted")
