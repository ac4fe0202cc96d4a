"""The database's clock is set, back or forward: waits keep their length, and no live flow loses
anything."""

import asyncio

import pytest

from broker.core.commands import ReleaseItem
from broker.core.errors import FlowGone
from broker.testing.loop import pass_time, settle, virtual
from tests.broker.shell import Service, World, spec

HOUR = 3600.0


async def deadlines(service: Service) -> list[float]:
    status = await service.rebalance_status("orders")
    return [one.deadline.timestamp() for one in status.handoffs if one.deadline is not None]


def status(world: World) -> str:
    return str(world.stored("orders")[1].status)


async def served(world: World, replicas: int) -> list[Service]:
    """Replicas that have stamped for a while."""
    services = [await world.replica() for _ in range(replicas)]
    await asyncio.sleep(0.3)
    return services


@pytest.mark.parametrize("replicas", [1, 2])
@virtual
async def test_a_holddown_lasts_no_longer_though_the_clock_goes_back(replicas: int) -> None:
    world = World()
    one = (await served(world, replicas))[0]
    await one.create_queue(spec(rebalance_delay=5.0))
    first = await one.join("orders", "first", lease=60)
    await asyncio.sleep(2)
    world.database.clock_set_by = -HOUR
    await asyncio.sleep(2.9)
    assert status(world) == "Holddown"
    # The time since the last stamp before the step is given back, as after an outage.
    await asyncio.sleep(1.2)
    assert status(world) == "Ready"
    assert len(await one.view("orders", first)) == 4
    world.check("orders")


@pytest.mark.parametrize("replicas", [1, 2])
@virtual
async def test_a_handoff_lasts_no_longer_though_the_clock_goes_back(replicas: int) -> None:
    world = World()
    services = await served(world, replicas)
    one, last = services[0], services[-1]
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=60)
    second = await one.join("orders", "second", lease=60)
    await asyncio.sleep(3)
    world.database.clock_set_by = -HOUR
    await asyncio.sleep(1.5)
    assert await deadlines(last) == [pytest.approx(world.now + 4, abs=1.1)] * 2
    # The flow is told deadlines by the present time.
    update = await last.update("orders", first)
    assert update.now.timestamp() == pytest.approx(world.now, abs=0.1)
    await asyncio.sleep(3.4)
    assert {s for _, s in (await last.view("orders", first)).values()} == {"owned", "revoking"}
    await asyncio.sleep(1.2)
    for flow in (first, second):
        assert len(await last.view("orders", flow)) == 2
    world.check("orders")


@pytest.mark.parametrize("replicas", [1, 2])
@virtual
async def test_a_dead_consumer_is_expired_though_the_clock_goes_back(replicas: int) -> None:
    world = World()
    one = (await served(world, replicas))[0]
    await one.create_queue(spec(max_handoff_time=1.0))
    dead = await one.join("orders", "dead")
    alive = await one.join("orders", "alive")
    await asyncio.sleep(5)
    await one.heartbeat("orders", alive)
    world.database.clock_set_by = -HOUR
    await one.heartbeat("orders", alive)
    await asyncio.sleep(6)
    await one.heartbeat("orders", alive)
    await asyncio.sleep(6)
    with pytest.raises(FlowGone, match="expired"):
        await one.update("orders", dead)
    assert len(await one.view("orders", alive)) == 4
    world.check("orders")


@virtual
async def test_a_drain_takes_no_longer_though_the_clock_goes_back() -> None:
    world = World()
    [one] = await served(world, 1)
    await one.create_queue(spec(max_handoff_time=1.0))
    first = await one.join("orders", "first", lease=60)
    second = await one.join("orders", "second", lease=60, warmup=True)
    await one.drain("orders", first, 20.0)
    await asyncio.sleep(5)
    world.database.clock_set_by = -HOUR
    await asyncio.sleep(17.5)
    assert len(await one.view("orders", second)) == 4
    world.check("orders")


@virtual
async def test_without_its_replica_a_queue_is_served_though_the_clock_goes_back() -> None:
    """No other replica had it in memory, and its deadline is an hour away."""
    world = World()
    one, two = await served(world, 2)
    await one.create_queue(spec(rebalance_delay=5.0))
    await one.join("orders", "first", lease=60)
    world.database.clock_set_by = -HOUR
    world.kill(one)
    await asyncio.sleep(7)
    assert status(world) == "Ready"
    assert len(world.stored("orders")[1].flows) == 1
    world.check("orders")
    assert two.memory(world.stored("orders")[0]) is not None


@pytest.mark.parametrize("noticed", [False, True])
@virtual
async def test_a_replica_with_the_old_time_begins_no_hour_long_wait(noticed: bool) -> None:
    """Whether or not the queue has moved already."""
    world = World()
    one, two = await served(world, 2)
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=60, warmup=True)
    await two.update("orders", first)
    await one.replica.sweep()
    one.alarms.stop()
    two.alarms.stop()
    world.database.clock_set_by = -HOUR
    if noticed:
        await two.replica.sweep()
        await settle()
    await one.join("orders", "second", lease=60, warmup=True)
    await one.join("orders", "third", lease=60)
    await two.replica.sweep()
    await settle()
    found = await deadlines(two)
    assert found
    assert max(found) <= world.now + 601
    assert sorted(found)[0] <= world.now + 9
    world.check("orders")


@virtual
async def test_a_holddown_follows_a_step_that_another_outage_hides() -> None:
    """No replica takes a turn between the two."""
    world = World()
    [one] = await served(world, 1)
    await one.create_queue(spec(rebalance_delay=5.0))
    await one.join("orders", "first", lease=60)
    one.alarms.stop()
    world.database.clock_set_by = -HOUR
    await one.database.pulse()
    pass_time(10)
    await one.database.pulse()
    await one.replica.sweep()
    await settle()
    assert status(world) == "Ready"
    world.check("orders")


@virtual
async def test_a_turn_follows_no_step_that_came_after_it_asked_for_the_time() -> None:
    """It gives back an outage, and meanwhile the clock goes back."""
    world = World()
    one, two = await served(world, 2)
    await one.create_queue(spec(max_handoff_time=8.0))
    await one.join("orders", "first", lease=600)
    await one.join("orders", "second", lease=600, warmup=True)
    one.alarms.stop()
    two.alarms.stop()
    pass_time(100)
    await one.replica.clock.read(one.database)
    gate = one.net.hold("outages")
    joining = asyncio.ensure_future(one.join("orders", "third", lease=600, warmup=True))
    await one.net.met("outages")
    world.database.clock_set_by = -HOUR
    await two.database.pulse()
    gate.set()
    await joining
    await two.replica.sweep()
    await settle()
    found = await deadlines(two)
    assert found
    assert all(world.now < deadline <= world.now + 601 for deadline in found)
    world.check("orders")


@virtual
async def test_a_view_is_told_by_the_time_that_its_deadlines_are_by() -> None:
    """The replica that shows it has not looked since the clock went back; another has."""
    world = World()
    one, two = await served(world, 2)
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=60)
    await one.join("orders", "second", lease=60)
    for service in (one, two):
        await service.replica.sweep()
        service.alarms.stop()
    await one.update("orders", first)
    world.database.clock_set_by = -HOUR
    await two.replica.sweep()
    await settle()
    update = await one.update("orders", first)
    left = [seen.deadline - update.now for seen in update.partitions if seen.deadline is not None]
    assert [one.total_seconds() for one in left] == [pytest.approx(8, abs=0.5)] * 2


@virtual
async def test_an_owner_has_its_handoff_time_though_the_clock_goes_back() -> None:
    """The commit that begins the handoff is delayed meanwhile, for an unknown time."""
    world = World()
    [one] = await served(world, 1)
    await one.create_queue(spec(max_handoff_time=3.0))
    first = await one.join("orders", "first", lease=60)
    gate = one.net.hold("commit")
    joining = asyncio.ensure_future(one.join("orders", "second", lease=60))
    await one.net.met("commit")
    world.database.clock_set_by = -HOUR
    await asyncio.sleep(6)
    gate.set()
    await joining
    assert await deadlines(one) == [pytest.approx(world.now + 3, abs=0.1)] * 2
    view = await one.view("orders", first)
    assert sorted(state for _, state in view.values()) == ["owned"] * 2 + ["revoking"] * 2
    world.check("orders")


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, 2.0, -2.0])
@virtual
async def test_live_flows_keep_their_partitions_when_the_clock_is_set(seconds: float) -> None:
    world = World()
    one, two = await served(world, 2)
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=6)
    second = await one.join("orders", "second", lease=6)
    view = await one.view("orders", first)
    await asyncio.sleep(3)
    for flow in (first, second):
        await one.heartbeat("orders", flow)
    world.database.clock_set_by = seconds
    await asyncio.sleep(2)
    for flow in (first, second):
        await two.heartbeat("orders", flow)
    # The handoff has its full time, less the size of an unnoticed step.
    items = [ReleaseItem(n, e, "9") for n, (e, s) in view.items() if s == "revoking"]
    done = await two.release("orders", first, 1, items)
    assert [result.outcome for result in done.results] == ["ok", "ok"]
    await asyncio.sleep(3)
    for flow in (first, second):
        assert len(await one.view("orders", flow)) == 2
    assert len(world.database.outages) == (abs(seconds) == HOUR)
    world.check("orders")


@virtual
async def test_there_and_back_again_within_an_outage_is_an_outage() -> None:
    world = World()
    [one] = await served(world, 1)
    await one.create_queue(spec(max_handoff_time=8.0))
    await one.join("orders", "first", lease=60)
    await one.join("orders", "second", lease=60)
    for by in (HOUR, 0.0):
        world.database.clock_set_by = by
        await asyncio.sleep(2.5)
    pass_time(100)
    await asyncio.sleep(1.5)
    assert [round(outage.seconds, -2) for outage in world.database.outages] == [3600, -3600, 100]
    found = await deadlines(one)
    assert found
    assert all(world.now < deadline <= world.now + 8 for deadline in found)
    world.check("orders")
