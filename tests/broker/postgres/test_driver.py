"""A connection asks the server for a type only if no other of this process has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from broker.postgres import driver
from broker.postgres.driver import RememberingConnection, connect
from counterpoise.logs import postgres

ARRAYS = "SELECT $1::bigint[] AS numbers, $2::double precision[] AS times, $3::text[] AS names"
ROW = ([1, 2], [0.5, None], ["a", None])


@pytest.fixture(autouse=True)
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_read", {})


class Server:
    """Connects, and counts what each connection sends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connections: list[asyncpg.Connection] = []
        self.sent: list[str] = []

    async def connect(self, cached: int = 100) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            self.url, connection_class=RememberingConnection, statement_cache_size=cached
        )
        connection.add_query_logger(lambda record: self.sent.append(record.query))
        self.connections.append(connection)
        return connection

    def asked(self) -> int:
        """How many statements were not ours, since the last call."""
        others, self.sent = [one for one in self.sent if not one.startswith("SELECT $1")], []
        return len(others)


@pytest.fixture
async def server(migrated_url: str) -> AsyncIterator[Server]:
    server = Server(migrated_url)
    yield server
    for connection in server.connections:
        await connection.close()


@pytest.mark.parametrize("cached", [100, 0], ids=["prepared", "behind a pooler"])
async def test_a_second_connection_asks_nothing(server: Server, cached: int) -> None:
    assert tuple(await (await server.connect(cached)).fetchrow(ARRAYS, *ROW)) == ROW
    assert server.asked()
    second = await server.connect(cached)
    assert tuple(await second.fetchrow(ARRAYS, *ROW)) == ROW
    assert tuple(await second.fetchrow(ARRAYS, *ROW)) == ROW
    assert not server.asked()


async def test_another_type_is_asked_for(server: Server) -> None:
    await (await server.connect()).fetchrow(ARRAYS, *ROW)
    server.asked()
    second = await server.connect()
    assert await second.fetchval("SELECT $1::integer[]", [3]) == [3]
    assert server.asked()


async def test_a_type_of_this_database_is_asked_for_on_each_connection(server: Server) -> None:
    """Another database may give its id to another type."""
    first = await server.connect()
    await first.execute("CREATE TYPE pair AS (a integer, b text)")
    for connection in first, await server.connect():
        server.asked()
        assert tuple(await connection.fetchval("SELECT $1::pair", (1, "x"))) == (1, "x")
        assert server.asked()


async def test_settings_that_an_older_server_does_not_know_are_left_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses a connection that sets them, also several at once."""
    monkeypatch.setattr(postgres, "_LATER", ("of_a_later_release", "of_the_last_release"))
    for name in postgres._LATER:
        monkeypatch.setitem(postgres.SETTINGS, name, "0")
    opened = await asyncio.gather(*(connect(database_url, {"jit": "off"}) for _ in range(4)))
    for connection in opened:
        assert await connection.fetchval("SELECT current_setting('jit')") == "off"
        await connection.close()
