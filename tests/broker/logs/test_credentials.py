"""Roles in the log: their rights and lifetimes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from broker.logs.builtin import BuiltinLogs
from broker.logs.credentials import ClientCredentials
from broker.logs.database import log_engine
from broker.logs.ports import Holder, LogAccess, Purpose
from broker.logs.roles import ClientRoles
from counterpoise.logs import AppendBatch, LogAccessRefused, Message
from counterpoise.logs.builtin.log import PostgresLog
from tests.log_support import append, log, log_url, migrate_log, texts, until

__all__ = ["log", "log_url"]

FLOW = Holder.flow("f1", "q1")
ANOTHER_FLOW = Holder.flow("f2", "q1")
ANYONE = Holder.caller("q1", None, None)


def async_engine(url: str) -> AsyncEngine:
    return create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))


@pytest.fixture
async def engine(log: PostgresLog, log_url: str) -> AsyncIterator[AsyncEngine]:
    engine = async_engine(log_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def roles(engine: AsyncEngine) -> ClientRoles:
    return ClientRoles(engine)


async def given(
    credentials: ClientCredentials,
    purpose: Purpose,
    holder: Holder = ANYONE,
    log: str = "flights",
    refused: bool = False,
) -> LogAccess:
    access = await credentials.get(log, purpose, holder, refused=refused)
    assert access is not None
    return access


def user(access: LogAccess) -> str:
    name = urlsplit(access.url).username
    assert name is not None
    return name


def asked(url: str, query: LiteralString, *parameters: object) -> Any:
    """The first value of the answer, if there is one."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def ends(access: LogAccess) -> Any:
    """The end of the first partition, as a client with this access sees it."""
    log = PostgresLog("flights", access.url)
    try:
        return log.bounds([0]).ends[0]
    finally:
        log.close()


def is_there(url: str, access: LogAccess) -> bool:
    return asked(url, "SELECT 1 FROM pg_roles WHERE rolname = %s", user(access)) == 1


def expire(url: str, access: LogAccess) -> None:
    """As if the time of these credentials were over."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE counterpoise_log.clients SET created_at = now() - interval '3 h',"
            " expires_at = now() - interval '1 h' WHERE role = %s",
            (user(access),),
        )
        connection.execute(f"ALTER ROLE {user(access)} VALID UNTIL '2020-01-01'".encode())


OPEN_BY_DEFAULT = "lo_create(oid), pg_advisory_xact_lock(bigint)"


# What they open


async def test_a_reader_reads_its_log_and_nothing_else(
    engine: AsyncEngine, log: PostgresLog, log_url: str
) -> None:
    append(log, "a")
    access = await given(ClientCredentials(engine, log_url), "read")
    reader = PostgresLog("flights", access.url)
    assert texts(reader, 0) == ["a"]
    assert reader.bounds([0]).ends == {0: "1"}
    for call in (
        lambda: append(reader, "b", first=1),
        lambda: reader.next_sequence("p"),
        lambda: reader.trim({0: "1"}),
    ):
        with pytest.raises(LogAccessRefused, match="lack rights"):
            call()
    reader.close()


async def test_a_publisher_appends_to_its_log_and_nothing_else(
    engine: AsyncEngine, log: PostgresLog, log_url: str
) -> None:
    access = await given(ClientCredentials(engine, log_url), "publish")
    publisher = PostgresLog("flights", access.url)
    batch = AppendBatch("p", 0, 4, [0], [Message(b"a", "k", {"h": "v"})])
    assert publisher.append(batch).appended == 1
    assert publisher.next_sequence("p") == 1
    for call in (lambda: texts(publisher, 0), lambda: publisher.bounds([0])):
        with pytest.raises(LogAccessRefused):
            call()
    publisher.close()


async def test_a_role_that_the_log_does_not_know_is_refused(
    engine: AsyncEngine, log: PostgresLog, log_url: str
) -> None:
    """As in a copy of the database, or one restored to a time before the role was made."""
    credentials = ClientCredentials(engine, log_url)
    reader = PostgresLog("flights", (await given(credentials, "read")).url)
    publisher = PostgresLog("flights", (await given(credentials, "publish")).url)
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute("DELETE FROM counterpoise_log.clients")
    for call in (
        lambda: reader.bounds([0]),
        lambda: append(publisher, "a"),
        lambda: publisher.next_sequence("p"),
    ):
        with pytest.raises(LogAccessRefused, match="not valid"):
            call()
    reader.close()
    publisher.close()


async def test_the_group_s_rights_are_made_good_before_a_role_is_made(
    engine: AsyncEngine, log: PostgresLog, log_url: str
) -> None:
    """Where a dump was restored, the group was perhaps missing, and with it grants and policies."""
    with psycopg.connect(log_url, autocommit=True) as connection:
        for table in ("logs", "partition_rows", "ends", "messages"):
            connection.execute(f"DROP POLICY one_log ON counterpoise_log.{table}".encode())
        connection.execute("REVOKE ALL ON SCHEMA counterpoise_log FROM counterpoise_log_client")
        connection.execute(
            "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA counterpoise_log FROM counterpoise_log_client"
        )
    await BuiltinLogs(engine, log_url).ensure("builtin:others", 1)
    access = await given(ClientCredentials(engine, log_url), "read")
    assert asked(access.url, "SELECT string_agg(name, ' ') FROM counterpoise_log.logs") == "flights"


# Whose they are


async def test_each_flow_has_a_role_of_its_own(engine: AsyncEngine, log_url: str) -> None:
    credentials = ClientCredentials(engine, log_url)
    wanted: list[tuple[Purpose, Holder, str]] = [
        ("read", FLOW, "flights"),
        ("read", ANOTHER_FLOW, "flights"),
        ("read", FLOW, "others"),
        ("publish", FLOW, "flights"),
        ("read", ANYONE, "flights"),
        ("read", Holder.caller("q2", None, None), "flights"),
    ]
    found = [await given(credentials, *one) for one in wanted]
    assert len({user(access) for access in found}) == len(wanted)
    assert [await given(credentials, *one) for one in wanted] == found


async def test_a_thousand_flows_get_theirs_in_a_few_transactions(
    engine: AsyncEngine, log_url: str
) -> None:
    credentials = ClientCredentials(engine, log_url)
    holders = [Holder.flow(f"f{n}", "q1") for n in range(1000)]
    found = await asyncio.gather(*(given(credentials, "read", holder) for holder in holders))
    assert len({access.url for access in found}) == 1000
    assert asked(log_url, "SELECT count(*) FROM counterpoise_log.clients") == 1000
    assert asked(log_url, "SELECT count(DISTINCT created_at) FROM counterpoise_log.clients") < 10
    assert ends(found[-1]) == "0"


async def test_publishers_of_one_replica_share_a_role(engine: AsyncEngine, log_url: str) -> None:
    credentials = ClientCredentials(engine, log_url)
    found = await asyncio.gather(*(given(credentials, "publish") for _ in range(100)))
    assert len({access.url for access in found}) == 1


async def test_replicas_make_roles_at_the_same_time(engine: AsyncEngine, log_url: str) -> None:
    replicas = [ClientCredentials(engine, log_url) for _ in range(4)]
    found = await asyncio.gather(
        *(
            given(replica, "read", Holder.flow(f"f{n}", "q1"))
            for n in range(20)
            for replica in replicas
        )
    )
    assert len({user(access) for access in found}) == 80


# For how long


async def test_credentials_rotate(engine: AsyncEngine, log_url: str) -> None:
    now = [0.0]
    short = ClientCredentials(
        engine, log_url, rotate_seconds=20, valid_seconds=60, monotonic=lambda: now[0]
    )
    first = await given(short, "read")
    now[0] += 19
    assert await given(short, "read") == first
    now[0] += 2
    second = await given(short, "read")
    assert user(second) != user(first)
    # The first one is still good for those who have just been given it.
    assert ends(first) == "0"


async def test_a_bind_waits_for_one_statement_and_no_disk(log_url: str, log: PostgresLog) -> None:
    sent: list[str] = []
    engine = log_engine(log_url, tested=False)
    credentials = ClientCredentials(engine, log_url, making=engine)
    await given(credentials, "read")
    lent = await engine.connect()
    driver: Any = (await lent.get_raw_connection()).driver_connection
    driver.add_query_logger(lambda query: sent.append(query.query))
    await driver.execute("SET synchronous_commit = 'on'")
    await lent.close()
    sent.clear()
    access = await given(credentials, "read", FLOW)
    assert len(sent) == 1
    assert "synchronous_commit" in sent[0]
    assert ends(access) == "0"
    # Of this transaction alone.
    assert await driver.fetchval("SHOW synchronous_commit") == "on"
    await engine.dispose()


async def test_a_connection_that_was_closed_meanwhile_is_replaced(
    log_url: str, log: PostgresLog
) -> None:
    engine = log_engine(log_url, tested=False)
    credentials = ClientCredentials(engine, log_url, making=engine)
    await given(credentials, "read")
    with psycopg.connect(log_url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'counterpoise' AND datname = current_database()"
        )
        assert ended.fetchall() == [(True,)]
    assert ends(await given(credentials, "read", FLOW)) == "0"
    await engine.dispose()


async def test_refused_credentials_are_replaced_but_not_at_every_call(
    engine: AsyncEngine, log_url: str
) -> None:
    now = [0.0]
    credentials = ClientCredentials(engine, log_url, monotonic=lambda: now[0])
    first = await given(credentials, "read")
    now[0] += 60
    found = await asyncio.gather(*(given(credentials, "read", refused=True) for _ in range(20)))
    assert len({user(access) for access in found}) == 1
    assert user(found[0]) != user(first)
    assert await given(credentials, "read", refused=True) == found[0]
    now[0] += 6
    assert await given(credentials, "read", refused=True) != found[0]


async def test_expired_roles_are_dropped_and_their_sessions_ended(
    engine: AsyncEngine, log_url: str, roles: ClientRoles
) -> None:
    credentials = ClientCredentials(engine, log_url)
    old, new = await given(credentials, "read"), await given(credentials, "read", FLOW)
    kept = psycopg.connect(old.url, autocommit=True)
    kept.execute("SELECT * FROM counterpoise_log.logs")
    expire(log_url, old)
    # At once for reading, and soon altogether.
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        kept.execute("SELECT * FROM counterpoise_log.logs")
    with pytest.raises(LogAccessRefused):
        ends(old)
    await roles.drop_expired()
    with pytest.raises(psycopg.OperationalError):
        kept.execute("SELECT 1")
    assert not is_there(log_url, old)
    assert is_there(log_url, new)
    assert asked(log_url, "SELECT count(*) FROM counterpoise_log.clients") == 1


async def test_the_roles_of_a_holder_that_has_gone_are_dropped(
    engine: AsyncEngine, log_url: str, roles: ClientRoles
) -> None:
    credentials = ClientCredentials(engine, log_url)
    gone, stays = await given(credentials, "read", FLOW), await given(credentials, "read")
    kept = psycopg.connect(gone.url, autocommit=True)
    # A role is made before its flow is bound.
    assert await roles.holders() == frozenset()
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute("UPDATE counterpoise_log.clients SET created_at = '2020-01-01'")
    assert await roles.holders() == {"flow:f1", "anyone"}
    await asyncio.gather(*(ClientRoles(engine).revoke(["flow:f1"]) for _ in range(3)))
    with pytest.raises(psycopg.OperationalError):
        kept.execute("SELECT 1")
    assert not is_there(log_url, gone)
    assert is_there(log_url, stays)


async def test_the_roles_made_with_a_key_end_with_it(
    engine: AsyncEngine, log_url: str, roles: ClientRoles
) -> None:
    credentials = ClientCredentials(engine, log_url)
    of_flow = await given(credentials, "read", Holder.flow("f1", "q1", "key1"))
    of_key = await given(credentials, "publish", Holder.caller("q1", None, "key1"))
    of_another = await given(credentials, "publish", Holder.caller("q1", None, "key2"))
    assert len({user(one) for one in (of_flow, of_key, of_another)}) == 3
    await given(credentials, "publish")
    assert await roles.keys() == {"key1", "key2"}
    await roles.revoke(keys=["key1"])
    assert [is_there(log_url, one) for one in (of_flow, of_key, of_another)] == [0, 0, 1]
    assert await roles.keys() == {"key2"}


async def test_a_revoked_holder_gets_other_credentials(engine: AsyncEngine, log_url: str) -> None:
    logs = BuiltinLogs(engine, log_url)
    first = await logs.access("builtin:flights", "read", FLOW)
    await logs.revoke([FLOW.name])
    second = await logs.access("builtin:flights", "read", FLOW)
    assert first is not None
    assert second is not None
    assert user(first) != user(second)


async def test_credentials_end_with_their_log(engine: AsyncEngine, log_url: str) -> None:
    """A log that is made later under the same name is another's."""
    logs = BuiltinLogs(engine, log_url)
    first = await logs.access("builtin:flights", "read", ANYONE)
    assert first is not None
    await logs.drop("builtin:flights")
    await logs.ensure("builtin:flights", 1)
    with pytest.raises(LogAccessRefused):
        ends(first)
    second = await logs.access("builtin:flights", "read", ANYONE)
    assert second is not None
    assert ends(second) == "0"


async def test_a_role_that_owns_something_goes_with_it(
    engine: AsyncEngine, log_url: str, roles: ClientRoles
) -> None:
    access = await given(ClientCredentials(engine, log_url), "read", FLOW)
    # As in a server that is not the service's own.
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(f"GRANT EXECUTE ON FUNCTION {OPEN_BY_DEFAULT} TO PUBLIC".encode())
    assert asked(access.url, "SELECT lo_create(0)") is not None
    await roles.revoke([FLOW.name])
    assert not is_there(log_url, access)
    assert asked(log_url, "SELECT count(*) FROM pg_largeobject_metadata") == 0


# Sessions that are in the way


@pytest.mark.parametrize(
    "statement", ["SELECT 1", "SELECT counterpoise_log.next_sequence('flights', 'p')"]
)
async def test_a_session_that_keeps_a_transaction_open_is_ended(
    engine: AsyncEngine,
    log_url: str,
    roles: ClientRoles,
    statement: LiteralString,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = await given(ClientCredentials(engine, log_url), "publish")
    lawful = psycopg.connect(access.url, autocommit=True)
    lawful.execute("SELECT 1")
    holding = psycopg.connect(access.url)
    holding.execute("SET idle_in_transaction_session_timeout = 0")
    holding.execute(statement)
    assert await roles.watch() == 0
    monkeypatch.setattr("broker.logs.roles.IDLE_SECONDS", 0.0)
    assert await roles.watch() == 1
    with pytest.raises(psycopg.OperationalError):
        holding.execute("SELECT 1")
    lawful.execute("SELECT 1")
    lawful.close()


async def test_a_cursor_that_keeps_temporary_files_is_ended(
    engine: AsyncEngine, log_url: str, roles: ClientRoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WITH HOLD it keeps its rows when its transaction is over."""
    access = await given(ClientCredentials(engine, log_url), "read")
    lawful = psycopg.connect(access.url, autocommit=True)
    keeping = psycopg.connect(access.url, autocommit=True)
    keeping.execute("SET work_mem = '64kB'")
    cursor = "DECLARE kept CURSOR WITH HOLD FOR SELECT n FROM generate_series(1, 50000) AS n"
    keeping.execute(cursor.encode())
    lawful.execute(cursor.replace("50000", "5").encode())
    assert await roles.watch() == 0
    monkeypatch.setattr("broker.logs.roles.TRANSACTION_SECONDS", 0.0)
    assert await roles.watch() == 1
    with pytest.raises(psycopg.OperationalError):
        keeping.execute("SELECT 1")
    lawful.execute("SELECT 1")
    lawful.close()


# Where roles cannot be made, or their sessions not be ended


@pytest.fixture
def weak_url(log_url: str) -> Any:
    """The log's database, owned by a user that is no superuser. Call it with the user's rights."""
    name = f"weak_{urlsplit(log_url).path[1:]}"

    def make(rights: LiteralString) -> str:
        with psycopg.connect(log_url, autocommit=True) as connection:
            database = connection.info.dbname
            connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'weak' {rights}".encode())
            connection.execute(f"GRANT CREATE ON DATABASE {database} TO {name}".encode())
            connection.execute("DROP SCHEMA counterpoise_log CASCADE")
            connection.execute(f"GRANT EXECUTE ON FUNCTION {OPEN_BY_DEFAULT} TO PUBLIC".encode())
            connection.execute("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")
            if rights:
                # On this server somebody else has made the group.
                group = "counterpoise_log_client"
                connection.execute(f"GRANT {group} TO {name} WITH ADMIN OPTION".encode())
        parts = urlsplit(log_url)
        url = parts._replace(netloc=f"{name}:weak@{parts.hostname}:{parts.port}").geturl()
        migrate_log(url)
        migrate_log(url)
        return url

    yield make
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


async def test_a_service_that_may_not_create_roles_gives_none(weak_url: Any) -> None:
    engine = async_engine(weak_url(""))
    credentials = ClientCredentials(engine, "postgresql://any/any")
    assert await credentials.get("flights", "read", FLOW) is None
    assert await credentials.get("flights", "publish", ANYONE) is None
    await engine.dispose()


async def test_a_service_that_is_no_superuser_makes_watches_and_drops_roles(
    weak_url: Any, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a managed Postgres: its user may create roles, and owns the database's schema."""
    url = weak_url("CREATEROLE")
    engine = async_engine(url)
    logs, roles = BuiltinLogs(engine, log_url), ClientRoles(engine)
    await logs.ensure("builtin:flights", 4)
    publish = await logs.access("builtin:flights", "publish", FLOW)
    read = await logs.access("builtin:flights", "read", FLOW)
    assert publish is not None
    assert read is not None
    publisher = PostgresLog("flights", publish.url)
    append(publisher, "a")
    assert ends(read) == "1"
    holding = psycopg.connect(read.url)
    holding.execute("SELECT lo_create(0)")
    monkeypatch.setattr("broker.logs.roles.IDLE_SECONDS", 0.0)
    assert await roles.watch() == 1
    holding.close()
    holding = psycopg.connect(read.url, autocommit=True)
    holding.execute("SELECT lo_create(0)")
    # It is bound by no policy itself, though it has the privileges of all these roles.
    assert (await logs.bounds("builtin:flights")).ends[0] == "1"
    await roles.revoke([FLOW.name])
    with pytest.raises(psycopg.OperationalError):
        holding.execute("SELECT 1")
    assert not is_there(log_url, read)
    assert not is_there(log_url, publish)
    publisher.close()
    await engine.dispose()


async def test_a_role_of_another_user_keeps_no_other_from_its_end(
    weak_url: Any, log_url: str
) -> None:
    """The service ran as that user before. Who may not end a role passes it over."""
    engine, before = async_engine(weak_url("CREATEROLE")), async_engine(log_url)
    theirs = await given(ClientCredentials(before, log_url), "read", FLOW)
    ours = await given(ClientCredentials(engine, log_url), "publish", FLOW)
    with psycopg.connect(theirs.url, autocommit=True) as held:
        await ClientRoles(engine).revoke([FLOW.name])
        held.execute("SELECT 1")
    assert not is_there(log_url, ours)
    assert is_there(log_url, theirs)
    await ClientRoles(before).revoke([FLOW.name])
    assert not is_there(log_url, theirs)
    for each in (engine, before):
        await each.dispose()


async def test_a_role_that_vanished_is_replaced(engine: AsyncEngine, log_url: str) -> None:
    credentials = ClientCredentials(engine, log_url)
    first = await given(credentials, "read")
    with psycopg.connect(log_url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE {user(first)}".encode())
    second = await given(ClientCredentials(engine, log_url), "read")
    assert user(second) != user(first)
    until(lambda: is_there(log_url, second))
