"""Crowds are counted, not timed: how many transactions and handoffs they cost.

A commit takes 5 ms here, so that calls meet others that wait, as they do on a disk.
"""

import asyncio

from broker.calls import views
from broker.core.state.queue import Queue
from broker.memory.loop import running, virtual
from tests.broker.shell import Service, World, spec

COMMIT_SECONDS = 0.005


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


async def consume(one: Service, who: int) -> None:
    """Binds, and releases what is to be handed over."""
    bound = await one.bind("orders", f"client-{who}", f"i-{who}", 60.0, False)
    view: views.UpdateView | None = bound.update
    revision = bound.update.revision
    while True:
        if view is not None:
            revision = view.revision
            items = [
                views.ReleaseItem(seen.partition, seen.epoch, "1")
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


@virtual
async def test_a_thousand_binds_at_once_take_few_transactions() -> None:
    world, one = await served(10_000)
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
    handoffs = sum(partition.epoch - 1 for partition in queue.partitions.values())
    assert handoffs == 1000
    writing = ("commit", "notify", "renew", "commit_positions")
    assert sum(one.net.calls[method] for method in writing) <= 0.05 * handoffs
