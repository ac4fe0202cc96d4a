"""Defaults of a database or a role that an administrator has set, for other programs in mind.

Postgres gives them to each connection that does not say otherwise. So each connection of the
product does: a queue lives a whole life under the worst of them, and every message arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from broker import access_keys
from broker.core.access import Role
from broker.logs.database import log_engine
from broker.postgres import checks, connections, migrations, restoring
from broker.service import Broker
from broker.store.connections import Connections
from counterpoise.consumer import Consumer
from counterpoise.logs import postgres
from counterpoise.logs.builtin.connection import LogConnection
from counterpoise.publisher import Publisher
from counterpoise.spark.sink.database import Database, TransactionLimits
from tests.databases import new_database
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

# Each is one that some database has: for reports, for one that is moved, against strangers. Times
# are in milliseconds.
DEFAULTS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "row_security": "off",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "statement_timeout": "1",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "idle_session_timeout": "1",
    "transaction_timeout": "1",
    "client_encoding": "LATIN1",
}
OF_DATABASE = ("DATABASE {}", DEFAULTS)
# These win over those of the database.
OF_ROLE = (
    "ROLE CURRENT_USER IN DATABASE {}",
    {**DEFAULTS, "default_transaction_isolation": "repeatable read"},
)
COUNT = 40


@pytest.fixture(params=[[OF_DATABASE], [OF_DATABASE, OF_ROLE]], ids=["database", "role"])
def url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """A new database with such defaults, and a name that a URL has to encode."""
    with new_database(postgres_url, called="a b/ü%3A@?#'&") as url:
        name = sql.Identifier(postgres.read(url)["dbname"])
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            for whose, defaults in request.param:
                for setting, value in defaults.items():
                    change = sql.SQL("ALTER {} SET {} = {}")
                    whom = sql.SQL(whose).format(name)
                    admin.execute(change.format(whom, sql.Identifier(setting), value))
        yield url


def publish(service: Service, queue: str) -> None:
    with Publisher(queue, url=service.url) as publisher:
        for number in range(COUNT):
            publisher.publish(b"%d" % number, key=str(number))


def consumed(service: Service, queue: str) -> list[int]:
    """The next messages, in the order of their numbers."""
    consumer = Consumer(queue, url=service.url, limit=COUNT)
    return sorted(int(message.value) for message in consumer)


def logs(url: str) -> dict[str, tuple[int, int]]:
    """The partition count and the number of messages of each log, as its database has them."""
    with connections.connect(url) as admin:
        found = admin.execute(
            "SELECT name, partition_count, (SELECT count(*) FROM counterpoise_log.messages AS m"
            " WHERE m.log_id = l.log_id) FROM counterpoise_log.logs AS l"
        )
        return {name: (count, messages) for name, count, messages in found}


def is_trimmed(url: str, name: str) -> bool:
    return logs(url)[name] == (2, 0)


@pytest.mark.matrix("url")
def test_a_queue_lives_its_life(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.service.UPKEEP_SECONDS", 0.1)
    monkeypatch.setattr("broker.postgres.restoring.SERVED_SECONDS", 0)
    every = list(range(COUNT))
    assert checks.why_not_usable(url) is None
    migrations.upgrade(url)
    assert not migrations.asked(url, restoring.moved)
    settings = settings_for(url)
    with running(Broker(settings), settings) as service, service.http as http:
        for name, ordered in (("plain", False), ("ordered", True)):
            body = {"name": name, "partition_count": 4, "rebalance_delay": 0}
            more = {"ordered_resize": ordered, "retention_seconds": 0}
            http.post("/queues", json={**body, **more}).raise_for_status()
            publish(service, name)
            assert consumed(service, name) == every
            change, query = {"partition_count": 2}, {} if ordered else {"discard": "true"}
            http.patch(f"/queues/{name}", params=query, json=change).raise_for_status()
            publish(service, name)
            assert logs(url)[name][0] == 2
            assert consumed(service, name) == every
            eventually(partial(is_trimmed, url, name))
            assert http.delete(f"/queues/{name}").status_code == 204
            assert name not in logs(url)
    assert migrations.asked(url, checks.why_not_writing) is None
    made = access_keys.create(url, Role.ADMIN, ["*"], "ops")
    assert access_keys.revoke(url, made.key.id).state == "revoked"
    assert [key.state for key in access_keys.every(url)] == ["revoked"]
    assert restoring.fence(url).epochs_above > 0


# Each way to open a connection, and what it has

SHOW = "SELECT string_agg(name || '=' || setting, '|') FROM pg_catalog.pg_settings"


async def of_the_store(url: str) -> str:
    connections = Connections(url, 1)
    try:
        return str((await connections.rows(text(SHOW)))[0][0])
    finally:
        await connections.close()


async def of_listening(url: str) -> str:
    connections = Connections(url, 1)
    connection = await connections.connect()
    try:
        return str(await connection.fetchval(SHOW))
    finally:
        await connection.close()
        await connections.close()


async def of_the_logs(url: str) -> str:
    engine: AsyncEngine = log_engine(url)
    async with engine.connect() as connection:
        found = str(await connection.scalar(text(SHOW)))
    await engine.dispose()
    return found


def of_commands(url: str) -> str:
    with connections.connect(url) as connection:
        row = connection.execute(SHOW).fetchone()
    assert row is not None
    return str(row[0])


def of_migrations(url: str) -> str:
    with migrations._connected(url) as connection:
        return str(connection.scalar(text(SHOW)))


def of_clients(url: str) -> str:
    connection = LogConnection(url, 10.0)
    ((found,),) = connection.query(SHOW, [], retry=False)
    connection.close()
    return str(found)


def of_sinks(url: str) -> str:
    database = Database(url)
    with database.transaction(TransactionLimits()) as connection:
        found = str(connection.scalar(text(SHOW)))
    database.engine().dispose()
    return found


# Beside each: what it sets to a value of its own.
LIMITS = {"statement_timeout", "idle_in_transaction_session_timeout"}
WAYS: dict[Callable[[str], object], set[str]] = {
    of_the_store: {*LIMITS, "lock_timeout"},
    of_listening: {*LIMITS, "lock_timeout"},
    of_the_logs: LIMITS,
    of_commands: set(),
    of_migrations: set(),
    of_clients: {"statement_timeout"},
    of_sinks: {"search_path", "idle_in_transaction_session_timeout", "transaction_timeout"},
}


@pytest.mark.parametrize("url", [[OF_DATABASE, OF_ROLE]], ids=["role"], indirect=True)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_connection_has_no_default_of_the_database(url: str, way: Callable[[str], str]) -> None:
    asked = way(url)
    found = asyncio.run(asked) if asyncio.iscoroutine(asked) else asked
    settings = dict(one.split("=", 1) for one in str(found).split("|"))
    assert settings["application_name"].startswith("counterpoise")
    assert settings["client_encoding"] == "UTF8"
    for name, value in postgres.SETTINGS.items():
        if name in WAYS[way]:
            # A user's tables are where the user's database looks for them.
            assert (settings[name] == DEFAULTS[name]) is (name == "search_path")
        else:
            assert settings[name] == value
