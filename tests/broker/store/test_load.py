"""A queue loaded from its rows equals one that replayed its records, after any commands."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from broker.core import commands as c
from broker.core import records as r
from broker.core.queue import Queue
from broker.store.ports import Store
from broker.store.reading import QueueRows, restore
from tests.broker.core.oracle import snapshot
from tests.broker.core.test_sequences import QUOTAS, SETTINGS, STEPS, Player
from tests.broker.core.world import World
from tests.broker.store.support import PostgresGround, Replica
from tests.budgets import budget

IDLE = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


# Generated examples do not depend on the store's code, so few examples are enough.
@settings(
    max_examples=budget(25),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.integers(1, 9),
    SETTINGS,
    st.lists(STEPS, min_size=10, max_size=40),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.none() | QUOTAS,
)
async def test_loading_equals_replaying(
    store: Store,
    partitions: int,
    chosen: dict[str, Any],
    steps: list[tuple[Any, ...]],
    sizes: list[int],
    quota: c.Quota | None,
) -> None:
    """Several decisions go into one commit, as in the mailbox; `sizes` are their numbers."""
    world = World(partitions, checked=False, **chosen)
    player = Player(world, quota)
    for step in [("bind", True), ("bind", False), *steps]:
        player.play(step)
    orders = Replica(store, now=0.0)
    await orders.create(partitions, **(chosen | {"log": ""}))
    try:
        await _commit_all(orders, world, sizes)
    finally:
        # Flows of the next example have the same ids.
        await store.delete(orders.id, force=True)


async def _commit_all(orders: Replica, world: World, sizes: list[int]) -> None:
    store = orders.store
    late = await Replica(store).follow(orders.id)
    waiting = [entry.records for entry in world.entries[1:]]
    turn = 0
    while waiting:
        size = sizes[turn % len(sizes)]
        turn += 1
        entries = [orders.replay(records) for records in waiting[:size]]
        waiting = waiting[size:]
        await store.commit(orders.commit_of(*entries))
        orders.settle()
        loaded = await store.load(orders.id)
        assert snapshot(loaded) == snapshot(orders.queue)
        if turn % 3 == 0 or not waiting:
            await late.catch_up()
            assert snapshot(late.queue) == snapshot(loaded)
    await _counts_agree(store, orders)


async def _counts_agree(store: Store, orders: Replica) -> None:
    queue = orders.queue
    rows = {row.queue.id: row for row in await store.list(10_000, None)}
    row = rows[queue.id]
    assert row.flow_count == len(queue.flows)
    assert row.active_flow_count == sum(flow.active for flow in queue.flows.values())
    assert row.operational_partition_count == queue.operational_partition_count
    assert row.scale_status == queue.scale_status


async def test_a_loaded_queue_goes_on_as_the_other(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B", "C", warmup=True)
    other = await Replica(store, orders.now).follow(orders.id)
    await other.bind("D")
    await orders.catch_up()
    assert snapshot(orders.queue) == snapshot(other.queue)


async def test_a_flow_that_keeps_state_is_known_after_other_changes_of_it(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2, access_type="exclusive")
    await orders.bind("A", keeps_state=True)
    await orders.do(c.Drain("A"))
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)
    assert orders.queue.flows["A"].keeps_state


async def test_a_loaded_queue_has_nothing_to_take_back(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B")
    loaded = await store.load(orders.id)
    assert loaded.journal.mark() == 0
    assert loaded.touched == set()


async def test_text_of_any_kind_comes_back(store: Store) -> None:
    """Clients choose these texts, and they are stored in arrays and in JSON."""
    orders = Replica(store)
    await orders.create(2)
    words = ["", " ", "NULL", "{a,b}", '"quoted"', "back\\slash", "snow ☃ 𝄞", "a\nb\tc", "%(x)s :y"]
    for n, word in enumerate(words):
        await orders.bind(f"{n} {word}")
    await orders.store.commit_positions([orders.position("0 ", 0, '{"at": "☃\\"}')])
    loaded = await store.load(orders.id)
    assert snapshot(loaded) == snapshot(orders.queue)
    assert (await store.positions(orders.id, [0]))[0][1] == '{"at": "☃\\"}'
    entries = await store.entries_after(orders.id, 1)
    [bound] = [record for record in entries[6].records if isinstance(record, r.FlowBound)]
    assert bound.client_name == "client 6 snow ☃ 𝄞"


async def test_a_queue_is_made_after_the_transaction_that_reads_it(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that took 2 s to make, as large ones on a busy replica, could not be loaded: the
    server ends a transaction that is idle for so long."""
    orders = Replica(await postgres.store())
    await orders.create(4)
    idle: list[int] = []

    def watched(queue_id: str, rows: QueueRows) -> Queue:
        with psycopg.connect(postgres.url) as connection:
            idle.extend(number for (number,) in connection.execute(IDLE))
        return restore(queue_id, rows)

    monkeypatch.setattr("broker.store.postgres.restore", watched)
    assert snapshot(await orders.store.load(orders.id)) == snapshot(orders.queue)
    assert idle == [0]


async def test_a_large_queue_is_created_even_if_its_table_is_not_analyzed(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation was committed and answered 503, and the queue had no log."""
    ended = text("SELECT pg_terminate_backend(pg_backend_pid())")
    monkeypatch.setattr("broker.store.postgres.ANALYZE_FROM", 4)
    monkeypatch.setattr("broker.store.postgres.text", lambda _: ended)
    orders = Replica(await postgres.store())
    await orders.create(4)
    assert snapshot(await orders.store.load(orders.id)) == snapshot(orders.queue)
