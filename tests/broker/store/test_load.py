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
from broker.core.draft import SLICE
from broker.core.queue import Queue
from broker.store.ports import Store
from broker.store.reading import Restoring, restore
from broker.store.rows import flow_values, partition_values, queue_values
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
    st.sampled_from([SLICE, 1, 2, 3]),
    st.none() | QUOTAS,
)
async def test_loading_equals_replaying(
    store: Store,
    partitions: int,
    chosen: dict[str, Any],
    steps: list[tuple[Any, ...]],
    sizes: list[int],
    most: int,
    quota: c.Quota | None,
) -> None:
    """Several decisions go into one commit, as in the mailbox; `sizes` are their numbers.

    With slices of `most` partitions, commits fall between the slices of one decision too.
    """
    world = World(partitions, checked=False, most=most, **chosen)
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
        assert stored(loaded) == stored(orders.queue)
        if turn % 3 == 0 or not waiting:
            await late.catch_up()
            assert stored(late.queue) == stored(loaded)
    await _counts_agree(store, orders)


def stored(queue: Queue) -> dict[str, Any]:
    """The state of a queue without what only the replica knows that was cut off in a decision."""
    state = snapshot(queue)
    for name in ("unfinished_at", "granting", "changed"):
        del state[name]
    for flow in state["gone"].values():
        del flow["view_revision"]
    return state


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
    made = Restoring.queue

    def watched(self: Restoring) -> Queue:
        with psycopg.connect(postgres.url) as connection:
            idle.extend(number for (number,) in connection.execute(IDLE))
        return made(self)

    monkeypatch.setattr(Restoring, "queue", watched)
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


async def test_rows_are_read_in_pieces(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of partitions and of keys, some of them of removed partitions."""
    orders = Replica(await postgres.store())
    await orders.create_dynamic(*"abcdef")
    await orders.bind("f")
    children = tuple(c.NewChild(key, ("a",)) for key in "zyxw")
    await orders.do(c.Children("f", (c.ChildrenItem(0, 1, children, True),)))
    await orders.do(c.Children("f", (c.ChildrenItem(1, 1, (), True),)))
    for at_once in (1, 2, 3, 10):
        monkeypatch.setattr("broker.store.reading.ROWS_AT_ONCE", at_once)
        assert snapshot(await orders.store.load(orders.id)) == snapshot(orders.queue)


def read_from(world: World, next_deadline: float | None) -> None:
    """The queue is read from its rows, with this deadline in its own."""
    queue = world.queue
    world.queue = restore(
        "id",
        queue_values(queue, next_deadline),
        [flow_values(flow) for flow in queue.flows.values()],
        [partition_values(queue, partition) for partition in queue.partitions.values()],
        [flow_values(flow) for flow in queue.gone.values()],
    )
    world.checked = False


def test_what_is_left_of_a_resize_is_due_where_its_row_does_not_say_so() -> None:
    """A version that makes no slices writes none, and so does the restore of a backup."""
    world = World(2, most=2)
    world.resize(9)
    assert len(world.queue.partitions) < 9
    read_from(world, None)
    world.advance()
    assert len(world.queue.partitions) == 9
    assert not world.queue.is_resizing


def test_what_is_left_of_a_departure_is_due_where_its_row_does_not_say_so() -> None:
    """The next deadline may be that of a handoff, at the very time of the cut. A warm-up ends after
    what may make it needless."""
    world = World.owning(
        {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}, rebalance_delay=0.0, max_warmup_time=3.0
    )
    world.bind("C", warmup=True)
    world.drain("B")
    assert world.on_their_way() == dict.fromkeys((4, 5, 6, 7), ("warming", "C"))
    # As of one of many that bind: what can wait for the others waits.
    world.most = 0
    world.bind("B2", "i-B")
    read_from(world, world.queue.next_deadline())
    world.most = 1
    world.wait(3.0)
    while world.do(c.Advance()).entries:
        pass
    assert world.owners() == {"A": [0, 1, 2, 3], "B2": [4, 5, 6, 7], "C": []}
    assert world.on_their_way() == {3: ("warming", "C"), 7: ("revoking", "C")}
