"""Creating, changing and deleting queues: the first commit wins, and nothing is half written."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from broker.core import commands as c
from broker.store.ports import (
    Conflict,
    FlowsBound,
    LeaseRenewed,
    NameTaken,
    Overdue,
    QueueGone,
    Store,
    StoreUnavailable,
)
from broker.testing.store import Fault, MemoryStore
from tests.broker.core.oracle import snapshot
from tests.broker.store.support import (
    Ground,
    MemoryGround,
    PostgresGround,
    Replica,
    bind,
    token_hash,
)


async def test_a_created_queue_is_found_by_its_name(store: Store) -> None:
    replica = Replica(store)
    await replica.create(3, "flights")
    assert await store.find("flights") == replica.id
    assert await store.find("flight") is None
    assert await store.revisions([replica.id, "nobody's"]) == {replica.id: 1}


async def test_a_name_is_taken_once(store: Store) -> None:
    await Replica(store).create(3, "flights")
    with pytest.raises(NameTaken):
        await Replica(store).create(5, "flights")
    [row] = await store.list(10, None)
    assert row.queue.settings.partition_count == 3


async def test_one_of_many_takes_a_name(ground: Ground) -> None:
    replicas = [Replica(await ground.store()) for _ in range(4)]
    ends = await asyncio.gather(
        *(replica.create(2, "flights") for replica in replicas), return_exceptions=True
    )
    assert sum(isinstance(end, NameTaken) for end in ends) == 3


async def test_a_commit_is_there_for_every_replica(ground: Ground, orders: Replica) -> None:
    await orders.bind("A", "B")
    other = await Replica(await ground.store()).follow(orders.id)
    assert snapshot(other.queue) == snapshot(orders.queue)


async def test_a_commit_that_comes_late_writes_nothing(store: Store, orders: Replica) -> None:
    now = (await store.pulse()).now
    before = snapshot(orders.queue)
    with pytest.raises(Overdue):
        await orders.do(bind("A"), valid=(now - 3, now - 0.01))
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue) == before
    await orders.do(bind("A"), valid=(now - 3, now + 30))
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)


async def test_a_commit_decided_by_a_later_time_writes_nothing(
    store: Store, orders: Replica
) -> None:
    """The clock went back since, so the age of the decision is unknown."""
    now = (await store.pulse()).now
    with pytest.raises(Overdue):
        await orders.do(bind("A"), valid=(now + 57, now + 61))
    assert not (await store.load(orders.id)).flows


async def test_a_wait_for_a_lock_makes_a_commit_late(postgres: PostgresGround) -> None:
    """Even if the holder of the lock has changed nothing."""
    store = await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    with psycopg.connect(postgres.url) as holder:
        holder.execute("SELECT FROM counterpoise.queues FOR UPDATE")
        until = (await store.pulse()).now + 0.3
        binding = asyncio.ensure_future(orders.do(bind("A"), valid=(until - 3, until)))
        while (await store.pulse()).now <= until:  # noqa: ASYNC110 - the database's clock
            await asyncio.sleep(0.02)
    with pytest.raises(Overdue):
        await binding
    assert not (await store.load(orders.id)).flows


async def test_loaded_queues_share_no_objects(store: Store, orders: Replica) -> None:
    loaded = await store.load(orders.id)
    loaded.partitions[0].epoch = 99
    loaded.settings.partition_count = 99
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)


async def test_a_commit_without_the_last_revision_conflicts(
    ground: Ground, orders: Replica
) -> None:
    late = await Replica(await ground.store()).follow(orders.id)
    await orders.bind("A")
    with pytest.raises(Conflict):
        await late.bind("B")
    assert list((await late.store.load(orders.id)).flows) == ["A"]
    assert (await late.store.flow_rows(["B"])).get("B") is None


async def test_after_a_conflict_the_missed_records_are_enough(
    ground: Ground, orders: Replica
) -> None:
    late = await Replica(await ground.store()).follow(orders.id)
    await orders.bind("A")
    with pytest.raises(Conflict):
        await late.bind("B")
    await late.catch_up()
    assert snapshot(late.queue) == snapshot(orders.queue)
    await late.bind("B")
    await orders.catch_up()
    assert snapshot(late.queue) == snapshot(orders.queue)


async def test_of_concurrent_commits_one_wins(ground: Ground, orders: Replica) -> None:
    replicas = [await Replica(await ground.store()).follow(orders.id) for _ in range(6)]
    ends = await asyncio.gather(
        *(replica.bind(f"F{n}") for n, replica in enumerate(replicas)), return_exceptions=True
    )
    assert sorted(type(end).__name__ for end in ends) == ["Commit", *["Conflict"] * 5]
    assert len((await orders.store.load(orders.id)).flows) == 1


async def test_several_decisions_are_one_commit(store: Store, orders: Replica) -> None:
    commit = await orders.bind("A", "B", "C")
    assert len(commit.entries) == 3
    assert await store.revisions([orders.id]) == {orders.id: 4}
    entries = await store.entries_after(orders.id, 1)
    assert [entry.revision for entry in entries] == [2, 3, 4]
    assert {entry.commit_id for entry in entries} == {commit.commit_id}


async def test_a_commit_without_records_needs_the_revision_too(
    ground: Ground, orders: Replica
) -> None:
    await orders.bind("A")
    late = await Replica(await ground.store()).follow(orders.id)
    await orders.store.commit(orders.commit_of(renewed=frozenset({"A"})))
    await orders.bind("B")
    with pytest.raises(Conflict):
        await late.store.commit(late.commit_of(renewed=frozenset({"A"})))


async def test_a_commit_on_a_deleted_queue_says_so(store: Store, orders: Replica) -> None:
    await store.delete(orders.id, force=False)
    with pytest.raises(QueueGone):
        await orders.bind("A")


async def test_everything_about_a_deleted_queue_is_gone(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.delete(orders.id, force=True)
    assert await store.find(orders.queue.name) is None
    assert await store.list(10, None) == []
    assert (await store.flow_rows(["A"])).get("A") is None
    assert await store.renew(["A"]) == {}
    assert await store.positions(orders.id, [0]) == {}
    assert await store.history(orders.id, 10, None, 9) == []
    for call in (
        store.load(orders.id),
        store.entries_after(orders.id, 0),
        store.delete(orders.id, force=True),
    ):
        with pytest.raises(QueueGone):
            await call
    await Replica(store).create(2, orders.queue.name)


async def test_a_queue_in_use_is_deleted_by_force_only(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    with pytest.raises(FlowsBound):
        await store.delete(orders.id, force=False)
    await orders.do(c.Unbind("A"))
    await store.delete(orders.id, force=False)
    assert await store.find(orders.queue.name) is None


async def test_deleting_and_binding_at_once_leaves_no_flow_without_a_queue(
    ground: Ground, orders: Replica
) -> None:
    other = await ground.store()
    for _ in range(5):
        replica = Replica(orders.store)
        await replica.create(2)
        ends = await asyncio.gather(
            replica.bind("A"), other.delete(replica.id, force=False), return_exceptions=True
        )
        bound = (await other.flow_rows(["A"])).get("A") is not None
        assert bound is (await other.find(replica.queue.name) is not None)
        assert isinstance(ends[1], FlowsBound) is bound
        await other.delete(replica.id, force=True) if bound else None


async def test_a_flow_that_left_is_known_with_the_reason(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B")
    row = (await store.flow_rows(["A"])).get("A")
    assert row is not None
    assert (row.flow_id, row.queue_id, row.reason) == ("A", orders.id, None)
    assert row.token_hash == token_hash("A")
    await orders.do(c.Unbind("A"))
    row = (await store.flow_rows(["A"])).get("A")
    assert row is not None
    assert (row.token_hash, row.reason) == (token_hash("A"), "unbound")
    assert (await store.flow_rows(["nobody"])).get("nobody") is None


async def test_a_replaced_flow_makes_room_for_its_instance(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await orders.do(bind("A2", "i-A"))
    row = (await store.flow_rows(["A"])).get("A")
    assert row is not None
    assert row.reason == "replaced"
    loaded = await store.load(orders.id)
    assert loaded.flows.by_instance[None, "i-A"].id == "A2"
    assert [partition.epoch for partition in loaded.partitions.values()] == [2, 2, 2, 2]


async def test_a_flow_bound_and_replaced_in_one_commit_is_known(
    store: Store, orders: Replica
) -> None:
    await orders.do(bind("A", "i"), bind("A2", "i"))
    row = (await store.flow_rows(["A"])).get("A")
    assert row is not None
    assert (row.token_hash, row.reason) == (token_hash("A"), "replaced")
    assert list((await store.load(orders.id)).flows) == ["A2"]
    assert list(await store.renew(["A", "A2"])) == ["A2"]


async def test_an_outcome_that_got_lost_is_told_by_the_commit_id(
    store: Store, orders: Replica
) -> None:
    seen = orders.queue.revision
    commit = await orders.bind("A")
    entries = await store.entries_after(orders.id, seen)
    assert [entry.commit_id for entry in entries] == [commit.commit_id]


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_simulation_can_lose_a_commit_or_its_answer(fault: Fault) -> None:
    ground = MemoryGround()
    faults: list[Fault] = []

    async def hook(method: str) -> Fault | None:
        return faults.pop() if method == "commit" and faults else None

    orders = Replica(MemoryStore(ground.database, hook=hook))
    await orders.create(2)
    faults.append(fault)
    with pytest.raises(StoreUnavailable):
        await orders.bind("A")
    carried_out = fault is Fault.UNKNOWN
    assert len(await orders.store.entries_after(orders.id, 1)) == carried_out
    await orders.catch_up()
    assert ("A" in orders.queue.flows) is carried_out


async def test_queues_are_listed_by_name_in_pages(store: Store) -> None:
    for name in ("b", "a.b", "B", "a-b", "a_b", "a"):
        await Replica(store).create(1, name)
    pages, after = [], None
    while page := await store.list(4, after):
        names = [row.queue.name for row in page]
        pages.append(names)
        after = names[-1]
    assert pages == [["B", "a", "a-b", "a.b"], ["a_b", "b"]]


async def test_a_listed_queue_has_its_counts(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B", "C", "D", "E")
    [row] = await store.list(10, None)
    assert row.queue.settings == orders.queue.settings
    assert row.queue.revision == orders.queue.revision
    assert row.queue.status == orders.queue.status
    assert row.flow_count == 5
    assert row.active_flow_count == sum(flow.active for flow in orders.queue.flows.values()) == 1
    assert (row.operational_partition_count, row.scale_status) == (4, "Ready")
    await orders.do(c.Change({"partition_count": 2}))
    await orders.do(c.Unbind("E"))
    [row] = await store.list(10, None)
    assert (row.operational_partition_count, row.scale_status) == (4, "ScalingDown")
    assert row.flow_count == 4


async def test_a_failed_commit_writes_nothing(store: Store, orders: Replica) -> None:
    """Here the last of the fences holds, after everything else of the commit was written."""
    await orders.bind("A", "B")
    before = snapshot(await store.load(orders.id))
    with pytest.raises(LeaseRenewed):
        await orders.do(bind("C"), c.Unbind("A", "lease_expired"), expired=frozenset({"A"}))
    assert snapshot(await store.load(orders.id)) == before == snapshot(orders.queue)
    assert (await store.flow_rows(["C"])).get("C") is None
    assert await store.revisions([orders.id]) == {orders.id: orders.queue.revision}
