"""A large decision is committed slice by slice: other calls come between, and no slice is lost."""

import asyncio
import gc
import itertools

import pytest

from broker.core.state import records as r
from broker.mailbox.replica import SWEEP_SECONDS
from tests.broker.shell import Service, World, spec
from tests.twin.store import Fault
from tests.world.loop import running, settle, virtual

PARTITIONS, SLICE = 43, 5


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.mailbox.turns.SLICE", SLICE)


async def cut_off(one: Service) -> asyncio.Event:
    """A flow has bound, and the commit of the second slice of its grants waits at the gate."""
    await one.create_queue(spec(partitions=PARTITIONS))
    met, gate, commits = asyncio.Event(), asyncio.Event(), itertools.count()

    async def before(method: str) -> None:
        await running().sleep(0.001)
        if method == "commit" and next(commits) == 1:
            met.set()
            await gate.wait()

    one.net.before = before
    binding = asyncio.ensure_future(one.bind("orders", "first", "i-first", 60.0, False))
    await met.wait()
    binding.cancel()
    return gate


async def until_ready(world: World) -> float:
    """The seconds until the stored queue was Ready."""
    began, (queue_id, _) = world.now, world.stored("orders")
    while world.database.load(queue_id).status != "Ready":
        await running().sleep(0.05)
    return world.now - began


@virtual
async def test_each_slice_is_a_transaction() -> None:
    world = World()
    one = await world.replica()
    gate = await cut_off(one)
    assert len(world.stored("orders")[1].unassigned) == PARTITIONS - SLICE
    gate.set()
    await until_ready(world)
    entries = world.database.entries_after(world.check("orders").id, 0)
    grants = [
        len(record.grants)
        for entry in entries
        for record in entry.records
        if isinstance(record, r.Granted)
    ]
    assert grants == [*[5] * 8, 3]
    assert len({entry.commit_id for entry in entries}) >= 5


@virtual
async def test_calls_between_slices_do_not_wait_for_the_rest() -> None:
    world = World()
    one = await world.replica()
    gate = await cut_off(one)
    joining = asyncio.ensure_future(one.join("orders", "second", lease=60))
    await settle()
    gate.set()
    await joining
    await until_ready(world)
    entries = world.database.entries_after(world.check("orders").id, 0)
    kinds = [[type(record).__name__ for record in entry.records] for entry in entries]
    bound = kinds.index(["FlowBound", "Granted", "CutOff"])
    assert kinds[bound - 1] == kinds[bound + 1] == ["Granted", "CutOff"]
    queue = world.check("orders")
    assert sorted(len(flow.owned) for flow in queue.flows.values()) == [21, 22]


@virtual
async def test_another_replica_goes_on_when_one_dies_between_slices() -> None:
    world = World()
    one, two = await world.replica(), await world.replica()
    await cut_off(one)
    world.kill(one)
    assert await until_ready(world) <= 2 * SWEEP_SECONDS
    assert two.net.calls["commit"] >= PARTITIONS // SLICE
    world.check("orders")


@virtual
async def test_a_replica_without_the_queue_in_memory_continues_the_slices() -> None:
    world = World()
    one = await world.replica()
    await cut_off(one)
    world.kill(one)
    await world.replica()
    assert await until_ready(world) <= 2 * SWEEP_SECONDS
    world.check("orders")


@pytest.mark.parametrize("fault", Fault)
@virtual
async def test_a_slice_that_fails_is_decided_again(fault: Fault) -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS))
    faults = iter((None, None, fault, fault))

    async def before(method: str) -> Fault | None:
        return next(faults, None) if method == "commit" else None

    one.net.before = before
    await one.join("orders", "first", lease=60)
    assert await until_ready(world) <= 3 * SWEEP_SECONDS
    world.check("orders")


@virtual
async def test_only_one_of_two_replicas_goes_on() -> None:
    """The replica that follows the other's slices leaves the rest to it."""
    world = World()
    one, two = await world.replica(), await world.replica()
    await two.list_queues(10, None)
    gate = await cut_off(one)
    await two.rebalance_status("orders")
    before = two.net.calls["commit"]
    gate.set()
    assert await until_ready(world) < SWEEP_SECONDS
    assert two.net.calls["commit"] == before
    world.check("orders")


@virtual
async def test_the_garbage_collector_does_not_look_at_large_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither at one that was created here, nor at one that was loaded."""
    world = World()
    one, two = await world.replica(), await world.replica()
    monkeypatch.setattr("broker.mailbox.memory.LARGE", PARTITIONS)
    before = gc.get_freeze_count()
    try:
        await one.create_queue(spec(partitions=PARTITIONS - 1))
        assert gc.get_freeze_count() == before
        await one.create_queue(spec("large", PARTITIONS))
        created = gc.get_freeze_count()
        assert created > before
        await two.rebalance_status("large")
        assert gc.get_freeze_count() > created
    finally:
        gc.unfreeze()
