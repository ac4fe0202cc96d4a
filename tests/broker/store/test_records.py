"""Records: stored by revision, for replicas that missed them, the event stream and the history."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core.records import Entry
from broker.core.stored import ShownEntry
from broker.store.ports import Store, WentBack
from tests.broker.core.oracle import snapshot
from tests.broker.store.support import Replica


async def test_a_replica_catches_up_by_records(store: Store, orders: Replica) -> None:
    late = await Replica(store).follow(orders.id)
    await orders.bind("A", warmup=True)
    await orders.bind("B", "C", warmup=True)
    await orders.do(c.Change({"partition_count": 7, "max_concurrent_handoffs": 2}))
    await orders.do(c.Drain("A", 5.0))
    await late.catch_up()
    assert snapshot(late.queue) == snapshot(orders.queue) == snapshot(await store.load(orders.id))


async def test_entries_equal_the_commits(store: Store, orders: Replica) -> None:
    commit = await orders.bind("A", "B")
    entries = await store.entries_after(orders.id, 1)
    assert entries == [
        Entry(entry.revision, entry.at, entry.records, entry.rebalance_id, commit.commit_id)
        for entry in commit.entries
    ]
    assert await store.entries_after(orders.id, 1, limit=1) == entries[:1]
    assert await store.entries_after(orders.id, 1, limit=99) == entries
    assert await store.entries_after(orders.id, orders.queue.revision) == []
    for after in (store.entries_after, store.changes_after):
        with pytest.raises(WentBack):
            await after(orders.id, 99, 1)


async def told(store: Store, queue_id: str, limit: int, before: int | None) -> list[ShownEntry]:
    revisions = await store.history(queue_id, limit, before, 1000)
    return [*await store.entries_at(queue_id, revisions)]


async def test_the_history_is_read_by_rebalance_newest_first(store: Store, orders: Replica) -> None:
    for n in range(4):
        await orders.bind(f"F{n}")
        orders.now += 10
        await orders.do(c.Advance())
    everything = await told(store, orders.id, 100, None)
    ids = [entry.rebalance_id for entry in everything if entry.rebalance_id is not None]
    assert ids == sorted(ids)
    assert len(set(ids)) == 4
    assert [entry.revision for entry in everything] == sorted(e.revision for e in everything)
    newest = await told(store, orders.id, 2, None)
    older = await told(store, orders.id, 2, 3)
    assert [*older, *newest] == everything
    assert {entry.rebalance_id for entry in newest} - {None} == {3, 4}
    assert await store.entries_at(orders.id, [0, newest[-1].revision, 99]) == newest[-1:]
    last, both = ids.count(4), ids.count(4) + ids.count(3)
    for most, rebalances in ((0, 1), (last, 1), (both - 1, 1), (both, 2)):
        found = await store.history(orders.id, 3, None, most)
        assert found == await store.history(orders.id, rebalances, None, 1000)


async def test_what_comes_before_a_rebalance_is_read_with_it(store: Store, orders: Replica) -> None:
    await orders.do(c.Change({"rebalance_delay": 5.0}))
    await orders.bind("A")
    await orders.bind("B")
    orders.now += 5
    await orders.do(c.Advance())
    first = orders.queue.revision
    await orders.do(c.Change({"rebalance_delay": 6.0}))
    await orders.do(c.Unbind("A"))
    orders.now += 6
    await orders.do(c.Advance())
    await orders.do(c.Change({"rebalance_delay": 7.0}))
    newest = await told(store, orders.id, 1, None)
    assert [entry.revision for entry in newest] == [first + 1, first + 2, first + 3]
    assert [entry.rebalance_id for entry in newest] == [None, None, 2]


async def test_clients_are_named_while_their_flows_are_stored(
    store: Store, orders: Replica
) -> None:
    now = (await store.pulse()).now
    await orders.bind("A", "B")
    await orders.do(c.Unbind("A"))
    assert (await store.flows_named(["A", "B", "nobody"])).keys() == {"A", "B"}
    assert await store.flows_named([]) == {}
    assert (await store.flows_named(["A"]))["A"].expired_at is None
    await orders.bind("C")
    await orders.do(c.Unbind("C", "lease_expired", now))
    expired_at = (await store.flows_named(["C"]))["C"].expired_at
    assert expired_at is not None
    assert expired_at >= now
    await store.purge(flows_before=now + 60, records_before=now)
    assert (await store.flows_named(["A", "B"])).keys() == {"B"}


async def test_there_is_no_history_before_the_first_rebalance(
    store: Store, orders: Replica
) -> None:
    await orders.bind("A")
    assert await told(store, orders.id, 2, 1) == []
    assert await told(store, "no queue", 2, None) == []


async def test_old_flows_and_records_are_deleted(store: Store, orders: Replica) -> None:
    now = (await store.pulse()).now
    await orders.bind("A", "B")
    await orders.do(c.Unbind("A"))
    orders.now = 2000.0
    await orders.do(c.Unbind("B"))
    await store.purge(flows_before=now - 60, records_before=1500.0)
    assert (await store.flow_rows(["A"])).get("A") is not None
    newest = orders.queue.revision
    assert [entry.revision for entry in await store.entries_after(orders.id, newest - 1)] == [
        newest
    ]
    with pytest.raises(KeyError):
        await store.entries_after(orders.id, newest - 2)
    with pytest.raises(KeyError):
        await store.entries_after(orders.id, newest - 2, limit=1)
    with pytest.raises(KeyError):
        await store.entries_after(orders.id, 0)
    await store.purge(flows_before=now + 60, records_before=9000.0)
    assert (await store.flow_rows(["A"])).get("A") is None
    assert len(await store.entries_after(orders.id, newest - 1)) == 1
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)


async def test_bound_flows_are_never_forgotten(store: Store, orders: Replica) -> None:
    now = (await store.pulse()).now
    await orders.bind("A")
    await store.purge(flows_before=now + 60, records_before=now + 60)
    assert (await store.flow_rows(["A"])).get("A") is not None
