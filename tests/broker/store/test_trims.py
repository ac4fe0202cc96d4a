"""Announced trims and the fences of commits: of the two, the later one sees the earlier."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from broker.store.ports import LogTrimmed, Store
from broker.store.trims import NEVER, End, Fence, Trimming
from tests.broker.store.support import PostgresGround, Replica, bind

LOG = "builtin:orders"


async def readers(store: Store) -> str:
    row = await store.trims.read(LOG)
    assert row is not None
    return row.readers


async def test_a_trim_is_announced_once_at_a_time(store: Store) -> None:
    trims = store.trims
    assert await trims.read(LOG) is None
    assert await trims.all() == {}
    assert not await trims.announce(LOG, "no row", "first", "{}")
    assert await trims.announce(LOG, None, "first", "{}")
    assert not await trims.announce(LOG, None, "second", "{}")
    seen = await readers(store)
    assert await trims.read(LOG) == Trimming(seen, "first", "{}")
    assert not await trims.announce(LOG, seen, "second", "{}")
    await trims.done(LOG, "another")
    assert not await trims.announce(LOG, seen, "second", "{}")
    await trims.done(LOG, "first")
    assert not await trims.announce(LOG, "other", "second", "{}")
    assert await trims.announce(LOG, seen, "second", "[]")
    assert await trims.all() == {LOG: Trimming(seen, "second", "[]")}
    await trims.forget(LOG, "other")
    await trims.forget("builtin:other", seen)
    # Nor while a trim is pending, which a queue that is made later would not meet.
    await trims.forget(LOG, seen)
    assert len(await trims.all()) == 1
    await trims.done(LOG, "second")
    await trims.forget(LOG, seen)
    assert await trims.all() == {}


async def test_a_commit_passes_only_a_fence_that_holds(store: Store, orders: Replica) -> None:
    trims = store.trims
    await orders.do(bind("A"), fences=(Fence(LOG, NEVER),))
    assert not await trims.announce(LOG, None, "first", "{}")
    seen = await readers(store)
    assert await trims.announce(LOG, seen, "first", "{}")
    for fence in (Fence(LOG, NEVER), Fence(LOG, "first")):
        with pytest.raises(LogTrimmed):
            await orders.do(bind("B"), fences=(fence,))
    assert await readers(store) == seen
    await trims.done(LOG, "first")
    with pytest.raises(LogTrimmed):
        await orders.do(bind("B"), fences=(Fence(LOG, NEVER),))
    assert "B" not in (await store.load(orders.id)).flows
    await orders.do(bind("B"), fences=(Fence(LOG, "first"),))
    assert await readers(store) != seen
    # Other logs, and commits without a fence, are not concerned.
    assert await trims.announce(LOG, await readers(store), "second", "{}")
    await orders.do(bind("C"), fences=(Fence("builtin:other", NEVER),))
    await orders.do(bind("D"))


async def test_a_queue_is_made_only_within_its_fence(store: Store) -> None:
    trims = store.trims
    await Replica(store).create(2, "one", fence=Fence(LOG, NEVER))
    assert await trims.announce(LOG, await readers(store), "first", "{}")
    for fence in (Fence(LOG, NEVER), Fence(LOG, "first")):
        with pytest.raises(LogTrimmed):
            await Replica(store).create(2, "two", fence=fence)
    assert await store.find("two") is None
    await trims.done(LOG, "first")
    await Replica(store).create(2, "two", fence=Fence(LOG, "first"))


@pytest.mark.parametrize("is_new", [True, False])
async def test_in_postgres_each_waits_for_the_other(postgres: PostgresGround, is_new: bool) -> None:
    """Another transaction has passed the fence, or has announced, and commits while they wait."""
    store = await postgres.store()
    await store.pulse()
    orders = Replica(store)
    await orders.create(2)
    seen = None
    if not is_new:
        await orders.do(bind("A"), fences=(Fence(LOG, NEVER),))
        seen = await readers(store)
    async with await psycopg.AsyncConnection.connect(postgres.url) as other:
        await other.execute(
            "INSERT INTO counterpoise.trims VALUES (%s, 'new', '')"
            " ON CONFLICT (log) DO UPDATE SET readers = 'new'",
            [LOG],
        )
        announcing = asyncio.ensure_future(store.trims.announce(LOG, seen, "first", "{}"))
        await waits(postgres.url)
    assert not await announcing
    async with await psycopg.AsyncConnection.connect(postgres.url) as other:
        await other.execute("UPDATE counterpoise.trims SET announced = 'first'")
        committing = asyncio.ensure_future(orders.do(bind("B"), fences=(Fence(LOG, NEVER),)))
        await waits(postgres.url)
    with pytest.raises(LogTrimmed):
        await committing


async def waits(url: str) -> None:
    """Until a statement waits for a lock."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    asked += " AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watcher:
        found: Any = (0,)
        while not found[0]:
            found = await (await watcher.execute(asked)).fetchone()


async def test_an_end_is_announced_unless_a_reader_came(store: Store) -> None:
    """It takes the place of a trim that is pending; the log's next queue begins after both."""
    trims = store.trims
    first, second = Replica(store), Replica(store)
    await first.create(2, "first", fence=Fence(LOG, NEVER))
    for seen in (None, "other"):
        with pytest.raises(LogTrimmed):
            await store.delete(first.id, force=True, end=End(LOG, seen, "end", "{}"))
    assert await store.find("first") == first.id
    seen = await readers(store)
    assert await trims.announce(LOG, seen, "trim", "{}")
    await store.delete(first.id, force=True, end=End(LOG, seen, "end", "[]"))
    assert await store.find("first") is None
    await trims.done(LOG, "trim")
    assert await trims.read(LOG) == Trimming(seen, "end", "[]")
    with pytest.raises(LogTrimmed):
        await second.create(2, "second", fence=Fence(LOG, "trim"))
    await trims.done(LOG, "end")
    await second.create(2, "second", fence=Fence(LOG, "end"))

    await store.delete(second.id, force=True, end=End("builtin:new", None, "new", "{}"))
    assert await trims.read("builtin:new") == Trimming("new", "new", "{}")
