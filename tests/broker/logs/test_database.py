"""A log whose database is silent, or away for a moment, blocks no caller for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from broker.logs import credentials, database
from broker.logs import database as log_engine
from broker.logs.builtin import BuiltinLogs
from broker.logs.credentials import ClientCredentials
from broker.logs.database import log_engine as make_engine
from broker.logs.ports import Holder, LogDatabaseUnavailable, LogOwner
from broker.service import Broker
from tests.faults.proxy import Proxy
from tests.log_support import log, log_url
from tests.service import running, settings_for

__all__ = ["log", "log_url"]

# Calls under way are given up. Each releases its connection within two seconds.
STOP_SECONDS = 120.0
HOLDER = Holder.caller("queue", None, None)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """A short timeout for calls of the log: only for calls that should time out."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CALL_SECONDS", "LONG_SECONDS", "SWEEP_SECONDS"):
            patch.setattr(database, name, 0.5)
        patch.setattr(credentials, "GET_SECONDS", 0.5)
        yield


@pytest.fixture
def proxy(log_url: str, log: object) -> Iterator[Proxy]:
    with Proxy(log_url) as proxy:
        yield proxy


@pytest.fixture
async def engine(proxy: Proxy) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(proxy.url)
    yield engine
    await engine.dispose()


CALLS: dict[str, Callable[[BuiltinLogs], Coroutine[Any, Any, object]]] = {
    "access": lambda logs: logs.access("builtin:flights", "read", HOLDER),
    "holders": lambda logs: logs.holders(),
    "revoke": lambda logs: logs.revoke([HOLDER.name]),
    "keys_in_use": lambda logs: logs.keys_in_use(),
    "watch": lambda logs: logs.watch(),
    "drop_expired_credentials": lambda logs: logs.drop_expired_credentials(),
    "ensure": lambda logs: logs.ensure("builtin:flights", 4),
    "set_partition_count": lambda logs: logs.set_partition_count("builtin:flights", 5),
    "discard": lambda logs: logs.discard("builtin:flights", [7]),
    "drop": lambda logs: logs.drop("builtin:flights", LogOwner("first", "flights", 1.0)),
    "trim": lambda logs: logs.trim("builtin:flights", {0: "1"}),
    "sweep_dropped": lambda logs: logs.sweep_dropped(),
    "forget_publishers": lambda logs: logs.forget_publishers(1e9),
    "partition_count": lambda logs: logs.partition_count("builtin:flights"),
    "bounds": lambda logs: logs.bounds("builtin:flights"),
    "split": lambda logs: logs.ranges.split("builtin:flights", 0, None),
    "merge": lambda logs: logs.ranges.merge("builtin:flights", 0, 1),
    "sample": lambda logs: logs.ranges.sample("builtin:flights", 0),
    "roots": lambda logs: logs.ranges.roots("builtin:flights", latest=False),
    "position_at": lambda logs: logs.position_at("builtin:flights", 0.0),
}


@pytest.mark.long
@pytest.mark.matrix("connected")
@pytest.mark.parametrize("connected", [True, False])
async def test_every_call_of_a_silent_log_is_given_up(
    proxy: Proxy, engine: AsyncEngine, connected: bool
) -> None:
    builtin = BuiltinLogs(engine, proxy.url)
    if connected:
        await asyncio.gather(*(builtin.bounds("builtin:flights") for _ in CALLS))
    proxy.stall()
    with impatient():
        calls = (call(builtin) for call in CALLS.values())
        ends = await asyncio.gather(*calls, return_exceptions=True)
    seen = dict(zip(CALLS, map(type, ends), strict=True))
    assert seen == dict.fromkeys(CALLS, LogDatabaseUnavailable)
    proxy.mend()
    assert len((await builtin.bounds("builtin:flights")).ends) == 4


async def test_known_credentials_are_given_without_waiting(
    proxy: Proxy, engine: AsyncEngine
) -> None:
    """While publishers' credentials are due and the database is silent, readers get theirs."""
    credentials = ClientCredentials(engine, proxy.url)
    known = await credentials.get("flights", "read", HOLDER)
    proxy.stall()
    with impatient():
        due = asyncio.create_task(credentials.get("flights", "publish", HOLDER))
        await asyncio.sleep(0)
        assert await credentials.get("flights", "read", HOLDER) == known
        assert not due.done()
        with pytest.raises(TimeoutError):
            await due


async def test_a_connection_that_the_server_closed_is_replaced(
    proxy: Proxy, engine: AsyncEngine, log_url: str
) -> None:
    builtin = BuiltinLogs(engine, proxy.url)
    await builtin.bounds("builtin:flights")
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'counterpoise' AND datname = current_database()"
        )
    assert len((await builtin.bounds("builtin:flights")).ends) == 4


async def test_a_replica_that_freezes_with_a_lock_does_not_keep_it(
    log_url: str, log: object
) -> None:
    freezing, engine = make_engine(log_url), make_engine(log_url)
    try:
        # Only for the connection that freezes; the setting is read at connecting.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_engine, "IDLE_SECONDS", 0.3)
            frozen = await freezing.connect()
        await frozen.execute(text("SELECT * FROM counterpoise_log.lock_log('flights', true)"))
        assert await BuiltinLogs(engine, log_url).set_partition_count("builtin:flights", 5)
        await frozen.invalidate()
        await frozen.close()
    finally:
        await freezing.dispose()
        await engine.dispose()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_the_address_may_say_what_libpq_knows(log_url: str, log: object, scheme: str) -> None:
    engine = make_engine(f"{scheme}{log_url.removeprefix('postgresql')}?sslmode=disable")
    assert await BuiltinLogs(engine, log_url).partition_count("builtin:flights") == 4
    await engine.dispose()


@pytest.mark.long
def test_a_bind_is_told_that_the_log_is_silent_and_the_service_stops(
    migrated_url: str,
) -> None:
    with Proxy(migrated_url) as proxy:
        settings = settings_for(migrated_url, log_database_url=proxy.url)
        with running(Broker(settings), settings) as service, service.http as http:
            queue = {"name": "q", "partition_count": 2}
            assert http.post("/queues", json=queue).status_code == 201
            for weather, status in ((proxy.stall, 503), (proxy.mend, 201), (proxy.stall, 503)):
                weather()
                bound = http.post("/queues/q/flows", json={"client_name": "a"}, timeout=60)
                assert bound.status_code == status, bound.text
            asked = http.post("/queues/q/log-access", json={"purpose": "publish"}, timeout=60)
            assert asked.status_code == 503
            assert asked.json()["code"] == "unavailable"
            assert service.stop() < STOP_SECONDS
