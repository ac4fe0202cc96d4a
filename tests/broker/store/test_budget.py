"""What keys have taken, and flows that are held back, as they are stored."""

from __future__ import annotations

from broker.core import commands as c
from broker.store.ports import Store
from tests.broker.core.oracle import snapshot
from tests.broker.store.support import Replica

# One move of a flow of another key is all that is allowed.
QUOTA = c.Quota(flows=1000, moves=0, least_moves=1)


def bind(name: str, key: str, lease: float = 600.0) -> c.Bind:
    return c.Bind(name, f"i-{name}", "client", lease, key_id=key, quota=QUOTA)


async def held(store: Store) -> Replica:
    """A queue whose flow C is held back: A had all, B of another key has taken one of two."""
    orders = Replica(store)
    await orders.create(2, max_handoff_time=0.0)
    await orders.do(bind("A", "one"))
    await orders.do(bind("B", "two"))
    await orders.do(c.Advance())
    assert orders.owned("B") == [1]
    await orders.do(bind("C", "two"))
    assert orders.queue.flows.held.keys() == {"C"}
    return orders


async def test_a_loaded_queue_knows_who_is_held_back_and_what_was_taken(store: Store) -> None:
    orders = await held(store)
    loaded = await store.load(orders.id)
    assert snapshot(loaded) == snapshot(orders.queue)
    assert loaded.moved["two"].level == 1
    until = loaded.next_deadline()
    assert until == orders.queue.flows["C"].held_until
    assert until is not None
    orders.now = until
    await orders.do(c.Advance())
    loaded = await store.load(orders.id)
    assert not loaded.flows.held
    assert snapshot(loaded) == snapshot(orders.queue)


async def test_another_replica_follows(store: Store) -> None:
    orders = await held(store)
    other = await Replica(store, orders.now).follow(orders.id)
    await orders.do(c.Drain("C"), bind("D", "two"))
    await orders.do(c.Unbind("A"), c.Unbind("B"))
    await other.catch_up()
    assert snapshot(other.queue) == snapshot(orders.queue)
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)
    assert other.owned("D") == [0, 1]


async def test_who_left_while_it_was_held_back_is_gone(store: Store) -> None:
    orders = await held(store)
    await orders.do(c.Unbind("C"))
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)
    assert not orders.queue.flows.held
