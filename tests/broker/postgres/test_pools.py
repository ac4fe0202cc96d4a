"""No connection of a closed pool is left, not even those that are in use."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import bindparam, literal, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs.database import fetch_row, log_engine
from broker.postgres import pools
from broker.store.bulk import PreparedStatement
from broker.store.connections import Connections
from broker.store.ports import StoreUnavailable


async def driver_of(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


@pytest.fixture
async def engine(migrated_url: str) -> AsyncIterator[AsyncEngine]:
    engine = log_engine(migrated_url)
    yield engine
    await pools.close(engine)


async def test_a_connection_in_use_is_closed_when_it_is_given_back(engine: AsyncEngine) -> None:
    async with engine.connect() as idle:
        first = await driver_of(idle)
        async with engine.connect() as used:
            second = await driver_of(used)
    async with engine.connect() as used:
        await pools.close(engine)
        await used.execute(text("SELECT 1"))
        assert first.is_closed() != second.is_closed()
    assert first.is_closed()
    assert second.is_closed()


async def test_so_is_one_that_is_opened_afterwards(engine: AsyncEngine) -> None:
    await pools.close(engine)
    async with engine.connect() as late:
        driver = await driver_of(late)
        assert not driver.is_closed()
    assert driver.is_closed()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections that were opened."""
    opened: list[Any] = []
    connect = asyncpg.connect

    async def connecting(*arguments: Any, **options: Any) -> Any:
        opened.append(await connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(asyncpg, "connect", connecting)
    return opened


async def test_so_are_those_of_statements_under_way(migrated_url: str, opened: list[Any]) -> None:
    """Of the store and of the logs; whether or not their callers still wait."""
    engine, connections = log_engine(migrated_url), Connections(migrated_url, 2)
    sleep = PreparedStatement(select(text("pg_sleep(0.2)")).where(literal(1) == bindparam("one")))
    calls = [
        asyncio.ensure_future(fetch_row(engine, "SELECT pg_sleep(0.2)")),
        asyncio.ensure_future(connections.fetch(sleep, {"one": 1})),
        asyncio.ensure_future(connections.fetch(sleep, {"one": 1})),
    ]
    while len(opened) < len(calls):
        await asyncio.wait(calls, timeout=0.01)
    await pools.close(engine)
    await connections.close()
    calls[-1].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert [each.is_closed() for each in opened] == [True] * 3


WRITE = "DELETE FROM counterpoise.outages"


async def read_only(engine: AsyncEngine) -> None:
    """The next connection is to a server that only reads, as after a failover."""
    async with engine.begin() as connection:
        await connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))


async def test_a_connection_to_a_standby_is_given_up(engine: AsyncEngine) -> None:
    """The next one may be to the new primary."""
    await read_only(engine)
    with pytest.raises(DBAPIError, match="read-only"):
        async with engine.begin() as connection:
            await connection.execute(text(WRITE))
    async with engine.begin() as connection:
        await connection.execute(text(WRITE))


async def test_so_is_one_of_the_store(migrated_url: str) -> None:
    connections = Connections(migrated_url, 1)

    async def fetch() -> None:
        await connections.fetch(PreparedStatement(text(f"{WRITE} RETURNING id")), {})

    async def single() -> None:
        async with connections.single() as connection:
            await connection.execute(text(WRITE))

    async def transaction() -> None:
        async with connections.transaction() as connection:
            await connection.execute(text(WRITE))

    for write in (fetch, single, transaction):
        await read_only(connections._engine)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await write()
        await write()
    await connections.close()
