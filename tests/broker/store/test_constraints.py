"""Changes that the database itself refuses, whether by the service or by an administrator."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from broker.core import commands as c
from broker.core.model import HandedOver
from broker.core.transitions import State
from broker.store.ports import Store
from tests.broker.store.support import PostgresGround, Replica, bind


@pytest.fixture
async def orders(postgres: PostgresGround) -> Replica:
    """Partitions 0 and 1 with A in epoch 1, 2 on its way to B, 3 removed."""
    store = await postgres.store()
    await store.pulse()
    replica = Replica(store)
    await replica.create(4)
    await replica.bind("A", lease=60.0)
    await replica.do(c.Change({"partition_count": 3}, discard=True))
    await replica.do(bind("B"))
    assert [str(partition.state) for partition in replica.queue.partitions.values()] == [
        "owned",
        "owned",
        "revoking",
        "removed",
    ]
    return replica


PARTITION = "UPDATE counterpoise.partitions SET {} WHERE number = {}"


@pytest.mark.parametrize(
    ("number", "change", "rule"),
    [
        (0, "owner = 'B'", "one_owner_in_an_epoch"),
        (0, "owner = 'B', epoch = epoch", "one_owner_in_an_epoch"),
        (0, "owner = 'B', epoch = epoch - 1", "epochs_rise"),
        (0, "epoch = 0", "epochs_rise"),
        (3, "epoch = 0", "epochs_rise"),
        (0, "number = 7", "partitions_stay"),
        (0, "owner = NULL", "owner_of_state"),
        (0, "state = 'unassigned'", "owner_of_state"),
        (0, "state = 'removed'", "owner_of_state"),
        (3, "state = 'owned'", "owner_of_state"),
        (3, "owner = 'A', epoch = epoch + 1", "owner_of_state"),
        (0, "handed_over = NULL", "owned_in_an_epoch"),
        (0, "state = 'revoking'", "handoff_of_state"),
        (0, "deadline = 5", "handoff_of_state"),
        (0, "successor = 'B'", "handoff_of_state"),
        (2, "state = 'owned'", "handoff_of_state"),
        (2, "warm = NULL", "handoff_of_state"),
        (0, "unowned_since = 5", "unowned_since_of_state"),
        (3, "retiring = true", "removed_is_not_retiring"),
        (0, "warmed_by = 'B'", "warmed_for_an_epoch"),
        (3, "state = 'idle'", "partitions_state_check"),
        (0, "epoch = -1", "epochs_rise"),
    ],
)
async def test_a_partition_cannot_become_impossible(
    postgres: PostgresGround, orders: Replica, number: int, change: str, rule: str
) -> None:
    before = postgres.sql("SELECT * FROM counterpoise.partitions ORDER BY number")
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        postgres.sql(PARTITION.format(change, number))
    assert refused.value.diag.constraint_name == rule
    assert postgres.sql("SELECT * FROM counterpoise.partitions ORDER BY number") == before


async def test_no_owner_in_between_helps(postgres: PostgresGround, orders: Replica) -> None:
    postgres.sql(PARTITION.format("owner = NULL, state = 'unassigned'", 0))
    for owner in ("A", "B"):
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            postgres.sql(PARTITION.format(f"owner = '{owner}', state = 'owned'", 0))
        assert refused.value.diag.constraint_name == "one_owner_in_an_epoch"
    postgres.sql(PARTITION.format("owner = 'B', state = 'owned', epoch = 2", 0))


async def test_a_partition_is_there_once(postgres: PostgresGround, orders: Replica) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres.sql(
            "INSERT INTO counterpoise.partitions SELECT * FROM counterpoise.partitions LIMIT 1"
        )


_READY = "(status, trigger, rebalance) = ROW ('Ready', NULL, NULL)"


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE counterpoise.queues SET revision = revision - 1", "revisions_rise"),
        ("UPDATE counterpoise.queues SET status = 'Holddown'", "trigger_unless_ready"),
        ("UPDATE counterpoise.queues SET trigger = NULL", "trigger_unless_ready"),
        ("UPDATE counterpoise.queues SET rebalance = NULL", "open_rebalance"),
        (f"UPDATE counterpoise.queues SET {_READY}, holddown_until = 5", "end_of_holddown"),
        ("UPDATE counterpoise.queues SET name = 'a b'", "queues_name_check"),
        ("UPDATE counterpoise.queues SET rebalance_delay = -1", "queues_rebalance_delay_check"),
        ("UPDATE counterpoise.flows SET view_revision = 0", "views_rise"),
        ("UPDATE counterpoise.flows SET reason = 'unbound'", "left_with_reason"),
        ("UPDATE counterpoise.records SET at = 0", "records_stay"),
        ("INSERT INTO counterpoise.service (id, gap_seconds) VALUES (2, 3)", "service_id_check"),
    ],
)
async def test_a_queue_or_flow_cannot_become_impossible(
    postgres: PostgresGround, orders: Replica, statement: str, rule: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        postgres.sql(statement)
    # Of several broken rules Postgres names one.
    assert refused.value.diag.constraint_name in (rule, "end_of_holddown", "open_rebalance")


async def test_a_flow_that_left_cannot_be_bound_again(
    postgres: PostgresGround, orders: Replica
) -> None:
    await orders.do(c.Unbind("B"))
    for change in ("reason = NULL, left_at = NULL", "lease_expires_at = 9e9"):
        with pytest.raises(psycopg.errors.CheckViolation):
            postgres.sql(f"UPDATE counterpoise.flows SET {change} WHERE id = 'B'")


@pytest.mark.parametrize("column", ["instance_id", "bind_number"])
async def test_an_instance_or_a_seat_is_bound_once(
    postgres: PostgresGround, orders: Replica, column: str
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres.sql(
            f"UPDATE counterpoise.flows SET {column} ="
            f" (SELECT {column} FROM counterpoise.flows WHERE id = 'A') WHERE id = 'B'"
        )


# The same through the store: a defect in the service is an assertion, and nothing is written.


async def test_the_service_cannot_name_two_owners(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.bind("A", "B")
    partition = orders.queue.partitions[0]
    commit = orders.commit_of(orders.replay(()))
    assert partition.owner is orders.queue.flows["A"]
    partition.owner = orders.queue.flows["B"]
    commit.partitions = [partition]
    with pytest.raises(AssertionError, match="owner"):
        await store.commit(commit)
    loaded = await store.load(orders.id)
    assert loaded.partitions[0].owner is loaded.flows["A"]


async def test_the_service_cannot_lower_an_epoch(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.bind("A")
    commit = orders.commit_of(orders.replay(()))
    orders.queue.partitions[0].epoch = 0
    commit.partitions = [orders.queue.partitions[0]]
    with pytest.raises(AssertionError):
        await store.commit(commit)
    assert (await store.load(orders.id)).partitions[0].epoch == 1


async def test_the_service_cannot_own_without_a_state(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.bind("A")
    commit = orders.commit_of(orders.replay(()))
    partition = orders.queue.partitions[0]
    partition.state, partition.epoch = State.UNASSIGNED, 2
    partition.handed_over = HandedOver.FORCED
    commit.partitions = [partition]
    with pytest.raises(AssertionError):
        await store.commit(commit)


async def test_positions_and_leases_touch_no_index(
    postgres: PostgresGround, orders: Replica
) -> None:
    """So Postgres can update rows in place (HOT), which makes frequent changes cheap."""
    counts = (
        "SELECT sum(n_tup_upd)::int, sum(n_tup_hot_upd)::int FROM pg_stat_user_tables"
        " WHERE schemaname = 'counterpoise' AND relname IN ('partitions', 'flows')"
    )
    [(updated, hot)] = postgres.sql(counts)
    for n in range(20):
        await orders.store.commit_positions([orders.position("A", 0, str(n))])
    await orders.store.stop()
    # Server processes report their statistics when they end.
    for _ in range(3000):
        [(updated_then, hot_then)] = postgres.sql(counts)
        if updated_then >= updated + 40:
            break
        await asyncio.sleep(0.02)
    assert updated_then >= updated + 40
    assert hot_then - hot >= 0.7 * (updated_then - updated)


async def test_the_service_cannot_bind_an_instance_twice(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2)
    await orders.bind("A", "B")
    flow = orders.queue.flows["B"]
    commit = orders.commit_of(orders.replay(()))
    flow.id, flow.instance_id = "C", "i-A"
    commit.flows, commit.token_hashes = [flow], {"C": b"hash"}
    with pytest.raises(AssertionError):
        await store.commit(commit)
    assert set((await store.load(orders.id)).flows) == {"A", "B"}


async def test_the_service_cannot_make_a_flow_twice(store: Store) -> None:
    replica = Replica(store)
    await replica.create(2)
    await replica.bind("A")
    with pytest.raises(AssertionError):
        await replica.do(c.Drain("A"), token_hashes={"A": b"another"})
