"""Mirrors in the store: who mirrors, and which mirrors fail."""

from __future__ import annotations

from broker.core import commands as c
from broker.store.mirrors import Mirrored
from broker.store.ports import Store
from tests.broker.store.support import Replica

LOG = "kafka://broker:9092/orders"


async def mirror(replica: Replica, group: str | None) -> Mirrored:
    await replica.do(c.Change({"mirror_group": group}, discard=False))
    return Mirrored(replica.id, replica.queue.settings.log, group or "")


async def test_a_claim_holds_until_it_is_over(store: Store, orders: Replica) -> None:
    mirrors = store.mirrors
    # There is nothing to mirror.
    assert not await mirrors.claim("one", 60.0)
    await mirror(orders, "g")
    assert await mirrors.claim("one", 60.0)
    assert not await mirrors.claim("two", 60.0)
    assert await mirrors.claim("one", -60.0)
    assert await mirrors.claim("two", 60.0)
    # That of the other one is longer than any: the clock was set back.
    assert await mirrors.claim("one", 30.0)


async def test_a_queue_is_mirrored_as_long_as_it_has_a_group(store: Store, orders: Replica) -> None:
    assert await store.mirrors.queues() == []
    queue = await mirror(orders, "g")
    assert await store.mirrors.queues() == [queue]
    assert (await store.load(orders.id)).settings.mirror_group == "g"
    await mirror(orders, None)
    assert await store.mirrors.queues() == []


async def test_a_failure_is_of_the_group_and_keeps_its_time(store: Store, orders: Replica) -> None:
    mirrors = store.mirrors
    queue = await mirror(orders, "g")
    assert await mirrors.failures([orders.id]) == {}
    await mirrors.report(queue, "why")
    first = (await mirrors.failures([orders.id]))[orders.id]
    await mirrors.report(queue, "why else")
    again = (await mirrors.failures([orders.id]))[orders.id]
    assert (again.text, again.since) == ("why else", first.since)
    assert await mirrors.failures(["another"]) == {}
    other = await mirror(orders, "h")
    assert await mirrors.failures([orders.id]) == {}
    await mirrors.report(other, "no")
    assert (await mirrors.failures([orders.id]))[orders.id].text == "no"
    await mirrors.report(other, None)
    assert await mirrors.failures([orders.id]) == {}


async def test_a_failure_goes_with_the_queue(store: Store, orders: Replica) -> None:
    queue = await mirror(orders, "g")
    await store.mirrors.report(queue, "why")
    await store.delete(orders.id, force=True)
    assert await store.mirrors.failures([orders.id]) == {}
    await store.mirrors.report(queue, "late")
    assert await store.mirrors.failures([orders.id]) == {}
