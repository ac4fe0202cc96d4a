"""Pins in the store: rows and records give the same queue."""

from __future__ import annotations

from broker.core import commands as c
from broker.store.ports import Store
from tests.broker.store.support import Replica
from tests.world.store import picture


async def test_loading_equals_replaying_at_every_step(store: Store) -> None:
    orders = Replica(store)
    await orders.create(4)
    await orders.bind("A")
    await orders.bind("B")
    [name, *_] = {flow.client_name for flow in orders.queue.flows.values()}
    follower = await Replica(store).follow(orders.id)
    for command in (
        c.PinPartition(3, name, "its cache"),
        c.PinPartition(0, name),
        c.PinPartition(2, "nobody"),
        c.PinPartition(0, "nobody"),
        c.UnpinPartition(2),
        c.Change({"partition_count": 3}, discard=True),
    ):
        await orders.do(command)
        await follower.catch_up()
        loaded = await store.load(orders.id)
        for queue in (loaded, follower.queue):
            assert picture(queue) == picture(orders.queue)
            assert queue.pins.of == orders.queue.pins.of
            assert {number: home.id for number, home in queue.pins.homes.items()} == {
                number: home.id for number, home in orders.queue.pins.homes.items()
            }
    assert orders.queue.pins.of == {0: ("nobody", 1000.0, None)}


async def test_a_list_counts_pins_without_effect(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.do(c.PinPartition(1, "nobody"))
    [row] = [row for row in await store.list(99, None) if row.queue.id == orders.id]
    assert row.queue.pins.of == {1: ("nobody", 1000.0, None)}
    assert row.unmet_pins == 1
