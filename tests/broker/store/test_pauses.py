"""Pauses in the store: rows and records give the same queue, and its next deadline is known."""

from __future__ import annotations

from broker.core import commands as c
from broker.core.pauses import Pause
from broker.store.ports import Store
from tests.broker.store.support import Replica
from tests.world.store import picture


async def test_loading_equals_replaying_at_every_step(store: Store) -> None:
    orders = Replica(store)
    await orders.create(3)
    await orders.bind("A")
    follower = await Replica(store).follow(orders.id)
    for command in (
        c.PausePartitions((0, 2), until=2000.25, reason="wrong prices"),
        c.PausePartitions((), seconds=60.0),
        c.PausePartitions((2,)),
        c.ResumePartitions((2,)),
        c.ResumePartitions(),
        c.Change({"partition_count": 2}, discard=True),
    ):
        await orders.do(command)
        await follower.catch_up()
        loaded = await store.load(orders.id)
        for queue in (loaded, follower.queue):
            assert picture(queue) == picture(orders.queue)
            assert queue.pauses.of == orders.queue.pauses.of
            assert queue.next_deadline() == orders.queue.next_deadline()
    assert orders.queue.pauses.of == {0: Pause(1000.0, 2000.25, "wrong prices")}


async def test_a_list_has_the_pauses(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.do(c.PausePartitions((1,)), c.PausePartitions())
    [row] = [row for row in await store.list(99, None) if row.queue.id == orders.id]
    assert row.queue.pauses.of == {1: Pause(1000.0), None: Pause(1000.0)}
