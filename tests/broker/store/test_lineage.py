"""Dynamic queues in the store: rows and records give the same queue, and keys stay."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core import commands as c
from broker.core.queue import Queue
from broker.store.ports import Act, Overdue, Store, Stored
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
    assert await store.positions(orders.id) == {
        0: Stored(1, None),
        3: Stored(0, "5"),
        4: Stored(0, None),
    }


async def test_a_refused_commit_leaves_the_keys(store: Store) -> None:
    """It comes too late, which is found after everything else."""
    orders = Replica(store)
    await orders.create_dynamic("a")
    await orders.bind("f")
    child = c.NewChild("b", ("a",), 3, "5")
    added, removed = 0, 0
    for item in (
        c.ChildrenItem(0, 1, (child,)),
        c.ChildrenItem(0, 1, (), True),
        c.ChildrenItem(3, 1, (), True),
    ):
        before = await store.load(orders.id)
        commit = orders.commit_of(*orders.decide(c.Children("f", (item,))), valid=(0.0, 1.0))
        commit.acts = [Act("children", orders.queue.name)]
        with pytest.raises(Overdue):
            await store.commit(commit)
        after = await store.load(orders.id)
        assert picture(after) == picture(before)
        assert graph(after) == graph(before)
        assert not await store.keys.audit(9, None, ["*"], None)
        added, removed = added + len(commit.children), removed + len(commit.removed)
        orders.take_back()
        await orders.do(c.Children("f", (item,)))
        assert graph(await store.load(orders.id)) == graph(orders.queue)
    assert (added, removed) == (1, 2)
