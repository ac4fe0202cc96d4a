"""Every call to the store fails at every point of every call of the service, before or after it
took effect. The caller is told and repeats, and the result is as without the fault."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from broker.core.commands import CommitItem, ReadyItem, ReleaseItem
from broker.core.errors import BrokerError, QueueExists, QueueNotFound, Unavailable
from broker.testing.loop import settle, virtual
from broker.testing.store import Fault
from tests.broker.shell import Service, World, spec

Call = Callable[[Service, dict[str, str]], Awaitable[object]]


async def _release(service: Service, flows: dict[str, str]) -> None:
    items = [ReleaseItem(3, 1, "33")]
    answer = await service.release("orders", flows["first"], 1, items)
    assert [result.outcome for result in answer.results] == ["ok"]


async def _ready(service: Service, flows: dict[str, str]) -> None:
    answer = await service.ready("orders", flows["warm"], [ReadyItem(1, 1)])
    assert [result.outcome for result in answer.results] == ["ok"]


async def _commit(service: Service, flows: dict[str, str]) -> None:
    items = [CommitItem(0, 1, "10")]
    answer = await service.commit("orders", flows["first"], 1, items)
    assert [result.outcome for result in answer.results] == ["ok"]


async def _create(service: Service, flows: dict[str, str]) -> None:
    # A repetition finds the queue that the first call created.
    try:
        await service.create_queue(spec("other"))
    except QueueExists:
        assert "attempted" in flows


async def _delete(service: Service, flows: dict[str, str]) -> None:
    try:
        await service.delete_queue("spare", force=True)
    except QueueNotFound:
        assert "attempted" in flows


CALLS: dict[str, Call] = {
    "bind": lambda s, f: s.join("orders", "late", lease=60),
    "unbind": lambda s, f: s.unbind("orders", f["second"]),
    "drain": lambda s, f: s.drain("orders", f["second"], None),
    "release": _release,
    "ready": _ready,
    "commit": _commit,
    "heartbeat": lambda s, f: s.heartbeat("orders", f["first"]),
    "poll": lambda s, f: s.wait_update("orders", f["first"], 0, 1),
    "update": lambda s, f: s.update("orders", f["first"]),
    "watch": lambda s, f: anext(s.watch("orders", f["first"], 0)),
    "events": lambda s, f: anext(s.events("orders", 0)),
    "grow": lambda s, f: s.change_queue("orders", {"partition_count": 6}, False),
    "shrink": lambda s, f: s.change_queue("orders", {"partition_count": 2}, True),
    "rebalance": lambda s, f: s.rebalance_now("orders"),
    "status": lambda s, f: s.rebalance_status("orders"),
    "partitions": lambda s, f: s.partitions("orders", 10, None),
    "flows": lambda s, f: s.flows("orders", 10, None),
    "rebalances": lambda s, f: s.rebalances("orders", 10, None),
    "queues": lambda s, f: s.list_queues(10, None),
    "positions": lambda s, f: s.set_positions("orders", {0: "5"}),
    "create": _create,
    "delete": _delete,
}


async def scene(world: World) -> tuple[Service, dict[str, str]]:
    """`first` hands 3 over to `second` and, when `warm` is warm, 1 to `warm`."""
    one = await world.replica()
    await one.create_queue(spec("spare"))
    await one.create_queue(spec(partitions=4, max_handoff_time=20.0))
    flows = {"first": await one.join("orders", "first", lease=60)}
    flows["second"] = await one.join("orders", "second", lease=60)
    done = await one.release("orders", flows["first"], None, [ReleaseItem(2, 1)])
    assert done.results[0].outcome == "ok"
    flows["warm"] = await one.join("orders", "warm", lease=60, warmup=True)
    return one, flows


@pytest.mark.long
@pytest.mark.matrix("call", "cold")
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("call", CALLS)
@virtual
async def test_every_failed_call_is_reported_and_can_be_repeated(call: str, cold: bool) -> None:
    """`cold`: the replica has nothing in memory yet."""
    seen = Recorder()
    await attempt(call, cold, seen)
    assert seen.calls or call == "watch"
    for place in range(len(seen.calls)):
        for fault in Fault:
            await attempt(call, cold, Recorder(place, fault))


class Recorder:
    """Counts the calls to the store and lets one of them fail."""

    def __init__(self, place: int | None = None, fault: Fault | None = None) -> None:
        self.place = place
        self.fault = fault
        self.calls: list[str] = []
        self.on = False

    async def __call__(self, method: str) -> Fault | None:
        if not self.on or method in ("due", "revisions"):
            return None
        self.calls.append(method)
        return self.fault if len(self.calls) - 1 == self.place else None


async def attempt(call: str, cold: bool, recorder: Recorder) -> None:
    world = World()
    one, flows = await scene(world)
    service = await world.replica() if cold else one
    service.net.before = recorder
    recorder.on = True
    with suppress(Unavailable):
        await CALLS[call](service, flows)
    flows["attempted"] = ""
    await settle()
    recorder.on = False
    where = f"{recorder.fault} at {recorder.calls[: (recorder.place or 0) + 1]}"
    try:
        await CALLS[call](service, flows)
    except BrokerError as error:
        pytest.fail(f"repeated after {where}: {error!r}")
    await asyncio.sleep(3)
    world.check("orders")
    assert_one_owner_each(world)


def assert_one_owner_each(world: World) -> None:
    _, stored = world.stored("orders")
    late = [flow for flow in stored.flows.values() if flow.instance_id == "i-late"]
    assert len(late) <= 1
    for service in world.services:
        memory = service.memory(stored.id)
        assert memory is None or memory.revision == stored.revision
