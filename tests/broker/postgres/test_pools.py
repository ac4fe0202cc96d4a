"""No connection of a closed pool is left, not even those that are in use. And with few connections
a pool goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import bindparam, func, literal, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker.logs.database import fetch_row, log_engine
from broker.postgres import pools
from broker.store.bulk import PreparedStatement
from broker.store.connections import Connections
from broker.store.ports import StoreUnavailable
from tests.databases import OPEN_FIRST, opening_first, watch_connections


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
    watch_connections(monkeypatch, opened.append)
    return opened


@pytest.mark.long
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


# No slot for another connection. The limit of a role is refused like a server that is full.


class Narrow:
    """A role that may have few connections."""

    def __init__(self, administrator: psycopg.Connection[Any], url: str) -> None:
        self._administrator = administrator
        self.role = f"narrow_{urlsplit(url).path[1:]}"
        parts = urlsplit(url)
        netloc = f"{self.role}:own@{parts.hostname}:{parts.port}"
        self.url = parts._replace(netloc=netloc).geturl()

    def limit(self, connections: int) -> None:
        statement = f"ALTER ROLE {self.role} CONNECTION LIMIT {connections}"
        self._administrator.execute(statement.encode())

    def end(self, process: int) -> None:
        self._administrator.execute("SELECT pg_terminate_backend(%s, 60000)", (process,))


@pytest.fixture
def narrow(migrated_url: str) -> Iterator[Narrow]:
    with psycopg.connect(migrated_url, autocommit=True) as administrator:
        narrow = Narrow(administrator, migrated_url)
        administrator.execute(f"CREATE ROLE {narrow.role} LOGIN PASSWORD 'own'".encode())
        yield narrow
        administrator.execute(f"DROP ROLE {narrow.role}".encode())


@pytest.fixture
async def connections(narrow: Narrow) -> AsyncIterator[Connections]:
    connections = Connections(narrow.url, 5)
    yield connections
    await connections.close()


PROCESS = PreparedStatement(select(func.pg_backend_pid()).where(literal(1) == bindparam("one")))


async def process_of(connections: Connections) -> int:
    [row] = await connections.fetch(PROCESS, {"one": 1})
    return int(row[0])


async def test_without_a_slot_callers_wait_for_the_connections_that_are_open(
    narrow: Narrow, connections: Connections
) -> None:
    narrow.limit(2)
    found = await asyncio.gather(*(process_of(connections) for _ in range(20)))
    assert len(set(found)) == 2


async def test_so_do_those_of_a_log(narrow: Narrow) -> None:
    narrow.limit(2)
    engine = log_engine(narrow.url)
    rows = await asyncio.gather(
        *(fetch_row(engine, "SELECT pg_backend_pid() AS pid") for _ in range(20))
    )
    assert len({row["pid"] for row in rows}) == 2
    await pools.close(engine)


async def test_without_a_slot_and_an_open_connection_they_are_told_at_once(
    narrow: Narrow,
) -> None:
    narrow.limit(0)
    patient = Connections(narrow.url, 5, connect_seconds=3600.0)
    with pytest.raises(StoreUnavailable, match="too many connections") as refused:
        async with asyncio.timeout(240):
            await process_of(patient)
    assert refused.value.code == pools.NO_SLOT
    await patient.close()


@pytest.mark.parametrize("at_work", [False, True])
async def test_a_lost_connection_costs_no_other(
    narrow: Narrow, connections: Connections, at_work: bool
) -> None:
    """There may be no slot for another one in its place."""
    narrow.limit(3)
    async with connections.single(), connections.single(), connections.single() as last:
        driver = await driver_of(last)
        lost, gone = driver.get_server_pid(), asyncio.Event()
        driver.add_termination_listener(lambda _: gone.set())
        if at_work:
            narrow.end(lost)
            with pytest.raises(DBAPIError):
                await last.execute(text("SELECT 1"))
    narrow.limit(2)
    if not at_work:
        narrow.end(lost)
        # The loop has to notice it.
        await asyncio.wait_for(gone.wait(), 240)
    found = await asyncio.gather(*(process_of(connections) for _ in range(20)))
    assert lost not in found
    assert len(set(found)) == 2


async def test_callers_that_wait_are_given_another_in_place_of_a_lost_one(narrow: Narrow) -> None:
    patient = Connections(narrow.url, 1, connect_seconds=3600.0)
    async with asyncio.timeout(240), asyncio.TaskGroup() as callers:
        async with patient.single() as lost:
            waiting = [callers.create_task(process_of(patient)) for _ in range(5)]
            # They wait from their first step on.
            await asyncio.sleep(0)
            process = (await driver_of(lost)).get_server_pid()
            narrow.end(process)
            with pytest.raises(DBAPIError):
                await lost.execute(text("SELECT 1"))
    assert process not in {task.result() for task in waiting}
    await patient.close()


async def test_when_there_are_slots_again_more_are_opened(
    narrow: Narrow, connections: Connections
) -> None:
    narrow.limit(1)
    await process_of(connections)
    await asyncio.gather(*(process_of(connections) for _ in range(5)))
    narrow.limit(5)
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(connections.single())


async def test_the_first_ones_are_opened_at_once(narrow: Narrow) -> None:
    with opening_first():
        connections = Connections(narrow.url, 10)
    await connections.open_first()
    narrow.limit(OPEN_FIRST)
    found = await asyncio.gather(*(process_of(connections) for _ in range(20)))
    assert len(set(found)) == OPEN_FIRST > 1
    await connections.close()
