"""Roles in the log: their rights and lifetimes."""

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs.credentials import LogCredentials
from broker.logs.ports import LogAccess
from counterpoise.logs import AppendBatch, LogAccessRefused, Message
from counterpoise.logs.postgres import PostgresLog
from tests.log_support import append, log, log_url, migrate_log, texts, until

__all__ = ["log", "log_url"]


def async_engine(url):
    return create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))


@pytest.fixture
async def engine(log, log_url):
    engine = async_engine(log_url)
    yield engine
    await engine.dispose()


async def given(credentials, purpose) -> LogAccess:
    access = await credentials.get(purpose)
    assert access is not None
    return access


def user(access):
    return urlsplit(access.url).username


async def test_a_reader_can_read_and_nothing_else(engine, log, log_url):
    append(log, "a")
    access = await given(LogCredentials(engine, log_url), "read")
    reader = PostgresLog("flights", access.url)
    assert texts(reader, 0) == ["a"]
    for call in (
        lambda: append(reader, "b", first=1),
        lambda: reader.next_sequence("p"),
        lambda: reader.trim({0: "1"}),
    ):
        with pytest.raises(LogAccessRefused, match="lack rights"):
            call()
    reader.close()
    with psycopg.connect(access.url, autocommit=True) as connection:
        for statement in (
            "DELETE FROM counterpoise_log.messages",
            "UPDATE counterpoise_log.partitions SET next_position = 0",
            "SELECT * FROM counterpoise_log.publishers",
            "SELECT * FROM counterpoise_log.credentials",
            "SELECT counterpoise_log.lock_log('flights', true)",
            "SELECT counterpoise_log.grant_access()",
            "CREATE TABLE counterpoise_log.mine ()",
            "CREATE ROLE mine",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


async def test_a_publisher_can_append_and_nothing_else(engine, log, log_url):
    access = await given(LogCredentials(engine, log_url), "publish")
    publisher = PostgresLog("flights", access.url)
    batch = AppendBatch("p", 0, 4, [0], [Message(b"a", "k", {"h": "v"})])
    assert publisher.append(batch).appended == 1
    assert publisher.next_sequence("p") == 1
    for call in (lambda: texts(publisher, 0), lambda: publisher.bounds([0])):
        with pytest.raises(LogAccessRefused):
            call()
    publisher.close()
    with psycopg.connect(access.url, autocommit=True) as connection:
        for statement in (
            "INSERT INTO counterpoise_log.messages VALUES (1, 0, 7, now(), NULL, '', NULL)",
            "SELECT * FROM counterpoise_log.logs",
            "SELECT counterpoise_log.trim('flights', '{0}', '{1}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


async def test_neither_role_sees_other_data_in_the_database(engine, log_url):
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.another (flow_token text)")
    for purpose in ("read", "publish"):
        access = await given(LogCredentials(engine, log_url), purpose)
        with psycopg.connect(access.url, autocommit=True) as connection:
            for table in ("counterpoise.flows", "public.another"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT * FROM {table}")


async def test_a_thousand_binds_on_two_replicas_share_one_role(engine, log_url):
    replicas = [LogCredentials(engine, log_url) for _ in range(2)]
    found = await asyncio.gather(*(given(replicas[n % 2], "read") for n in range(1000)))
    assert len({access.url for access in found}) == 1
    assert user(found[0]) != user(await given(replicas[0], "publish"))


def asked(url, query):
    """The first row of the answer, if there is one."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchone()


def make_older(url, role, seconds):
    """As if so much time had passed for these credentials."""
    with psycopg.connect(url) as connection:
        until_when = connection.execute(
            "UPDATE counterpoise_log.credentials SET created_at = created_at - age.seconds,"
            " valid_until = valid_until - age.seconds"
            " FROM (SELECT make_interval(secs => %s) AS seconds) AS age WHERE role = %s"
            " RETURNING valid_until::text",
            (seconds, role),
        ).fetchone()
        assert until_when is not None
        connection.execute(f"ALTER ROLE {role} VALID UNTIL '{until_when[0]}'")


async def test_credentials_rotate_and_expired_roles_are_dropped(engine, log_url):
    now = [0.0]
    short = LogCredentials(
        engine, log_url, rotate_seconds=20, valid_seconds=60, monotonic=lambda: now[0]
    )
    first = await given(short, "read")
    assert await given(short, "read") == first
    make_older(log_url, user(first), 30)
    now[0] += 30
    second = await given(short, "read")
    assert user(second) != user(first)
    # The old role is still valid for clients that got it shortly before.
    kept = psycopg.connect(first.url, autocommit=True)
    make_older(log_url, user(first), 30)
    with pytest.raises(LogAccessRefused):
        PostgresLog("flights", first.url).bounds([0])
    now[0] += 30
    assert await given(short, "read") == second
    # An open session continues.
    kept.execute("SELECT * FROM counterpoise_log.logs")
    kept.close()
    of_the_role = f"SELECT 1 FROM pg_stat_activity WHERE usename = '{user(first)}'"
    until(lambda: not asked(log_url, of_the_role))
    now[0] += 30
    await given(short, "read")
    assert asked(log_url, f"SELECT 1 FROM pg_roles WHERE rolname = '{user(first)}'") is None


async def test_a_role_that_vanished_is_replaced(engine, log_url):
    first = await given(LogCredentials(engine, log_url), "read")
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE {user(first)}")
    second = await given(LogCredentials(engine, log_url), "read")
    assert user(second) != user(first)


async def test_a_service_that_may_not_create_roles_gives_none(log_url):
    name = f"weak_{urlsplit(log_url).path[1:]}"
    with psycopg.connect(log_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'weak'")
        connection.execute(f"GRANT CREATE ON DATABASE {database} TO {name}")
        connection.execute("DROP SCHEMA counterpoise_log CASCADE")
    parts = urlsplit(log_url)
    weak_url = parts._replace(netloc=f"{name}:weak@{parts.hostname}:{parts.port}").geturl()
    migrate_log(weak_url)
    migrate_log(weak_url)
    engine = async_engine(weak_url)
    credentials = LogCredentials(engine, weak_url)
    assert await credentials.get("read") is None
    assert await credentials.get("publish") is None
    await engine.dispose()
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_the_address_of_consumers_may_differ_from_the_service_s(engine):
    credentials = LogCredentials(engine, "postgresql://x:y@db.example:6432/logs?sslmode=require")
    access = await given(credentials, "read")
    parts = urlsplit(access.url)
    assert (parts.hostname, parts.port, parts.path) == ("db.example", 6432, "/logs")
    assert parts.query == "sslmode=require"
    assert parts.password
    assert parts.password not in repr(access)
