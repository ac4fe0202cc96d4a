"""Whoever has credentials of the built-in log, and sends SQL of their own.

Each attack plays with real credentials: those of a flow (`reader`) and of a publisher (`writer`) of
the queue `mine`. The queue `theirs` is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from broker.postgres import migrations
from broker.service import Broker
from counterpoise import Flow
from counterpoise.logs import LogAccessRefused, LogUnavailable, Message
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.port import AppendBatch
from counterpoise.publisher import Publisher
from tests.attacks.bystander import Bystander
from tests.service import Service

pytestmark = pytest.mark.long

SECRET = b"the secret of theirs"
MINE = b"1"


@dataclass
class Stage:
    """Two queues with a message each, and credentials for one of them."""

    service: Service
    http: httpx.Client
    mine: str
    theirs: str
    reader: str = field(repr=False)
    writer: str = field(repr=False)
    flow: dict[str, Any] = field(repr=False)

    def bind(self, queue: str) -> dict[str, Any]:
        body = {"client_name": "attacker", "lease_seconds": 600}
        answer = self.http.post(f"/queues/{queue}/flows", json=body)
        answer.raise_for_status()
        bound: dict[str, Any] = answer.json()
        return bound

    def access(self, queue: str, purpose: str, **more: object) -> str:
        body = {"purpose": purpose, **more}
        answer = self.http.post(f"/queues/{queue}/log-access", json=body)
        answer.raise_for_status()
        url: str = answer.json()["access"]["url"]
        return url


@pytest.fixture
def stage(target: Service, name_of_a_queue: Callable[[], str]) -> Iterator[Stage]:
    with target.http as http:
        mine, theirs = name_of_a_queue(), name_of_a_queue()
        for name, value in ((mine, MINE), (theirs, SECRET)):
            settings = {"name": name, "partition_count": 2, "rebalance_delay": 0}
            http.post("/queues", json=settings).raise_for_status()
            with Publisher(name, url=target.url) as publisher:
                publisher.publish(value, "key")
        stage = Stage(target, http, mine, theirs, "", "", {})
        stage.flow = stage.bind(mine)
        stage.reader = stage.flow["log_access"]["url"]
        stage.writer = stage.access(mine, "publish")
        yield stage
        for name in (mine, theirs):
            http.delete(f"/queues/{name}?force=true").raise_for_status()


def connected(url: str) -> closing[psycopg.Connection[Any]]:
    return closing(psycopg.connect(url, autocommit=True))


def rows(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with connected(url) as connection:
        return connection.execute(statement.encode(), parameters).fetchall()


def user(url: str) -> str:
    name = urlsplit(url).username
    assert name is not None
    return name


# Another queue


def test_only_rows_of_the_own_queue_can_be_read(stage: Stage) -> None:
    assert rows(stage.reader, "SELECT DISTINCT name FROM counterpoise_log.logs") == [(stage.mine,)]
    assert rows(stage.reader, "SELECT value FROM counterpoise_log.messages") == [(MINE,)]
    assert rows(stage.reader, "SELECT count(*) FROM counterpoise_log.partitions") == [(2,)]
    theirs = PostgresLog(stage.theirs, stage.reader)
    with closing(theirs), pytest.raises(Exception, match="there is no log"):
        theirs.bounds([0])


def test_conditions_see_no_other_rows(stage: Stage) -> None:
    """One that fails on foreign values would fail if it came before the policy."""
    number = "convert_from(value, 'UTF8')::integer"
    for source in (
        "counterpoise_log.messages",
        "(SELECT * FROM counterpoise_log.messages OFFSET 0) AS m",
        "(SELECT * FROM counterpoise_log.messages WHERE position >= 0) AS m",
    ):
        assert rows(stage.reader, f"SELECT count(*) FROM {source} WHERE {number} = 1") == [(1,)]


def test_copying_and_cursors_give_no_other_rows(stage: Stage) -> None:
    with connected(stage.reader) as connection:
        with connection.cursor().copy("COPY counterpoise_log.messages TO STDOUT") as copied:
            assert len(b"".join(copied).splitlines()) == 1
        connection.execute(
            "DECLARE all_of_it CURSOR WITH HOLD FOR SELECT value FROM counterpoise_log.messages"
        )
        assert connection.execute("FETCH ALL all_of_it").fetchall() == [(MINE,)]


def test_another_role_s_name_opens_nothing_more(stage: Stage) -> None:
    with connected(stage.reader) as connection:
        connection.execute("SET ROLE counterpoise_log_client")
        found = connection.execute("SELECT value FROM counterpoise_log.messages").fetchall()
        assert found == [(MINE,)]
        for name in ("counterpoise", user(stage.writer)):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f'SET ROLE "{name}"'.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SET SESSION AUTHORIZATION counterpoise")
        connection.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM counterpoise_log.messages")


def test_only_the_own_queue_can_be_published_in(stage: Stage) -> None:
    batch = AppendBatch("attacker", 0, 2, [0], [Message(b"x")])
    for url, queue in (
        (stage.writer, stage.theirs),
        (stage.reader, stage.mine),
        (stage.reader, stage.theirs),
    ):
        with closing(PostgresLog(queue, url)) as log:
            with pytest.raises(Exception, match="not valid for publishing"):
                log.append(batch)
            with pytest.raises(Exception, match="not valid for publishing"):
                log.next_sequence("attacker")
            with pytest.raises(Exception, match="not valid for publishing"):
                log.append(replace(batch, by_range=True))
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not valid for publishing"):
            rows(url, "SELECT * FROM counterpoise_log.ranges(%s)", [queue])
    assert stage.http.get(f"/queues/{stage.theirs}/partitions").json()["items"]
    with closing(PostgresLog(stage.mine, stage.writer)) as log:
        assert log.append(batch).appended == 1


# What no client may do

REFUSED: list[LiteralString] = [
    # the log's tables and functions
    "INSERT INTO counterpoise_log.messages VALUES (1, 0, 7, now(), NULL, '', NULL)",
    "UPDATE counterpoise_log.ends SET next_position = 0",
    "DELETE FROM counterpoise_log.messages",
    "TRUNCATE counterpoise_log.messages",
    "SELECT * FROM counterpoise_log.messages FOR SHARE",
    "SELECT * FROM counterpoise_log.publishers",
    "SELECT * FROM counterpoise_log.sequences",
    "SELECT * FROM counterpoise_log.clients",
    "SELECT * FROM counterpoise_log.alembic_version",
    "SELECT counterpoise_log.lock_log('any', true)",
    "SELECT counterpoise_log.trim('any', '{0}', '{1}')",
    "SELECT counterpoise_log.sweep('any', 1)",
    "SELECT counterpoise_log.make_clients('{a}', '{a}', '{a}', '{read}', '{a}', '{a}', 1, 1)",
    "SELECT counterpoise_log.drop_clients('{a}')",
    "SELECT counterpoise_log.key_hash('any')",
    "UPDATE counterpoise_log.partitions SET successors = '[]'",
    "ALTER TABLE counterpoise_log.messages DISABLE ROW LEVEL SECURITY",
    "DROP POLICY one_log ON counterpoise_log.messages",
    # where rows lie, also those of others
    "SELECT ctid FROM counterpoise_log.messages",
    "SELECT xmin FROM counterpoise_log.partition_rows",
    "SELECT currtid2('counterpoise_log.partition_rows', '(0,1)')",
    "SELECT last_value FROM counterpoise_log.logs_log_id_seq",
    # the service's tables
    "SELECT * FROM counterpoise.flows",
    # locks
    "BEGIN; LOCK TABLE counterpoise_log.messages IN ACCESS SHARE MODE; COMMIT",
    "BEGIN; LOCK TABLE counterpoise_log.alembic_version IN ACCESS SHARE MODE; COMMIT",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_xact_lock_shared(1, 1)",
    "SELECT pg_try_advisory_lock(1)",
    "SELECT * FROM pg_locks",
    # objects
    "CREATE TEMP TABLE mine ()",
    "CREATE TABLE public.mine ()",
    "CREATE TABLE counterpoise_log.mine ()",
    "CREATE FUNCTION public.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION pg_temp.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "DO $$ BEGIN LOOP COMMIT; END LOOP; END $$",
    "CREATE SCHEMA mine",
    "CREATE EXTENSION pg_trgm",
    "CREATE DATABASE mine",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    # roles and settings
    "CREATE ROLE mine",
    "ALTER ROLE counterpoise PASSWORD 'mine'",
    "ALTER ROLE counterpoise_log_client LOGIN",
    "ALTER ROLE CURRENT_USER CONNECTION LIMIT -1",
    "ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "GRANT counterpoise TO CURRENT_USER",
    "REVOKE counterpoise_log_client FROM CURRENT_USER",
    "ALTER SYSTEM SET max_connections = 1",
    "SET temp_file_limit = -1",
    "ALTER ROLE CURRENT_USER SET temp_file_limit = -1",
    "SET session_replication_role = replica",
    # the machine
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/mine'",
    "COPY counterpoise_log.messages FROM PROGRAM 'true'",
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT pg_ls_dir('.')",
    "SELECT pg_logical_emit_message(false, 'x', 'x')",
    "SELECT pg_switch_wal()",
    "SELECT pg_reload_conf()",
    "SELECT pg_stat_reset()",
    "CHECKPOINT",
]


def test_statements_that_no_client_may_send(stage: Stage) -> None:
    allowed = []
    for url in (stage.reader, stage.writer):
        with connected(url) as connection:
            for statement in REFUSED:
                try:
                    connection.execute(statement)
                except psycopg.errors.InsufficientPrivilege:
                    connection.execute("ROLLBACK")
                    continue
                allowed.append(statement)
    assert not allowed


def test_temporary_files_end_a_statement_at_a_gigabyte(stage: Stage) -> None:
    """In the service's own server, as here. What was written is gone with the statement."""
    with connected(stage.reader) as connection:
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            connection.execute("SELECT count(*) FROM generate_series(1, 200000000)")
    assert rows(stage.writer, "SHOW temp_file_limit") == [("1GB",)]


def test_other_databases_of_the_server_cannot_be_entered(stage: Stage) -> None:
    for database in ("postgres", "template1"):
        url = urlsplit(stage.reader)._replace(path=f"/{database}").geturl()
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(url)


# Harm to itself alone


def test_a_password_that_was_changed_locks_nobody_else_out(
    stage: Stage, bystander: Bystander
) -> None:
    for url in (stage.reader, stage.writer):
        with connected(url) as connection:
            connection.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine alone'")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
    for url in (
        stage.bind(stage.theirs)["log_access"]["url"],
        stage.access(stage.theirs, "publish"),
        # The holder itself asks for others.
        stage.access(stage.mine, "read", refused=True),
    ):
        assert rows(url, "SELECT 1") == [(1,)]


def test_who_is_locked_out_by_its_own_role_gets_another(
    stage: Stage, target: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has stolen credentials may change the password; the holder goes on all the same."""
    monkeypatch.setattr("broker.logs.credentials.REFUSED_SECONDS", 0.0)
    with Flow(stage.mine, url=target.url, client_name="victim") as flow:
        access = flow.log_access()
        assert access is not None
        with connected(access.url) as thief:
            thief.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine alone'")
        another = flow.log_access(fresh=True)
        assert another is not None
        with connected(another.url) as own:
            holder = own.execute("SELECT current_user").fetchone()
        assert holder == (user(another.url),)
        assert user(another.url) != user(access.url)
    with connected(stage.access(stage.mine, "publish")) as thief:
        thief.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine alone'")
    with Publisher(stage.mine, url=target.url) as publisher:
        publisher.publish(b"2", "key")


def test_who_says_refused_again_and_again_has_three_roles(
    stage: Stage, target: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.logs.credentials.REFUSED_SECONDS", 0.0)
    with connected(stage.writer) as first:
        given = [stage.access(stage.mine, "publish", refused=True) for _ in range(7)]
        database = target.settings.database_url
        assert database is not None
        known = rows(
            database.get_secret_value(),
            "SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)",
            [user(url) for url in (stage.writer, *given)],
        )
        assert {name for (name,) in known} == {user(url) for url in given[-3:]}
        with pytest.raises(psycopg.OperationalError):
            first.execute("SELECT 1")
    for url in given[-3:]:
        assert rows(url, "SELECT 1") == [(1,)]


def test_a_client_takes_its_own_connections_and_not_those_of_others(
    stage: Stage, bystander: Bystander
) -> None:
    with ExitStack() as stack:
        for _ in range(stage.service.settings.log_connections):
            stack.enter_context(connected(stage.reader))
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            psycopg.connect(stage.reader)
        with closing(PostgresLog(stage.mine, stage.reader)) as log:
            # Other credentials would not help, so they are not asked for.
            with pytest.raises(LogUnavailable) as full:
                log.bounds([0])
            assert not isinstance(full.value, LogAccessRefused)
        assert rows(stage.bind(stage.mine)["log_access"]["url"], "SELECT 1")
        assert rows(stage.writer, "SELECT 1")
        assert stage.http.get(f"/queues/{stage.mine}").status_code == 200


def test_sessions_of_others_cannot_be_ended_or_overheard(
    stage: Stage, bystander: Bystander
) -> None:
    another = stage.bind(stage.mine)["log_access"]["url"]
    with connected(another) as victim, connected(stage.reader) as attacker:
        victim.execute("SELECT 'overheard'")
        sessions = attacker.execute(
            "SELECT pid, query, usename = current_user FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
        assert len(sessions) > 2
        for pid, query, own in sessions:
            assert not own
            assert query == "<insufficient privilege>"
            for function in ("pg_terminate_backend", "pg_cancel_backend"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    attacker.execute(f"SELECT {function}(%s)".encode(), (pid,))
        victim.execute("SELECT 1")


@pytest.mark.parametrize("number", [0x636F756E74657270, 0x636F756E74657271])
def test_migrations_and_appends_wait_for_no_lock_that_anybody_may_take(
    stage: Stage, target: Service, number: int
) -> None:
    """Where advisory locks cannot be taken away: in somebody else's server."""
    database = target.settings.database_url
    assert database is not None
    url = database.get_secret_value()
    with connected(url) as attacker:
        attacker.execute("SELECT pg_advisory_lock(%s)", (number,))
        attacker.execute("SELECT pg_advisory_lock(1668248945, log_id) FROM counterpoise_log.logs")
        migrations.upgrade(url)
        with Publisher(stage.mine, url=target.url) as publisher:
            publisher.publish(b"2", "key")
        stage.http.patch(f"/queues/{stage.mine}", json={"partition_count": 3}).raise_for_status()
        assert stage.access(stage.mine, "publish", refused=True)


def test_a_transaction_or_statement_that_stays_open_is_ended(
    stage: Stage, target: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps a partition locked, or old rows from being removed; its own limits it may lift."""
    monkeypatch.setattr("broker.logs.roles.TRANSACTION_SECONDS", 2.0)
    monkeypatch.setattr("broker.logs.roles.IDLE_SECONDS", 1.0)
    append = (
        f"SELECT counterpoise_log.append('{stage.mine}', 2, 'attacker', 0, '{{0,1}}',"
        " ARRAY['x','x']::bytea[], NULL, NULL, NULL)"
    )
    unlimited = (
        "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;"
        " SET transaction_timeout = 0"
    )
    database = target.settings.database_url
    assert database is not None
    with (
        connected(database.get_secret_value()) as owner,
        connected(stage.writer) as idle,
        connected(stage.writer) as busy,
        connected(stage.reader) as looping,
    ):
        for one in (idle, busy, looping):
            one.execute(unlimited)
        idle.execute("BEGIN")
        idle.execute(append.encode())
        with Publisher(stage.mine, url=target.url, timeout_seconds=60) as publisher:
            publisher.publish(b"2", "key")
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            busy.execute("SELECT pg_sleep(600)")
        # As in a server that is not the service's own. Each turn is a transaction.
        owner.execute("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")
        with pytest.raises(psycopg.OperationalError):
            looping.execute("DO $$ BEGIN LOOP PERFORM pg_sleep(0.01); COMMIT; END LOOP; END $$")
        owner.execute("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")


async def test_the_credentials_of_a_flow_that_left_open_nothing(
    stage: Stage, target: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": f"Bearer {stage.flow['flow_token']}"}
    path = f"/queues/{stage.mine}/flows/{stage.flow['flow_id']}"
    # The upkeep of a replica ends them, each minute; a role that is just made may be of a bind.
    monkeypatch.setattr("broker.logs.roles.YOUNG_SECONDS", 0.0)
    replica = Broker(target.settings)
    await replica.start()
    with connected(stage.reader) as kept:
        await replica.logs.end_credentials()
        assert kept.execute("SELECT 1").fetchone() == (1,)
        stage.http.delete(path, headers=headers).raise_for_status()
        await replica.logs.end_credentials()
        with pytest.raises(psycopg.OperationalError):
            kept.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(stage.reader)
    await replica.stop()


# Wake-ups


def test_only_readers_of_a_log_wait_and_only_its_publishers_wake(stage: Stage) -> None:
    watch = "SELECT counterpoise_log.watch(%s, '{0}', '{0}')"
    look = "SELECT counterpoise_log.still_waits(%s, '', '{0}', '{0}')"
    wake = "SELECT counterpoise_log.wake(%s, '{0}')"
    allowed = {(stage.reader, watch), (stage.reader, look), (stage.writer, wake)}
    for url in (stage.reader, stage.writer):
        for statement in (watch, look, wake):
            for log in (stage.mine, stage.theirs):
                if log == stage.mine and (url, statement) in allowed:
                    rows(url, statement, log)
                    continue
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    rows(url, statement, log)


def test_who_waits_for_another_log_is_not_seen(stage: Stage) -> None:
    for url in (stage.reader, stage.writer):
        for statement in (
            "SELECT * FROM counterpoise_log.watches",
            "DELETE FROM counterpoise_log.watches",
            "SELECT counterpoise_log.watched(1, '{0}')",
            "SELECT counterpoise_log.channel_of(gen_random_uuid())",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows(url, statement)


def test_a_reader_that_keeps_what_it_said_hinders_no_publisher(stage: Stage) -> None:
    end = rows(stage.reader, "SELECT partition, next_position FROM counterpoise_log.partitions")
    with connected(stage.reader) as attacker:
        attacker.execute("BEGIN")
        for partition, position in end:
            attacker.execute(
                "SELECT counterpoise_log.watch(%s, %s, %s)", (stage.mine, [partition], [position])
            )
        with Publisher(stage.mine, url=stage.service.url) as publisher:
            for number in range(10):
                publisher.publish(b"2", f"key-{number}")
