"""The database's clock is set: waits do not become longer, and no flow loses its lease.

Postgres' clock runs while a test does, and a machine may stall. So a gap is long here and a step of
the clock longer.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from broker.core import commands as c
from broker.store.ports import Outage, Store
from tests.broker.store.support import Ground, PostgresGround, Replica, bind

HOUR = 3600.0
GAP_SECONDS = 100.0


def near(seconds: float) -> object:
    """A time of the store's clock, however slow the test is."""
    return pytest.approx(seconds, abs=50)


async def pulse(store: Store) -> tuple[float, Outage | None]:
    """Stamps; returns the time, and the latest outage."""
    told = await store.pulse(GAP_SECONDS)
    return told.now, told.outage


async def test_a_clock_that_goes_back_prolongs_no_lease(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await pulse(store)
    await orders.bind("A", lease=200.0)
    await orders.bind("B", lease=400.0)
    ground.pass_time(-HOUR)
    now, outage = await pulse(store)
    assert outage is not None
    assert outage.seconds == near(-HOUR)
    assert outage.began == near(now + HOUR)
    assert await store.leases(["A", "B"]) == {"A": near(now + 200), "B": near(now + 400)}
    for _ in range(3):
        assert (await store.expiries(orders.id)).expired == ()
        ground.pass_time(90)
        assert (await pulse(store))[1] == outage
    assert (await store.expiries(orders.id)).expired == ("A",)


async def test_a_flow_that_renewed_after_the_clock_went_back_stays_bound(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await pulse(store)
    await orders.bind("A", lease=200.0)
    ground.pass_time(-HOUR)
    await store.renew(["A"])
    now, _ = await pulse(store)
    assert (await store.expiries(orders.id)).expired == ()
    assert await store.leases(["A"]) == {"A": near(now + 200)}


async def test_a_flow_that_was_dead_when_the_clock_went_back_expires_a_lease_later(
    ground: Ground, store: Store, orders: Replica
) -> None:
    """It looks like a flow that has renewed since; but it does not stay for an hour."""
    await pulse(store)
    await orders.bind("A", lease=60.0)
    ground.pass_time(90)
    await pulse(store)
    assert (await store.expiries(orders.id)).expired == ("A",)
    ground.pass_time(-HOUR)
    now, _ = await pulse(store)
    assert await store.leases(["A"]) == {"A": near(now + 60)}


async def test_one_of_all_replicas_notices_that_the_clock_went_back(
    ground: Ground, store: Store
) -> None:
    await pulse(store)
    replicas = [store, *[await ground.store() for _ in range(3)]]
    ground.pass_time(-HOUR)
    told = await asyncio.gather(*(pulse(replica) for replica in replicas))
    assert len({outage for _, outage in told}) == 1
    assert await store.outages(0) == [told[0][1]]


async def test_a_small_step_of_the_clock_is_ignored(ground: Ground, store: Store) -> None:
    await pulse(store)
    for seconds in (-30.0, 30.0):
        ground.pass_time(seconds)
        assert (await pulse(store))[1] is None


async def test_a_queue_is_due_until_its_deadlines_moved_with_the_clock(
    ground: Ground, store: Store
) -> None:
    """All replicas that had it in memory may be dead."""
    now, _ = await pulse(store)
    orders, quiet = Replica(store, now), Replica(store, now)
    await orders.create(2, rebalance_delay=200.0)
    await quiet.create(2)
    await orders.do(bind("A", lease=2000.0))
    ground.pass_time(-HOUR)
    assert await store.due(10) == []
    now, outage = await pulse(store)
    assert await store.due(10) == [orders.id]
    assert outage is not None
    other = await Replica(store, now).follow(orders.id)
    await other.do(c.MoveDeadlines(outage.id, outage.began, outage.seconds))
    assert await store.due(10) == []
    assert (await store.load(orders.id)).next_deadline() == near(now + 200)
    for _ in range(3):
        ground.pass_time(90)
        await pulse(store)
    assert await store.due(10) == [orders.id]


async def test_a_replica_that_waited_to_stamp_sees_no_step_of_the_clock(
    postgres: PostgresGround,
) -> None:
    """While one replica dealt with an outage, another had read the time already."""
    store = await postgres.store()
    await store.pulse()
    postgres.pass_time(60)
    with psycopg.connect(postgres.url) as holder:
        holder.execute("SELECT FROM counterpoise.service FOR UPDATE")
        asked = asyncio.create_task(store.pulse(gap_seconds=0.3))
        await postgres.until_waiting()
        holder.execute("SELECT pg_sleep(0.5)")
        holder.execute(
            "UPDATE counterpoise.service SET stamped_at = extract(epoch FROM clock_timestamp())"
        )
    await asked
    assert [outage for outage in await store.outages(0) if outage.seconds < 0] == []
