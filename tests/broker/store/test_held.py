"""Rows that another transaction holds are left out, and delay no other rows.

The locks are held until the call has ended. So a call that waited for one would fail: the database
limits waits for locks.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from broker.core.commands import Outcome
from broker.store import commit
from broker.store.connections import Connections
from broker.store.ports import Conflict, Stored, StoreUnavailable
from tests.broker.core.oracle import snapshot
from tests.broker.store.support import Ground, PostgresGround, Replica


async def test_a_renewal_waits_for_no_lock(ground: Ground, orders: Replica) -> None:
    await orders.bind("A", "B")
    with ground.holding(["A"]):
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
        held, *free = (await store.commit_positions(items)).results
        assert held is None
        assert [result and result.outcome for result in free] == [Outcome.OK] * 2
    assert await store.positions(orders.id, [0, 1]) == {0: Stored(1, None), 1: Stored(1, "1")}
    assert await store.positions(other.id) == {0: Stored(1, "9")}
    assert None not in (await store.commit_positions(items)).results
    assert await store.positions(orders.id, [0]) == {0: Stored(1, "0")}


async def test_without_its_renewal_nothing_of_a_flow_is_committed(
    ground: Ground, orders: Replica
) -> None:
    """A commit that answers `ok` has renewed the lease."""
    await orders.bind("A")
    with ground.holding(["A"]):
        items = [orders.position("A", 0, "1"), orders.position("A", 77, "1", epoch=1)]
        held, missing = (await orders.store.commit_positions(items)).results
        assert held is None
        assert missing is not None
        assert missing.outcome is Outcome.NO_SUCH_PARTITION
    assert await orders.store.positions(orders.id, [0]) == {0: Stored(1, None)}


async def test_the_locks_of_a_frozen_transaction_end_soon(
    postgres: PostgresGround,
) -> None:
    """The database ends the transaction, and with it its locks, before it ends waits for them."""
    frozen, store = await postgres.store(), await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    async with frozen._connections._engine.connect() as connection:
        await connection.execute(text("SELECT FROM counterpoise.queues FOR UPDATE"))
        await orders.bind("A")
        await connection.invalidate()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_commit_without_an_answer_is_made_once(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch, times: int, carried_out: bool
) -> None:
    """It is made again when its connection ends, and is not made twice; but not without end."""
    store = await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    before = snapshot(orders.queue)
    losses = [True] * times
    fetch = Connections._fetch

    async def lossy(self: Connections, driver: Any, statement: str, arguments: Any) -> Any:
        ours = self is store._connections and statement == commit.COMMIT.text
        lost = ours and losses and losses.pop()
        if lost and not carried_out:
            await driver.close()
        rows = await fetch(self, driver, statement, arguments)
        if lost:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed")
        return rows

    monkeypatch.setattr(Connections, "_fetch", lossy)
    if times == 1:
        await orders.bind("A")
    else:
        with pytest.raises(StoreUnavailable):
            await orders.bind("A")
        assert snapshot(orders.queue) == before
    if times == 2 and carried_out:
        # A replica learns it from the records, by the commit's id.
        await orders.catch_up()
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)


async def test_a_commit_of_another_replica_is_not_taken_for_ones_own(
    postgres: PostgresGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await postgres.store(), await postgres.store()
    orders = Replica(store)
    await orders.create(2)
    rival = await Replica(other).follow(orders.id)
    fetch = Connections._fetch
    losses = [True]

    async def overtaken(self: Connections, driver: Any, statement: str, arguments: Any) -> Any:
        if self is store._connections and losses and losses.pop():
            await rival.bind("B")
            raise asyncpg.ConnectionDoesNotExistError("connection was closed")
        return await fetch(self, driver, statement, arguments)

    monkeypatch.setattr(Connections, "_fetch", overtaken)
    with pytest.raises(Conflict):
        await orders.bind("A")
    await orders.catch_up()
    assert list(orders.queue.flows) == ["B"]
