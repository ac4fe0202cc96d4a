"""Locks of a frozen replica delay only the flows of that queue."""

import asyncio

import pytest

from broker.core.commands import CommitItem, ReleaseItem
from broker.core.errors import FlowGone, Unavailable
from broker.store.ports import Stored
from broker.testing.loop import settle, virtual
from counterpoise import wire
from tests.broker.shell import Service, World, spec


async def two_queues() -> tuple[World, Service, str, str]:
    world = World()
    one = await world.replica()
    await one.create_queue(spec("held", 2))
    await one.create_queue(spec("free", 2))
    return world, one, await one.join("held", "a", lease=2), await one.join("free", "b", lease=2)


@virtual
async def test_a_flow_of_another_queue_is_not_affected() -> None:
    world, one, held, free = await two_queues()
    world.database.held_flows = {held}
    waiting = asyncio.ensure_future(one.heartbeat("held", held))
    for _ in range(8):
        before = world.now
        await one.heartbeat("free", free)
        done = await one.commit("free", free, None, [CommitItem(0, 1, "5")])
        assert [result.outcome for result in done.results] == ["ok"]
        assert world.now == before
        await asyncio.sleep(1)
    world.database.held_flows = set()
    await waiting
    assert len((await one.update("free", free)).partitions) == 2


@virtual
async def test_a_flow_whose_renewal_was_blocked_is_not_expired() -> None:
    world, one, held, _ = await two_queues()
    dead = await one.join("held", "dead", lease=2)
    world.database.held_flows = {held}
    waiting = asyncio.ensure_future(one.heartbeat("held", held))
    await asyncio.sleep(6)
    with pytest.raises(FlowGone, match="expired"):
        await one.update("held", dead)
    world.database.held_flows = set()
    await waiting
    assert len((await one.update("held", held)).partitions) == 2
    await asyncio.sleep(4)
    with pytest.raises(FlowGone, match="expired"):
        await one.heartbeat("held", held)


@virtual
async def test_a_commit_is_made_when_its_rows_are_free() -> None:
    world, one, held, _ = await two_queues()
    queue_id, _ = world.stored("held")
    world.database.held_partitions = {(queue_id, 1)}
    items = [CommitItem(0, 1, "5"), CommitItem(1, 1, "6"), CommitItem(9, 1, "7")]
    committing = asyncio.ensure_future(one.commit("held", held, 1, items))
    await asyncio.sleep(3)
    assert not committing.done()
    assert await one.database.positions(queue_id) == {0: Stored(1, "5"), 1: Stored(1, None)}
    world.database.held_partitions = set()
    done = await committing
    assert [result.outcome for result in done.results] == ["ok", "ok", "no_such_partition"]
    assert await one.database.positions(queue_id) == {0: Stored(1, "5"), 1: Stored(1, "6")}


@virtual
async def test_a_release_that_is_repeated_renews_when_it_can() -> None:
    world, one, held, _ = await two_queues()
    await one.drain("held", held, None)
    items = [ReleaseItem(n, 1, "5") for n in (0, 1)]
    await one.release("held", held, 1, items)
    world.database.held_flows = {held}
    again = asyncio.ensure_future(one.release("held", held, 1, items))
    await asyncio.sleep(1)
    assert not again.done()
    world.database.held_flows = set()
    assert [result.outcome for result in (await again).results] == ["ok", "ok"]
    assert (await one.database.leases([held]))[held] == pytest.approx(world.now + 2, abs=0.3)


@virtual
async def test_a_blocked_call_ends_with_an_error() -> None:
    world, one, held, _ = await two_queues()
    world.database.held_flows = {held}
    before = world.now
    calls = [
        one.heartbeat("held", held),
        one.commit("held", held, None, [CommitItem(0, 1, "5")]),
    ]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [Unavailable] * 2
    assert world.now - before < 15
    await settle()
    assert not one.replica.renewals._under_way


async def committing(one: Service) -> tuple[asyncio.Event, asyncio.Task[wire.Queue]]:
    """A commit of the queue is under way until the event."""
    gate = one.net.hold("commit")
    changing = asyncio.create_task(one.change_queue("held", {"partition_count": 3}, False))
    await one.net.met("commit")
    return gate, changing


@virtual
async def test_a_renewal_waits_for_a_commit_of_its_replica_and_no_longer() -> None:
    world, one, held, _ = await two_queues()
    gate, changing = await committing(one)
    world.database.held_flows = {held}
    before, began = one.net.calls["renew"], world.now
    beat = asyncio.create_task(one.heartbeat("held", held))
    await settle()
    world.database.held_flows = set()
    gate.set()
    await changing
    await beat
    assert world.now == began
    assert one.net.calls["renew"] == before + 1
    assert not one.replica.renewals._committing


@virtual
async def test_a_renewal_does_not_wait_for_a_commit_that_hangs() -> None:
    _, one, held, _ = await two_queues()
    gate, changing = await committing(one)
    await one.heartbeat("held", held)
    assert not changing.done()
    gate.set()
    await changing
