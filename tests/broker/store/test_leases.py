"""Leases: renewed by calls of the client, over only while replicas serve, fenced both ways."""

from __future__ import annotations

import asyncio

import pytest

from broker.core import commands as c
from broker.store.ports import LeaseRenewed, Store
from tests.broker.store.support import Ground, Replica, bind


def near(seconds: float) -> object:
    """A time of the store's clock: Postgres' clock runs on, and a machine may stall."""
    return pytest.approx(seconds, abs=10.0)


# A time without a stamp that is not an outage yet, for tests that let less pass at once.
GAP_SECONDS = 60.0


def expire(name: str) -> c.Unbind:
    return c.Unbind(name, "lease_expired")


async def test_a_lease_begins_at_the_bind(store: Store, orders: Replica) -> None:
    now = (await store.pulse()).now
    await orders.bind("A", lease=30.0)
    await orders.bind("B", lease=60.0)
    assert await store.leases(["A", "B", "nobody"]) == {"A": near(now + 30), "B": near(now + 60)}


async def test_renewing_begins_a_lease_anew(ground: Ground, store: Store, orders: Replica) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", "B", lease=60.0)
    ground.pass_time(40)
    leases = await store.renew(["B", "A", "nobody", "A"])
    now = (await store.pulse(gap_seconds=GAP_SECONDS)).now
    assert leases.keys() == {"A", "B"}
    assert leases["A"] is not None
    assert leases["A"].expires_at == near(now + 60)
    assert leases["A"].view_revision == orders.queue.flows["A"].view_revision
    assert await store.leases(["A"]) == {"A": leases["A"].expires_at}


async def test_renewing_no_flows_changes_nothing(store: Store) -> None:
    assert await store.renew([]) == {}
    assert await store.leases([]) == {}


async def test_a_flow_that_left_renews_nothing(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B")
    await orders.do(c.Unbind("A"))
    assert (await store.renew(["A", "B"])).keys() == {"B"}
    assert (await store.leases(["A", "B"])).keys() == {"B"}


async def test_a_flow_that_left_is_not_renewed_by_a_commit(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B")
    await orders.do(c.Unbind("A"))
    before = await store.flow_rows(["A"])
    await orders.do(bind("C"), renewed=frozenset({"A"}))
    assert await store.flow_rows(["A"]) == before
    assert await store.renew(["A"]) == {}


async def test_a_renewal_in_a_commit_changes_nothing_else_of_a_flow(
    store: Store, orders: Replica
) -> None:
    await orders.bind("A", "B")
    await orders.do(c.Drain("A", 600.0))
    before = orders.queue.flows["A"].drain_deadline
    assert before is not None
    commit = orders.commit_of(*orders.decide(bind("C")), renewed=frozenset({"A"}))
    commit.flows = [orders.queue.flows["C"]]
    await store.commit(commit)
    flow = (await store.load(orders.id)).flows["A"]
    assert (flow.draining, flow.drain_deadline) == (True, before)


async def test_expiries_name_expired_flows_and_the_next_expiry(
    ground: Ground, store: Store, orders: Replica
) -> None:
    assert await store.expiries(orders.id) == await store.expiries("no queue")
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("C", "A", lease=20.0)
    await orders.bind("B", lease=600.0)
    assert (await store.expiries(orders.id)).expired == ()
    ground.pass_time(25)
    expiry = await store.expiries(orders.id)
    assert expiry.expired == ("A", "C")
    assert expiry.next_at == (await store.leases(["B"]))["B"]


async def test_a_lease_that_is_over_ends_the_flow(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", lease=20.0)
    ground.pass_time(25)
    await orders.do(expire("A"), expired=frozenset({"A"}))
    row = (await store.flow_rows(["A"])).get("A")
    assert row is not None
    assert row.reason == "lease_expired"


async def test_a_flow_that_renewed_in_time_stays_and_nothing_is_committed(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", "B", lease=20.0)
    ground.pass_time(25)
    assert (await store.expiries(orders.id)).expired == ("A", "B")
    await store.renew(["B"])
    with pytest.raises(LeaseRenewed) as spared:
        await orders.do(expire("A"), expire("B"), expired=frozenset({"A", "B"}))
    assert spared.value.flow_ids == {"B"}
    assert set((await store.load(orders.id)).flows) == {"A", "B"}
    await orders.do(expire("A"), expired=frozenset({"A"}))
    assert set((await store.load(orders.id)).flows) == {"B"}


async def test_renewal_and_expiry_at_once_agree(
    ground: Ground, store: Store, orders: Replica
) -> None:
    others = [await ground.store() for _ in range(2)]
    for n in range(6):
        name = f"F{n}"
        await store.pulse(gap_seconds=GAP_SECONDS)
        await orders.bind(name, lease=20.0)
        ground.pass_time(25)
        *renewals, end = await asyncio.gather(
            *(other.renew([name]) for other in others),
            orders.do(expire(name), expired=frozenset({name})),
            return_exceptions=True,
        )
        row = (await store.flow_rows([name])).get(name)
        assert row is not None
        if isinstance(end, LeaseRenewed):
            assert row.reason is None
            assert any(renewals)
        else:
            assert row.reason == "lease_expired"


async def test_a_call_in_a_commit_brings_an_expired_flow_back(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", "B", lease=20.0)
    ground.pass_time(25)
    await orders.do(c.Drain("A"), renewed=frozenset({"A"}))
    assert (await store.expiries(orders.id)).expired == ("B",)


async def test_no_lease_is_over_before_the_first_pulse(ground: Ground) -> None:
    store = await ground.store()
    orders = Replica(store)
    await orders.create(2)
    await orders.bind("A", lease=1.0)
    ground.pass_time(5)
    assert (await store.expiries(orders.id)).expired == ()
    assert await store.due(10) == []
    await store.pulse()
    assert (await store.expiries(orders.id)).expired == ("A",)


# Times in which no replica serves


async def test_leases_do_not_run_while_no_replica_serves(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await orders.bind("A", lease=20.0)
    ground.pass_time(60)
    assert (await store.expiries(orders.id)).expired == ()
    assert await store.due(10) == []
    with pytest.raises(LeaseRenewed):
        await orders.do(expire("A"), expired=frozenset({"A"}))
    pulse = await store.pulse()
    assert pulse.outage is not None
    assert pulse.outage.seconds == near(60)
    assert pulse.outage.began == near(pulse.now - 60)
    assert await store.leases(["A"]) == {"A": near(pulse.now + 20)}
    assert (await store.expiries(orders.id)).expired == ()


async def test_a_flow_that_was_expired_before_the_outage_stays_expired(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", lease=10.0)
    await orders.bind("B", lease=200.0)
    ground.pass_time(20)
    await store.pulse(gap_seconds=GAP_SECONDS)
    ground.pass_time(600)
    await store.pulse(gap_seconds=GAP_SECONDS)
    assert (await store.expiries(orders.id)).expired == ("A",)


async def test_one_of_all_replicas_notices_an_outage(
    ground: Ground, store: Store, orders: Replica
) -> None:
    replicas = [store, *[await ground.store() for _ in range(3)]]
    await orders.bind("A", lease=5.0)
    ground.pass_time(600)
    pulses = await asyncio.gather(*(replica.pulse(GAP_SECONDS) for replica in replicas))
    assert len({pulse.outage for pulse in pulses}) == 1
    first = (await store.pulse(GAP_SECONDS)).outage
    assert first is not None
    ground.pass_time(20)
    for replica in replicas:
        assert (await replica.pulse(GAP_SECONDS)).outage == first
    ground.pass_time(600)
    second = (await store.pulse(GAP_SECONDS)).outage
    assert second is not None
    assert second.id > first.id
    assert await store.outages(first.id - 1) == [first, second]
    assert await store.outages(first.id) == [second]
    assert await store.outages(second.id) == []


async def test_a_replica_that_restarts_among_others_extends_nothing(
    ground: Ground, store: Store, orders: Replica
) -> None:
    await store.pulse(gap_seconds=GAP_SECONDS)
    await orders.bind("A", lease=50.0)
    [end] = (await store.leases(["A"])).values()
    for _ in range(4):
        ground.pass_time(20)
        assert (await store.pulse(gap_seconds=GAP_SECONDS)).outage is None
    other = await ground.store()
    assert (await other.pulse(gap_seconds=GAP_SECONDS)).outage is None
    assert (await store.expiries(orders.id)).expired == ("A",)
    assert end is not None


async def test_the_gap_is_the_callers(ground: Ground, store: Store) -> None:
    await store.pulse(gap_seconds=20)
    ground.pass_time(10)
    assert (await store.pulse(gap_seconds=20)).outage is None
    ground.pass_time(10)
    assert (await store.pulse(gap_seconds=5)).outage is not None


# Due queues


async def test_queues_are_due_by_their_deadlines_and_leases(ground: Ground, store: Store) -> None:
    now = (await store.pulse(gap_seconds=300)).now
    quiet, handing, dying = (Replica(store, now) for _ in range(3))
    await quiet.create(2)
    await handing.create(2, max_handoff_time=60)
    await dying.create(2)
    await quiet.bind("Q", lease=600.0)
    await handing.bind("H1", lease=600.0)
    await handing.bind("H2", lease=600.0)
    await dying.bind("D", lease=50.0)
    assert handing.queue.next_deadline() is not None
    assert await store.due(10) == []
    ground.pass_time(100)
    assert await store.due(10) == [dying.id, handing.id]
    assert await store.due(1) == [dying.id]
    await store.renew(["D"])
    assert await store.due(10) == [handing.id]
    handing.now += 100
    await handing.do(c.Advance())
    assert await store.due(10) == []


async def test_the_deadline_of_a_holddown_is_due(ground: Ground, store: Store) -> None:
    now = (await store.pulse(gap_seconds=300)).now
    orders = Replica(store, now)
    await orders.create(2, rebalance_delay=50.0)
    await orders.do(bind("A", lease=600.0))
    assert await store.due(10) == []
    ground.pass_time(100)
    assert await store.due(10) == [orders.id]
