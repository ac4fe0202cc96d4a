"""A real Postgres for the tests, and databases in it.

    def test_something(migrated_url):  # postgresql://counterpoise:…@127.0.0.1:…/migrated_1
        with psycopg.connect(migrated_url) as connection:
            ...

* `postgres_url` (session): one server for each process that runs tests, the embedded one, in a
  temporary directory, with `fsync` off. The first test that needs it starts it (one second).
* `migrated_url` (function): a database with current tables and nothing in them; the usual one.
  `databases` (session) lends more of them: `with databases.lend() as url:`.
* `database_url` (function): a new, empty database.

A test may change its database in any way and needs no clean-up. Two services share a database by
using the same URL. Tests that are about starting, stopping or killing Postgres itself start their
own `EmbeddedPostgres`.

A migrated database is cleaned and lent again, because creating and dropping one takes Postgres ten
times as long. If a test changed its tables, functions or rights, the database is dropped. The
session that cleans it stays: a new one would read the catalogs first, which takes three times as
long as to clean.

Services in the process of the tests open two connections when they start, and others when they need
them. As a process they open six, of which most tests use two; `opening_first` is for tests about
that.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import psycopg
import pytest
from alembic.config import Config
from psycopg import Connection, sql
from sqlalchemy.ext.asyncio import AsyncEngine

import broker.service
from broker.logs.database import open_first
from broker.postgres import migrations
from broker.postgres.embedded import EmbeddedPostgres
from broker.store import connections

# Test data is worth nothing after a crash, so Postgres does not wait for the disk. Nor are its
# passwords: guessing one may be cheap, because each connection does the same work.
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "scram_iterations": "1",
}

# All of the schema, but no rows. An entry of these catalogs that is rewritten gets another xmin.
# TRUNCATE rewrites pg_class too, so pg_class is compared by its values.
_SCHEMA = r"""
WITH ours AS (SELECT oid, xmin, nspname FROM pg_namespace
              WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'),
     tables AS (SELECT c.* FROM pg_class c JOIN ours ON ours.oid = relnamespace)
SELECT concat_ws('|',
    (SELECT string_agg(concat(nspname, xmin), ',' ORDER BY nspname) FROM ours),
    (SELECT string_agg(concat(oid, relname, relacl, reloptions), ',' ORDER BY oid) FROM tables),
    (SELECT string_agg(concat(attrelid, attname, a.xmin), ',' ORDER BY attrelid, attnum)
     FROM pg_attribute a WHERE attrelid IN (SELECT oid FROM tables)),
    (SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_constraint
     WHERE conrelid IN (SELECT oid FROM tables)),
    (SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_trigger
     WHERE tgrelid IN (SELECT oid FROM tables)),
    (SELECT string_agg(concat(p.oid, p.xmin), ',' ORDER BY p.oid) FROM pg_proc p
     JOIN ours ON ours.oid = pronamespace),
    (SELECT string_agg(setconfig::text, ',') FROM pg_db_role_setting s
     JOIN pg_database d ON d.oid = setdatabase AND datname = current_database()))
"""
_TABLES = """
SELECT schemaname, tablename FROM pg_tables
WHERE schemaname IN ('counterpoise', 'counterpoise_log')
"""
# TRUNCATE makes every file of a table anew, which costs more than most tests. A table that nobody
# wrote to has no pages, and few rows are deleted at once.
_WRITTEN = """
SELECT n.nspname, c.relname, pg_relation_size(c.oid) > 65536
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname IN ('counterpoise', 'counterpoise_log') AND relkind = 'r'
AND pg_relation_size(c.oid) > 0
"""
_RESTART_SEQUENCES = """
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
FROM pg_sequences
WHERE schemaname IN ('counterpoise', 'counterpoise_log') AND last_value IS NOT NULL
"""
_DISCONNECT = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

_numbers = itertools.count(1)

# To open a connection takes Postgres as long as a dozen statements.
OPEN_FIRST = connections.OPEN_FIRST
connections.OPEN_FIRST = 1


async def _open_that_of_binds(*engines: AsyncEngine) -> None:
    """Of the connections to the log: no call waits long for one on a machine that is busy."""
    await open_first(*engines[-1:])


pytest.MonkeyPatch().setattr(broker.service, "open_first", _open_that_of_binds)


@contextmanager
def opening_first() -> Iterator[None]:
    """Here services open their first connections when they start, as users know them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "OPEN_FIRST", OPEN_FIRST)
        patch.setattr(broker.service, "open_first", open_first)
        yield


@contextmanager
def new_database(server_url: str, more: str = "", called: str = "test") -> Iterator[str]:
    """The URL of a new, empty database. Afterwards it is dropped, even if connected to.

    `more`: the end of the statement that makes it. `called`: the beginning of its name.
    """
    name = f"{called}_{next(_numbers)}"
    _administer(server_url, f'CREATE DATABASE "{name}" {more}')
    yield urlsplit(server_url)._replace(path=f"/{quote(name, safe='')}").geturl()
    _drop(server_url, name)


class Databases:
    """Migrated databases of one server, each lent to one borrower at a time."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._free: list[_Database] = []

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of a database with current tables and nothing in them."""
        database = self._free.pop() if self._free else self._make()
        try:
            yield database.url
        except BaseException:
            database.close()
            raise
        if database.cleaned():
            self._free.append(database)
        else:
            database.close()
            _drop(self._server_url, database.name)

    def close(self) -> None:
        """End the sessions of those that are not lent."""
        for database in self._free:
            database.close()

    def _make(self) -> "_Database":
        name = f"migrated_{next(_numbers)}"
        _administer(self._server_url, f"CREATE DATABASE {name}")
        url = urlsplit(self._server_url)._replace(path=f"/{name}").geturl()
        migrations.upgrade(url)
        return _Database(name, url)


class _Database:
    """One migrated database, its contents before any test used it, and a session that stays."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self._session = session = self._connected()
        self._schema = _schema(session)
        tables = [sql.Identifier(*row) for row in session.execute(_TABLES)]
        self._rows = [(table, rows) for table in tables if (rows := _rows(session, table))]

    def cleaned(self) -> bool:
        """Restore the original rows; False if a test changed more than rows."""
        if is_ended(self._session):
            self.close()
            self._session = self._connected()
        session = self._session
        session.execute(_DISCONNECT)
        if _schema(session) != self._schema:
            return False
        with session.transaction():
            _empty(session)
            for table, rows in self._rows:
                into = sql.SQL(
                    "INSERT INTO {0} OVERRIDING SYSTEM VALUE"
                    " SELECT * FROM json_populate_recordset(NULL::{0}, %s)"
                )
                session.execute(into.format(table), [rows])
        return True

    def close(self) -> None:
        self._session.close()

    def _connected(self) -> Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, application_name="tests")


def _empty(connection: Connection) -> None:
    """Remove the rows of all tables; sequences start anew."""
    connection.execute("SET LOCAL session_replication_role = replica")  # no triggers, in any order
    for schema, name, large in connection.execute(_WRITTEN).fetchall():
        remove = "TRUNCATE {} CASCADE" if large else "DELETE FROM {}"
        connection.execute(sql.SQL(remove).format(sql.Identifier(schema, name)))
    connection.execute(_RESTART_SEQUENCES)


def _schema(connection: Connection) -> object:
    return connection.execute(_SCHEMA).fetchone()


def _rows(connection: Connection, table: sql.Identifier) -> str | None:
    """All rows as JSON; None if there are none."""
    row = connection.execute(sql.SQL("SELECT json_agg(t)::text FROM {} t").format(table)).fetchone()
    assert row is not None
    return row[0]


def is_ended(connection: Connection[Any]) -> bool:
    """Whether the server has ended the session."""
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def _administer(server_url: str, statement: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _drop(server_url: str, name: str) -> None:
    _administer(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of `postgres_url`."""
    return tmp_path_factory.mktemp("postgres")


@pytest.fixture(scope="session")
def postgres_url(postgres_directory: Path) -> Iterator[str]:
    """The URL of a running Postgres. Tests must not use the database that the URL names."""
    with EmbeddedPostgres(postgres_directory, settings=FAST) as url:
        # The password was set when the cluster was made, without these settings.
        password = urlsplit(url).password
        _administer(url, f"ALTER ROLE CURRENT_USER PASSWORD '{password}'")
        yield url


@contextmanager
def alembic_tree(name: str, url: str) -> Iterator[Config]:
    """Alembic's configuration for a tree of migrations (`control`, `log`) and a database."""
    config = Config()
    config.set_main_option("script_location", f"migrations:{name}")
    with migrations._connected(url) as connection:
        config.attributes["connection"] = connection
        yield config


def name_clients(url: str, queue: str, client_name: str) -> None:
    """Give the flows of a queue a name that earlier releases took, and this one does not."""
    with psycopg.connect(url) as database:
        database.execute(
            "UPDATE counterpoise.flows SET client_name = %s WHERE queue_id IN"
            " (SELECT id FROM counterpoise.queues WHERE name = %s)",
            [client_name, queue],
        )
        # A service that has the queue in memory reads it again.
        database.execute(
            "UPDATE counterpoise.queues SET revision = revision + 1 WHERE name = %s", [queue]
        )


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    with new_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def databases(postgres_url: str) -> Iterator[Databases]:
    with contextlib.closing(Databases(postgres_url)) as databases:
        yield databases


@pytest.fixture
def migrated_url(databases: Databases) -> Iterator[str]:
    """The URL of a database with current tables and nothing in them."""
    with databases.lend() as url:
        yield url


def watch_connections(patch: pytest.MonkeyPatch, seen: Callable[[Any], None]) -> None:
    """`seen` gets each connection that asyncpg opens for this thread.

    Services that earlier tests left to run have threads of their own.
    """
    connect, ours = asyncpg.connect, threading.get_ident()

    async def connecting(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        if threading.get_ident() == ours:
            seen(connection)
        return connection

    patch.setattr(asyncpg, "connect", connecting)


def end_other_sessions(url: str) -> None:
    """Ends all sessions of the database but that of this call, whatever they are at."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
