"""Dynamic queues in the store: rows and records give the same queue, and keys stay."""

from __future__ import annotations

from typing import Any

from broker.core import commands as c
from broker.core.queue import Queue
from broker.store.ports import Store
from tests.broker.store.support import Replica
from tests.world.store import picture


def graph(queue: Queue) -> Any:
    lineage = queue.lineage
    assert lineage is not None
    nodes = {
        node.key: (node.number, node.parents, set(node.children), node.pending, node.open)
        for node in lineage.nodes.values()
    }
    return nodes, lineage.numbers, lineage.taken, lineage.next_number, lineage.over


async def test_loading_equals_replaying_at_every_step(store: Store) -> None:
    orders = Replica(store)
    await orders.create_dynamic("a", "b")
    await orders.bind("f")
    follower = await Replica(store).follow(orders.id)
    split = (c.NewChild("c", ("a",), 7, "5"), c.NewChild("d", ("a", "b")))
    steps: list[tuple[c.ChildrenItem, ...]] = [
        (c.ChildrenItem(0, 1, split),),
        (c.ChildrenItem(0, 1, (), True),),
        (c.ChildrenItem(1, 1, (c.NewChild("e", ("b",)),), True),),
        (c.ChildrenItem(7, 1, (), True), c.ChildrenItem(8, 1, (), True)),
        (c.ChildrenItem(9, 1, (), True),),
    ]
    for items in steps:
        await orders.do(c.Children("f", items))
        await follower.catch_up()
        loaded = await store.load(orders.id)
        for queue in (loaded, follower.queue):
            assert graph(queue) == graph(orders.queue)
            assert picture(queue) == picture(orders.queue)
    assert not orders.queue.partitions
    positions = await store.positions(orders.id)
    assert not positions
    await orders.do(c.Unbind("f"))
    [row] = [row for row in await store.list(99, None) if row.queue.id == orders.id]
    assert row.operational_partition_count == 0
    await store.delete(orders.id, force=False)


async def test_a_child_begins_where_it_was_reported_to(store: Store) -> None:
    orders = Replica(store)
    await orders.create_dynamic("a")
    await orders.bind("f")
    split = (c.NewChild("b", ("a",), 3, "5"), c.NewChild("c", ("a",)))
    await orders.do(c.Children("f", (c.ChildrenItem(0, 1, split),)))
    assert await store.positions(orders.id) == {0: (1, None), 3: (0, "5"), 4: (0, None)}
