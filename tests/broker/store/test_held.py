"""Rows that another transaction holds are left out, and delay no other rows."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from broker.core.commands import Outcome
from broker.store import partition_writes, writing
from broker.store.ports import Commit, StoreUnavailable
from tests.broker.store.support import Ground, PostgresGround, Replica
from tests.core.oracle import snapshot

# Less than the limit for lock waits in the database (10 s), and more than the limit for idle
# transactions (2 s).
SOON_SECONDS = 9.0


async def test_a_renewal_waits_for_no_lock(ground: Ground, orders: Replica) -> None:
    await orders.bind("A", "B")
    with ground.holding(["A"]):
        async with asyncio.timeout(SOON_SECONDS):
            leases = await orders.store.renew(["A", "B", "nobody"])
        assert leases.keys() == {"A", "B"}
        assert leases["A"] is None
        assert leases["B"] is not None
    assert (await orders.store.renew(["A"]))["A"] is not None


async def test_a_commit_of_positions_waits_for_no_lock(ground: Ground, orders: Replica) -> None:
    other, store = Replica(orders.store), orders.store
    await other.create(1)
    await orders.bind("A")
    await other.bind("B")
    items = [orders.position("A", n, f"{n}") for n in (0, 1)] + [other.position("B", 0, "9")]
    with ground.holding([], [(orders.id, 0)]):
        async with asyncio.timeout(SOON_SECONDS):
            held, *free = await store.commit_positions(items)
        assert held is None
        assert [result and result.outcome for result in free] == [Outcome.OK] * 2
    assert await store.positions(orders.id, [0, 1]) == {0: (1, None), 1: (1, "1")}
    assert await store.positions(other.id) == {0: (1, "9")}
    assert None not in await store.commit_positions(items)
    assert await store.positions(orders.id, [0]) == {0: (1, "0")}


async def test_without_its_renewal_nothing_of_a_flow_is_committed(
    ground: Ground, orders: Replica
) -> None:
    """A commit that answers `ok` has renewed the lease."""
    await orders.bind("A")
    with ground.holding(["A"]):
        async with asyncio.timeout(SOON_SECONDS):
            items = [orders.position("A", 0, "1"), orders.position("A", 77, "1", epoch=1)]
            held, missing = await orders.store.commit_positions(items)
        assert held is None
        assert missing is not None
        assert missing.outcome is Outcome.NO_SUCH_PARTITION
    assert await orders.store.positions(orders.id, [0]) == {0: (1, None)}


async def test_the_locks_of_a_frozen_transaction_end_soon(
    postgres: PostgresGround,
) -> None:
    """The database ends the transaction, and with it its locks."""
    frozen, store = await postgres.store(), await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    async with frozen._connections._engine.connect() as connection:
        await connection.execute(text("SELECT FROM counterpoise.queues FOR UPDATE"))
        async with asyncio.timeout(SOON_SECONDS):
            await orders.bind("A")
        await connection.invalidate()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_commit_that_the_database_has_ended_is_made_again(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """As by a busy event loop; but not without end."""
    store = await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    before = snapshot(orders.queue)
    busy = [True] * times
    write_partitions = partition_writes.write_partitions

    async def late(connection: AsyncConnection, commit: Commit) -> None:
        if busy and busy.pop():
            limit = "SET LOCAL idle_in_transaction_session_timeout = '10ms'"
            await connection.execute(text(limit))
            time.sleep(0.2)  # noqa: ASYNC251 - the loop is what is held up
        await write_partitions(connection, commit)

    monkeypatch.setattr(writing, "write_partitions", late)
    if times == 1:
        await orders.bind("A")
    else:
        with pytest.raises(StoreUnavailable):
            await orders.bind("A")
        assert snapshot(orders.queue) == before
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)
