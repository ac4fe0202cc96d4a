"""What flows report: the latest report counts, and only while it holds."""

import asyncio

import psycopg

from broker.core import commands as c
from broker.store.conditions import Condition
from broker.store.ports import Store
from tests.broker.store.support import Ground, PostgresGround, Replica, bind

AWAY = Condition("log_away", "no answer", None, None, 5.0)


def poison(number: int, epoch: int, kind: str = "quarantined") -> Condition:
    return Condition(kind, "at 7: ValueError: ä\n", number, epoch, 6.5)


async def test_a_flow_reports_all_at_once(store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    told = store.conditions
    assert await told.of_flow("A") == ()
    await told.report("A", 1, [AWAY, poison(0, 1), poison(3, 1)])
    assert await told.of_flow("A") == (AWAY, poison(0, 1), poison(3, 1))
    held = [("A", AWAY), ("A", poison(0, 1)), ("A", poison(3, 1))]
    assert await told.of_queue(orders.id, 10) == held
    assert await told.of_queue(orders.id, 2) == held[:2]
    assert await told.counts([orders.id]) == {orders.id: {"log_away": 1, "quarantined": 2}}
    await told.report("A", 2, [poison(3, 1)])
    assert await told.counts([orders.id]) == {orders.id: {"quarantined": 1}}
    await told.report("A", 3, [])
    assert await told.of_queue(orders.id, 10) == []
    assert await told.counts([orders.id]) == {}


async def test_a_late_report_changes_nothing(store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    told = store.conditions
    await told.report("A", 2, [])
    for late in (1, 2):
        await told.report("A", late, [AWAY])
        assert await told.of_flow("A") == ()


async def test_a_condition_ends_with_its_epoch_and_its_flow(store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    told = store.conditions
    numbers = sorted(orders.queue.partitions)
    await told.report("A", 1, [AWAY, *(poison(number, 1) for number in numbers)])
    await orders.do(bind("B"))
    moving = sorted(orders.queue.handoffs)
    items = tuple(c.ReleaseItem(number, 1) for number in moving)
    await orders.do(c.Release("A", items))
    assert await told.counts([orders.id]) == {
        orders.id: {"log_away": 1, "quarantined": len(numbers) - len(moving)}
    }
    await orders.do(c.Unbind("A"))
    assert await told.counts([orders.id]) == {}
    assert await told.of_queue(orders.id, 10) == []
    await told.report("A", 9, [AWAY])
    assert await told.counts([orders.id]) == {}


async def test_a_stranger_cannot_report_on_a_partition(store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    await orders.do(bind("B"))
    theirs = min(orders.queue.flows["A"].owned)
    told = store.conditions
    await told.report("B", 1, [poison(theirs, 1), poison(77, 1), poison(theirs, 9)])
    assert await told.counts([orders.id]) == {}
    # Nor its owner, under an epoch that is over or has not come.
    await told.report("A", 1, [poison(theirs, 0), poison(theirs, 2)])
    assert await told.counts([orders.id]) == {}
    assert await told.of_queue(orders.id, 10) == []
    await told.report("nobody", 1, [AWAY])
    assert await told.of_flow("nobody") == ()


async def test_kinds_of_later_clients_are_counted_as_one(store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    told = store.conditions
    await told.report("A", 1, [poison(0, 1, "moon_full"), poison(1, 1, "tide_low")])
    assert await told.counts([orders.id, "none"]) == {orders.id: {"other": 2}}


async def test_reports_go_with_their_queue(ground: Ground, store: Store, orders: Replica) -> None:
    await orders.do(bind("A"))
    await store.conditions.report("A", 1, [AWAY])
    await store.delete(orders.id, force=True)
    assert await store.conditions.of_queue(orders.id, 10) == []
    assert await store.conditions.of_flow("A") == ()


async def test_a_report_amid_the_deletion_of_its_queue_is_dropped(
    postgres: PostgresGround,
) -> None:
    store = await postgres.store()
    orders = Replica(store)
    await orders.create(1)
    await orders.do(bind("A"))
    with psycopg.connect(postgres.url) as deletion:
        deletion.execute("SELECT FROM counterpoise.flows FOR UPDATE")
        report = asyncio.ensure_future(store.conditions.report("A", 1, [AWAY]))
        await postgres.until_waiting()
        deletion.execute("DELETE FROM counterpoise.flows")
    await report
