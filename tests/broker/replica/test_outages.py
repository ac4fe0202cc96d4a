"""Leases and deadlines do not run while no replica serves, and no flow is expired too soon."""

import asyncio

import pytest

from broker.core.commands import ReleaseItem
from broker.core.errors import FlowGone, Unavailable
from broker.testing.loop import pass_time, settle, virtual
from tests.broker.shell import Service, World, spec


async def handing_over(one: Service, lease: float = 10.0) -> tuple[str, str]:
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=lease)
    second = await one.join("orders", "second", lease=lease)
    return first, second


async def deadlines(service: Service) -> list[float | None]:
    status = await service.rebalance_status("orders")
    return [one.deadline.timestamp() if one.deadline else None for one in status.handoffs]


@pytest.mark.parametrize("replicas", [1, 2])
@virtual
async def test_flows_that_were_alive_when_all_replicas_froze_stay_bound(replicas: int) -> None:
    world = World()
    services = [await world.replica() for _ in range(replicas)]
    one = services[0]
    first, _ = await handing_over(one)
    for service in services:
        await service.update("orders", first)
    await asyncio.sleep(5)
    before = await deadlines(one)
    pass_time(3600)
    await asyncio.sleep(2.5)
    # The deadlines moved by the gap, once.
    after = await deadlines(services[-1])
    moved = [new - old for new, old in zip(after, before, strict=True) if new and old]
    assert len(moved) == 2
    assert all(3600 <= gap < 3602 for gap in moved)
    # The leases began anew, although half of them had passed.
    await asyncio.sleep(4)
    await one.heartbeat("orders", first)
    assert (await one.queue("orders")).flow_count == 2
    await asyncio.sleep(6)
    assert [flow.flow_id for flow in (await one.flows("orders", 5, None)).items] == [first]
    world.check("orders")


@virtual
async def test_the_first_thing_after_a_freeze_may_be_a_call() -> None:
    """Before any sweep or alarm: the call itself notices the outage."""
    world = World()
    one = await world.replica()
    first, second = await handing_over(one)
    view = await one.view("orders", first)
    one.alarms.stop()
    pass_time(600)
    items = [ReleaseItem(n, e, "9") for n, (e, s) in view.items() if s == "revoking"]
    done = await one.release("orders", first, 1, items)
    assert [result.outcome for result in done.results] == ["ok", "ok"]
    await one.heartbeat("orders", second)


@virtual
async def test_a_handoff_that_begins_after_the_outage_gets_no_time_from_it() -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(max_handoff_time=8.0))
    await one.join("orders", "first", lease=60)
    one.alarms.stop()
    pass_time(600)
    await one.join("orders", "second", lease=60)
    await one.replica.sweep()
    await settle()
    assert all(deadline <= world.now + 8 for deadline in await deadlines(one) if deadline)
    assert await deadlines(one)


@virtual
async def test_a_queue_made_after_an_outage_has_nothing_to_do_with_it() -> None:
    world = World()
    one = await world.replica()
    pass_time(600)
    await asyncio.sleep(2)
    await one.create_queue(spec(max_handoff_time=8.0))
    await one.join("orders", "first", lease=60)
    await asyncio.gather(*(one.join("orders", str(n), lease=60) for n in range(2)))
    await asyncio.sleep(0.5)
    assert all(deadline <= world.now + 8 for deadline in await deadlines(one) if deadline)
    assert await deadlines(one)


@virtual
async def test_a_replica_that_restarts_among_others_extends_nothing() -> None:
    world = World()
    one, two = await world.replica(), await world.replica()
    first, _ = await handing_over(one)
    before = await deadlines(two)
    world.kill(two)
    await asyncio.sleep(6)
    three = await world.replica()
    assert await deadlines(three) == before
    assert not world.database.outages
    await asyncio.sleep(5)
    with pytest.raises(FlowGone, match="expired"):
        await three.update("orders", first)


@virtual
async def test_without_its_replica_a_queue_is_served_by_another() -> None:
    """No other replica had it in memory: the sweep finds its deadlines and leases."""
    world = World()
    one, two = await world.replica(), await world.replica()
    first, second = await handing_over(one, lease=20)
    world.kill(one)
    await asyncio.sleep(9.5)
    _, stored = world.stored("orders")
    assert not stored.handoffs
    assert stored.last_rebalance is not None
    assert stored.last_rebalance.forced == 2
    await two.heartbeat("orders", second)
    await asyncio.sleep(12)
    _, stored = world.stored("orders")
    assert list(stored.flows) == [second]
    assert len(stored.flows[second].owned) == 4
    assert first not in stored.flows


@virtual
async def test_a_frozen_replica_decides_nothing_from_old_deadlines() -> None:
    """It had a deadline in memory; meanwhile the other replica continued."""
    world = World()
    one, two = await world.replica(), await world.replica()
    first, second = await handing_over(one, lease=60)
    gates = [one.net.hold(method) for method in ("pulse", "entries_after", "expiries", "due")]
    await asyncio.sleep(1)
    view = await two.view("orders", first)
    items = [ReleaseItem(n, e, "9") for n, (e, s) in view.items() if s == "revoking"]
    await two.release("orders", first, 1, items)
    await asyncio.sleep(20)
    before = await two.view("orders", second)
    for gate in gates:
        gate.set()
    await asyncio.sleep(3)
    assert await one.view("orders", second) == before == {2: (2, "owned"), 3: (2, "owned")}
    world.check("orders")


@virtual
async def test_an_owner_has_its_handoff_time_after_a_slow_commit() -> None:
    """The commit takes longer than a handoff, while another replica serves."""
    world = World()
    one, two = await world.replica(), await world.replica()
    await one.create_queue(spec(max_handoff_time=3.0))
    first = await one.join("orders", "first", lease=60)
    gate = one.net.hold("commit")
    joining = asyncio.ensure_future(one.join("orders", "second", lease=60))
    await one.net.met("commit")
    await asyncio.sleep(5)
    gate.set()
    await joining
    assert not world.database.outages
    assert [deadline for deadline in await deadlines(two) if deadline] == [
        pytest.approx(world.now + 3, abs=0.1)
    ] * 2
    view = await two.view("orders", first)
    assert sorted(state for _, state in view.values()) == ["owned"] * 2 + ["revoking"] * 2
    world.check("orders")


@pytest.mark.parametrize(("takes", "works"), [(1.5, True), (5.0, True), (20.0, False)])
@virtual
async def test_a_database_that_is_always_late_gets_more_time(takes: float, works: bool) -> None:
    """Every call is slow; in the end the database answers, or the caller gets an error."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec(max_handoff_time=30.0))
    await one.join("orders", "first", lease=600)

    async def late(method: str) -> None:
        if method == "commit":
            await asyncio.sleep(takes)

    one.net.before = late
    tries = one.net.calls["commit"]
    if works:
        await one.join("orders", "second", lease=600)
        assert len(await deadlines(one)) == 2
    else:
        with pytest.raises(Unavailable):
            await one.join("orders", "second", lease=600)
        one.net.before = None
        await one.join("orders", "second", lease=600)
    assert one.net.calls["commit"] - tries <= 5
    world.check("orders")


@virtual
async def test_deadlines_get_back_every_outage_there_was() -> None:
    """The database comes back and goes away again before any replica could commit."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec(max_handoff_time=8.0))
    first = await one.join("orders", "first", lease=600)
    await one.join("orders", "second", lease=600)
    before = await deadlines(one)
    one.alarms.stop()
    for seconds in (10.0, 12.0):
        pass_time(seconds)
        await one.database.pulse()
    passed = sum(outage.seconds for outage in world.database.outages)
    assert len(world.database.outages) == 2
    await one.replica.sweep()
    await settle()
    after = await deadlines(one)
    moved = [new - old for new, old in zip(after, before, strict=True) if new and old]
    assert moved == [pytest.approx(passed)] * 2
    assert passed >= 22
    assert len(await one.view("orders", first)) == 4
    world.check("orders")


@virtual
async def test_an_outage_of_the_store_costs_no_flow_anything() -> None:
    world = World()
    one, two = await world.replica(), await world.replica()
    first, second = await handing_over(one)
    for service in (one, two):
        service.net.away = True
    await asyncio.sleep(60)
    for service in (one, two):
        service.net.away = False
    await asyncio.sleep(3)
    view = await two.view("orders", first)
    assert {state for _, state in view.values()} == {"owned", "revoking"}
    for flow in (first, second):
        await one.heartbeat("orders", flow)
    await asyncio.sleep(9)
    for flow in (first, second):
        assert len((await one.update("orders", flow)).partitions) == 2
    world.check("orders")
