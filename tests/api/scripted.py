"""A broker that does what a test says, for what is the API's alone: reading, refusing, streaming.

Everything that is about queues and flows is tested against the real one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from broker.calls import views
from broker.core.errors import Forbidden, QueueNotFound
from broker.service import Broker
from broker.tally import Tally

NOW = 1_795_168_800.25
TOKEN = "token-1"
FLOW = "f-1"

QUEUE = views.QueueView(
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
    revision=3,
    created_at=NOW,
)


def update(revision: int) -> views.UpdateView:
    """Partition 0 is being handed off, 1 is warming."""
    return views.UpdateView(
        queue="flights",
        flow_id=FLOW,
        revision=revision,
        active=True,
        draining=False,
        now=NOW,
        partitions=(
            views.PartitionInUpdate(0, 3, "revoking", "1042", "graceful", NOW + 3),
            views.PartitionInUpdate(1, 4, "warming", None),
        ),
    )


class ScriptedBroker:
    """Knows one queue and one flow; each call is noted and may be replaced with `answers`."""

    def __init__(self) -> None:
        self.watching = 0
        self.tally = Tally()
        self.reset()

    def reset(self) -> None:
        """Forget what was called and what was scripted."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.stopped = False

    def as_broker(self) -> Broker:
        return cast(Broker, self)

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    async def authenticate(self, queue: str, flow: str, token: str) -> None:
        if "authenticate" in self.answers:
            await self.answers["authenticate"](queue, flow, token)
        elif token != TOKEN:
            raise Forbidden("not this flow's token")

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if name in self.answers:
                return await self.answers[name](*arguments)
            return await _default(name, *arguments)

        return call

    async def watch(self, queue: str, flow: str, after: int) -> AsyncIterator[views.UpdateView]:
        self.calls.append(("watch", (queue, flow, after)))
        self.watching += 1
        try:
            yield update(after + 1)
            await asyncio.Event().wait()
        finally:
            self.watching -= 1

    async def events(self, queue: str, after: int | None) -> AsyncIterator[views.EventView]:
        self.calls.append(("events", (queue, after)))
        yield views.EventView(
            7, NOW, ({"type": "revoked", "partition": 0, "deadline": NOW + 3, "n": 1.5},)
        )
        await asyncio.Event().wait()


async def _default(name: str, *arguments: Any) -> Any:
    if arguments and arguments[0] == "missing":
        raise QueueNotFound("missing")
    match name:
        case "queue" | "create_queue" | "change_queue":
            return QUEUE
        case "list_queues":
            return views.Page((QUEUE,))
        case "heartbeat":
            return views.HeartbeatView(NOW + 10, 3)
        case "update" | "drain":
            return update(3)
        case "commit" | "release" | "ready":
            results = (views.Result(0, "ok"), views.Result(1, "stale_epoch", 5))
            return views.ResultsView(results, update(3))
        case "unbind" | "delete_queue":
            return None
        case "wait_update":
            await asyncio.sleep(arguments[-1])
            return None
        case "ready_check":
            return views.ReadyCheck(database=True, migrations=True)
    raise AssertionError(f"{name} is not scripted")
