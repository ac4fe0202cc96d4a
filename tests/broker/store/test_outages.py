"""Postgres goes away and comes back: callers get an error in time, and all resumes by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text

from broker.postgres import migrations
from broker.postgres.checks import REPORTER
from broker.postgres.embedded import EmbeddedPostgres
from broker.store.ports import PositionCommit, StoreUnavailable
from broker.store.postgres import PostgresStore
from tests.broker.core.oracle import snapshot
from tests.broker.store.support import PostgresGround, Replica, outcomes

pytestmark = pytest.mark.long

FAST = {"fsync": "off", "synchronous_commit": "off"}


async def test_a_restart_of_postgres_costs_no_more_than_its_time(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, settings=FAST)
    url = server.start()
    await asyncio.to_thread(migrations.upgrade, url)
    store = PostgresStore(url, pool_size=3)
    await store.start()
    listening = store.listen()
    assert await anext(listening) is None
    orders = Replica(store)
    await orders.create(3)
    await orders.bind("A")

    server.stop()
    item = PositionCommit(orders.id, "A", None, 0, 1, "5")
    ends = await outcomes(
        [
            store.pulse,
            lambda: orders.bind("B"),
            lambda: store.load(orders.id),
            lambda: store.commit_positions([item]),
            lambda: store.renew(["A"]),
            lambda: store.entries_after(orders.id, 0),
            lambda: store.due(10),
            store.start,
        ]
    )
    assert ends == ["StoreUnavailable"] * 8
    await store.notify([orders.id])

    assert server.start() == url
    await store.pulse()
    await orders.bind("B")
    assert snapshot(await store.load(orders.id)) == snapshot(orders.queue)
    async with asyncio.timeout(240):
        assert await anext(listening) is None
    await listening.aclose()  # type: ignore[attr-defined]
    await store.stop()
    server.stop()


async def test_a_call_after_the_stop_says_nothing_of_the_database(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(REPORTER, "report", lambda error, code: said.append(error))
    store = PostgresStore(migrated_url)
    await store.start()

    async def stopped_amid_it() -> None:
        async with store._connections.transaction() as connection:
            await store.stop()
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            driver.terminate()
            await connection.execute(text("SELECT 1"))

    with pytest.raises(StoreUnavailable):
        await stopped_amid_it()
    with pytest.raises(StoreUnavailable, match="has stopped"):
        await store.pulse()
    assert said == []


async def test_connections_that_were_ended_are_replaced_unnoticed(
    postgres: PostgresGround,
) -> None:
    store = await postgres.store()
    await asyncio.gather(*(store.pulse() for _ in range(5)))
    await asyncio.to_thread(
        postgres.sql,
        "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    # Their sockets are closed; the event loop only has to notice it.
    for _ in range(10):
        await asyncio.sleep(0)
    await asyncio.gather(*(store.pulse() for _ in range(5)))


async def test_a_commit_that_is_cut_off_writes_nothing_or_all(postgres: PostgresGround) -> None:
    """Its connection is ended while it waits for a lock."""
    store = await postgres.store()
    orders = Replica(store)
    await orders.create(3)
    before = snapshot(orders.queue)
    with psycopg.connect(postgres.url) as holder:
        holder.execute("SELECT * FROM counterpoise.queues FOR UPDATE")
        binding = asyncio.create_task(orders.bind("A"))
        await postgres.until_waiting()
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        with pytest.raises(StoreUnavailable):
            await binding
    assert snapshot(orders.queue) == before
    assert await store.entries_after(orders.id, 1) == []
    await orders.bind("A")


async def test_waits_for_locks_are_limited(
    postgres: PostgresGround,
) -> None:
    patient, hasty = await postgres.store(), PostgresStore(postgres.url, answer_seconds=1.0)
    orders = Replica(patient)
    await orders.create(3)
    with psycopg.connect(postgres.url) as holder:
        holder.execute("SELECT * FROM counterpoise.queues FOR UPDATE")
        orders.store = hasty
        with pytest.raises(StoreUnavailable):
            await orders.bind("A")
    orders.store = patient
    await orders.bind("A")
    await hasty.stop()


async def test_too_many_connections_are_unavailable(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE narrow CONNECTION LIMIT 0")
        connection.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow'")
    parts = urlsplit(postgres_url)
    url = parts._replace(path="/narrow", netloc=f"narrow:narrow@{parts.netloc.split('@')[1]}")
    store = PostgresStore(url.geturl())
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await store.start()
    await store.stop()


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        ({"path": "/nowhere"}, "does not exist", "3D000"),
        ({"netloc": "nobody:wrong@{address}"}, "password authentication failed", "28P01"),
        ({"netloc": "nobody:wrong@127.0.0.1:1"}, "onnect", None),
        # As where a failover has left no primary yet (`read-write`).
        ({"query": "target_session_attrs=standby"}, "target attribute requirement", None),
    ],
)
async def test_an_error_is_reported_in_one_line(
    postgres_url: str, change: dict[str, str], said: str, code: str | None
) -> None:
    parts = urlsplit(postgres_url)
    change = {
        key: value.format(address=parts.netloc.split("@")[1]) for key, value in change.items()
    }
    store = PostgresStore(parts._replace(**change).geturl())
    with pytest.raises(StoreUnavailable, match=said) as unavailable:
        await store.start()
    assert unavailable.value.code == code
    assert "\n" not in str(unavailable.value)
    assert "wrong" not in str(unavailable.value)
    await store.stop()


async def test_a_database_without_tables_is_unavailable(database_url: str) -> None:
    store = PostgresStore(database_url)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await store.pulse()
    await store.stop()


class Network:
    """A connection to Postgres that can swallow everything."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.swallows = False
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        credentials = self._target.netloc.split("@")[0]
        yield self._target._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()
        server.close()
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        there_reader, there_writer = await asyncio.open_connection(
            self._target.hostname, self._target.port
        )
        self._writers.append(there_writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                self._pass_on(reader, there_writer), self._pass_on(there_reader, writer)
            )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.swallows:
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_calls_end_even_if_the_network_swallows_everything(
    postgres: PostgresGround,
) -> None:
    network = Network(postgres.url)
    async with network.open() as url:
        store = PostgresStore(url, pool_size=2, connect_seconds=3, answer_seconds=3)
        await store.start()
        orders = Replica(store)
        await orders.create(3)
        network.swallows = True
        for call in (store.pulse, lambda: orders.bind("A"), store.pulse):
            with pytest.raises(StoreUnavailable):
                await call()
        network.swallows = False
        async with asyncio.timeout(240):
            while (await outcomes([store.pulse])) == ["StoreUnavailable"]:
                pass
        await orders.bind("A")
        await store.stop()
