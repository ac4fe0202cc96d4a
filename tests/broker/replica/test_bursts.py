"""Crowds are counted, not timed: how many transactions and handoffs they cost.

A commit takes 5 ms here, so that calls meet others that wait, as they do on a disk. Where there are
times they are virtual: nobody alone waits for a crowd, and no crowd makes others wait for long.
"""

import asyncio

import pytest

from broker.core.commands import ReleaseItem
from broker.core.model import MOST_PARTITIONS
from broker.core.queue import Queue
from broker.replica.bursts import GATHER_SECONDS, MOMENT_SECONDS
from broker.testing.loop import running, virtual
from counterpoise import wire
from tests.broker.shell import Service, World, spec

COMMIT_SECONDS = 0.005
# The share of the service in a call.
CALL_SECONDS = 0.001


async def served(partitions: int) -> tuple[World, Service]:
    """A queue on a replica whose commits take a while."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=partitions, max_handoff_time=60.0))

    async def before(method: str) -> None:
        if method == "commit":
            await running().sleep(COMMIT_SECONDS)

    one.net.before = before
    one.net.calls.clear()
    return world, one


class Door:
    """Calls come in one after the other, and so many at a time are under way."""

    def __init__(self, most: int, seconds: float = CALL_SECONDS) -> None:
        """A call needs the processor for so many `seconds`."""
        self.places = asyncio.Semaphore(most)
        self._processor = asyncio.Lock()
        self._seconds = seconds

    async def enter(self) -> None:
        if self._seconds:
            async with self._processor:
                await running().sleep(self._seconds)


TOGETHER = Door(100_000, 0.0)


async def consume(one: Service, who: int, door: Door = TOGETHER) -> None:
    """Binds, and releases what is to be handed over."""
    async with door.places:
        await door.enter()
        bound = await one.bind("orders", f"client-{who}", f"i-{who}", 60.0, False)
    view: wire.Update | None = bound.update
    revision = bound.update.revision
    while True:
        if view is not None:
            revision = view.revision
            items = [
                ReleaseItem(seen.partition, seen.epoch, "1")
                for seen in view.partitions
                if seen.state == "revoking"
            ]
            if items:
                await one.release("orders", bound.flow_id, None, items)
        view = await one.wait_update("orders", bound.flow_id, revision, 20.0)


def balanced(queue: Queue) -> bool:
    return queue.status == "Ready" and queue.spread() <= 1


async def until_balanced(world: World, flows: int) -> Queue:
    """The stored queue, once so many flows are bound and it is at rest."""
    while len((queue := world.check("orders")).flows) < flows or not balanced(queue):
        await running().sleep(0.1)
    return queue


@virtual
async def test_flows_that_bind_together_get_their_partitions_without_a_handoff() -> None:
    world, one = await served(20)
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(one.join("orders", str(number), lease=60.0))
    queue = world.check("orders")
    assert sorted(len(flow.owned) for flow in queue.flows.values()) == [3, 3, 3, 3, 4, 4]
    assert {partition.epoch for partition in queue.partitions.values()} == {1}
    assert one.net.calls["commit"] == 1


@virtual
async def test_an_instance_that_binds_again_among_others_keeps_its_partitions() -> None:
    world, one = await served(20)
    first = await one.join("orders", "0", lease=60.0)
    before = set(world.check("orders").flows[first].owned)
    async with asyncio.TaskGroup() as group:
        binds = [group.create_task(one.join("orders", str(n), lease=60.0)) for n in range(3)]
    again = world.check("orders").flows[binds[0].result()]
    assert again.owned == before


@pytest.mark.long
@virtual
async def test_a_thousand_binds_at_once_take_few_transactions() -> None:
    world, one = await served(MOST_PARTITIONS)
    crowd = [asyncio.create_task(consume(one, number)) for number in range(1000)]
    queue = await until_balanced(world, len(crowd))
    assert one.net.calls["commit"] <= 20
    assert {partition.epoch for partition in queue.partitions.values()} == {1}


@virtual
async def test_a_thousand_handoffs_among_many_flows_share_their_transactions() -> None:
    world, one = await served(2000)
    crowd = [asyncio.create_task(consume(one, number)) for number in range(50)]
    await until_balanced(world, 50)
    one.net.calls.clear()
    crowd += [asyncio.create_task(consume(one, number)) for number in range(50, 100)]
    queue = await until_balanced(world, len(crowd))
    handoffs = moves(queue)
    assert handoffs == 1000
    writing = ("commit", "notify", "renew", "commit_positions")
    assert sum(one.net.calls[method] for method in writing) <= 0.05 * handoffs


def moves(queue: Queue) -> int:
    """The handoffs of a queue so far."""
    return sum(partition.epoch - 1 for partition in queue.partitions.values())


@pytest.mark.long
@virtual
async def test_a_thousand_that_come_one_after_the_other_hand_over_little() -> None:
    """As over HTTP: a call takes a moment, and 200 are under way. The first flow has got everything
    before it is known that there are many.
    """
    world, one = await served(MOST_PARTITIONS)
    door = Door(200)
    crowd = [asyncio.create_task(consume(one, number, door)) for number in range(1000)]
    queue = await until_balanced(world, len(crowd))
    assert one.net.calls["commit"] <= 20
    assert moves(queue) <= 2.5 * MOST_PARTITIONS


@virtual
async def test_flows_that_come_alone_or_a_few_together_wait_for_nobody() -> None:
    world, one = await served(20)
    for many in (1, 1, 4, 1):
        await running().sleep(2 * GATHER_SECONDS)
        began = world.now
        async with asyncio.TaskGroup() as group:
            for number in range(many):
                group.create_task(one.join("orders", f"{began}-{number}", lease=60.0))
        assert round(world.now - began, 6) == COMMIT_SECONDS


@virtual
async def test_a_flow_that_comes_after_a_crowd_does_not_wait_for_it() -> None:
    world, one = await served(20)
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(one.join("orders", str(number), lease=60.0))
    await running().sleep(2 * GATHER_SECONDS)
    began = world.now
    await one.join("orders", "late", lease=60.0)
    assert round(world.now - began, 6) == COMMIT_SECONDS


@pytest.mark.long
@virtual
async def test_partitions_do_not_wait_for_a_crowd_without_end() -> None:
    """Flows come every millisecond: those that are there get partitions nevertheless."""
    world, one = await served(2500)
    queue_id, _ = world.stored("orders")
    began, door = world.now, Door(100)
    crowd = [asyncio.create_task(consume(one, number, door)) for number in range(5000)]
    while (queue := world.database.load(queue_id)).unassigned:
        await running().sleep(0.01)
    assert world.now - began <= 2 * GATHER_SECONDS
    assert len(queue.flows) < 1000
    for each in crowd:
        each.cancel()


@virtual
async def test_what_is_due_and_looks_do_not_wait_for_a_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.replica.bursts.GATHER_SECONDS", 20.0)
    world, one = await served(4)
    await one.change_queue("orders", {"max_handoff_time": 1.0}, False)
    await one.join("orders", "first", lease=60.0)
    await one.join("orders", "second", lease=60.0)
    began = world.now

    async def come() -> None:
        for number in range(3000):
            coming.append(asyncio.create_task(one.join("orders", f"more-{number}", lease=60.0)))
            await running().sleep(CALL_SECONDS)

    coming: list[asyncio.Task[str]] = []
    comes = asyncio.create_task(come())
    await running().sleep(0.1)
    looked = world.now
    assert (await one.rebalance_status("orders")).status == "Rebalancing"
    assert world.now - looked < 2 * MOMENT_SECONDS
    while moves(world.stored("orders")[1]) < 2:
        await running().sleep(0.01)
    assert world.now - began < 1.1
    # One came before it was a crowd.
    assert len(world.stored("orders")[1].flows) == 3
    comes.cancel()
