"""How many statements go to Postgres between a call and its answer.

Each is a round trip of its own, and most of what a call costs. They are counted at the driver, so
the clock does not matter. There are no other replicas: nobody waits for what is said to them, and
what is heard from them comes at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from broker.core.commands import CommitItem, ReleaseItem
from broker.replica.replica import Replica
from broker.store.commit import COMMIT
from broker.store.postgres import PostgresStore
from counterpoise import wire
from tests.broker.shell import ReplicaCalls, spec
from tests.databases import watch_connections
from tests.world.log import Logs

PARTITIONS = 64
MANY_PARTITIONS = 512


class NoAlarms:
    """Nothing happens by itself, so only what is called is counted."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    async def finish(self) -> None: ...

    def set(
        self, key: str, delay_seconds: float | None, callback: Callable[[], object]
    ) -> None: ...

    def every(self, key: str, seconds: float, callback: Callable[[], object]) -> None: ...


class LonelyStore(PostgresStore):
    """Says nothing to other replicas, and hears nothing."""

    async def notify(self, queue_ids: Sequence[str]) -> None: ...

    async def listen(self) -> AsyncIterator[Sequence[str] | None]:
        await asyncio.Event().wait()
        yield None


class Counted:
    """A replica, and the statements that its connections have sent."""

    def __init__(self, url: str) -> None:
        self.sent: list[str] = []
        self.connections: list[asyncpg.Connection[asyncpg.Record]] = []
        self.replica = Replica(LonelyStore(url), NoAlarms(), lambda: uuid4().hex)
        self.calls = ReplicaCalls(self.replica, Logs())

    async def create_queue(self, partitions: int = PARTITIONS) -> None:
        await self.calls.create_queue(
            spec(partitions=partitions, rebalance_delay=0.0, max_handoff_time=600.0)
        )

    async def bind(self, who: str) -> wire.Bound:
        return await self.calls.bind("orders", who, who, 600.0, False)

    async def sweep(self) -> None:
        """Sweeps, and lets the driver note the last statement, which it does a turn later."""
        await self.replica.sweep()
        await asyncio.sleep(0)

    @contextmanager
    def counting(self, most: int) -> Iterator[None]:
        self.sent.clear()
        yield
        # The driver itself asks once in a connection for types that it does not know.
        sent = [text for text in self.sent if "counterpoise" in text]
        assert len(sent) <= most, sent


@pytest.fixture
async def counted(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    one = Counted(migrated_url)

    def count(connection: Any) -> None:
        connection.add_query_logger(lambda query: one.sent.append(query.query))
        one.connections.append(connection)

    watch_connections(monkeypatch, count)
    await one.replica.start()
    yield one
    await one.replica.stop()


def items(update: wire.Update, state: str) -> list[ReleaseItem]:
    return [
        ReleaseItem(seen.partition, seen.epoch, "7")
        for seen in update.partitions
        if seen.state == state
    ]


async def test_each_call_of_a_flow_is_one_statement(counted: Counted) -> None:
    calls = counted.calls
    await counted.create_queue()
    first = await counted.bind("first")
    await counted.sweep()
    with counted.counting(most=1):
        await calls.heartbeat("orders", first.flow_id)
    owned = items(await calls.update("orders", first.flow_id), "owned")
    assert len(owned) == PARTITIONS
    commits = [CommitItem(one.partition, one.epoch, "7") for one in owned[:3]]
    with counted.counting(most=1):
        done = await calls.commit("orders", first.flow_id, 1, commits)
    assert done.update is not None
    assert {seen.position for seen in done.update.partitions[:3]} == {"7"}
    await counted.sweep()
    with counted.counting(most=1):
        second = await counted.bind("second")
    revoking = items(await calls.update("orders", first.flow_id), "revoking")
    assert len(revoking) == PARTITIONS // 2
    await counted.sweep()
    with counted.counting(most=1):
        released = await calls.release("orders", first.flow_id, 2, revoking)
    assert {result.outcome for result in released.results} == {"ok"}
    assert released.update is not None
    assert len(released.update.partitions) == PARTITIONS // 2
    await counted.sweep()
    with counted.counting(most=1):
        await calls.unbind("orders", second.flow_id)


async def test_a_decision_is_committed_without_planning_it_again(counted: Counted) -> None:
    """A long statement that the driver does not keep costs a round trip more, and the server takes
    longer to plan it than to carry it out."""
    await counted.create_queue()
    for number in range(20):
        await counted.bind(f"flow {number}")
    kept = []
    for connection in counted.connections:
        kept += await connection.fetch(
            "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement = $1",
            COMMIT.text,
        )
    assert sum(plans for (plans,) in kept) == 20
    assert len(kept) < 5


@pytest.mark.parametrize("partitions", [PARTITIONS, MANY_PARTITIONS])
async def test_a_waiting_flow_is_told_without_another_statement(
    counted: Counted, partitions: int
) -> None:
    """Its renewal goes with the commit that changes its view, and so do the positions."""
    await counted.create_queue(partitions)
    first = await counted.bind("first")
    await counted.sweep()
    revision = (await counted.calls.update("orders", first.flow_id)).revision
    with counted.counting(most=1):
        waiting = counted.calls.wait_update("orders", first.flow_id, revision, 60.0)
        polling = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        await counted.bind("second")
        update = await polling
    assert update is not None
    assert len(items(update, "revoking")) == partitions // 2
