"""Connection poolers in transaction mode are refused, and nothing else is mistaken for one.

`pgbouncer` itself is tested where it is installed; no package index has it. Otherwise a stand-in
takes its place: real sessions of Postgres, shared between clients like a pooler's.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from broker.exits import Exit
from broker.postgres.checks import why_not_usable
from broker.postgres.connections import DatabaseUnreachable
from broker.service import Broker
from tests.broker.test_cli import refusal
from tests.databases import end_other_sessions
from tests.service import eventually, free_port, running, settings_for

PGBOUNCER = shutil.which("pgbouncer")


class Session:
    """A client's session with a stand-in for a pooler, which numbers its sessions."""

    info = SimpleNamespace(backend_pid=7, parameter_status=lambda _: "UTF8")

    def __init__(self, serving: Callable[[], "psycopg.Connection[Any]"]) -> None:
        self._serving = serving

    def execute(self, query: str, *, prepare: bool) -> Any:
        return self._serving().execute(query, prepare=prepare)

    def close(self) -> None:
        """Its connections belong to the stand-in."""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def connections(database_url: str) -> "Iterator[list[psycopg.Connection[Any]]]":
    opened = [psycopg.connect(database_url, autocommit=True) for _ in range(3)]
    yield opened
    for connection in opened:
        connection.close()


def test_postgres_itself_is_fine(database_url: str) -> None:
    assert why_not_usable(database_url) is None


def test_one_process_for_two_sessions(connections: "list[psycopg.Connection[Any]]") -> None:
    def connect(**_: object) -> Any:
        return Session(lambda: connections[0])

    assert "transaction mode" in str(why_not_usable("postgresql://host/db", connect))


def test_a_session_that_changes_its_process(connections: "list[psycopg.Connection[Any]]") -> None:
    def connect(**_: object) -> Any:
        def next_one() -> "psycopg.Connection[Any]":
            connections.append(connections.pop(0))
            return connections[0]

        return Session(next_one)

    assert "transaction mode" in str(why_not_usable("postgresql://host/db", connect))


def test_a_session_for_each_client(connections: "list[psycopg.Connection[Any]]") -> None:
    """As in session mode: this is fine if the pooler accepts the settings of a session."""
    left = list(connections)

    def connect(**_: object) -> Any:
        mine = left.pop()
        return Session(lambda: mine)

    assert why_not_usable("postgresql://host/db", connect) is None


def test_settings_that_are_refused(connections: "list[psycopg.Connection[Any]]") -> None:
    left = list(connections)

    def connect(**parameters: object) -> Any:
        if "options" in parameters:
            raise psycopg.OperationalError("FATAL: unsupported startup parameter: options")
        mine = left.pop()
        return Session(lambda: mine)

    refusal = str(why_not_usable("postgresql://host/db", connect))
    assert "unsupported startup parameter" in refusal


def test_an_unreachable_database_is_reported() -> None:
    with pytest.raises(DatabaseUnreachable):
        why_not_usable("postgresql://nobody:hunter2@127.0.0.1:1/nothing")


@pytest.fixture
def pooled(migrated_url: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`pooled(setting=value, …)`: starts pgbouncer; the URL of the database behind it."""
    assert PGBOUNCER is not None
    port = free_port()
    parts = urlsplit(migrated_url)
    name = parts.path.strip("/")
    configuration = tmp_path / "pgbouncer.ini"
    (tmp_path / "users").write_text(f'"{parts.username}" "{parts.password}"\n')
    url = f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{port}/{name}"
    # It does not run as root.
    command = [PGBOUNCER, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(configuration)]

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    with contextlib.ExitStack() as stack:

        def start(**settings: str) -> str:
            lines = [f"{setting} = {value}" for setting, value in settings.items()]
            configuration.write_text(
                f"[databases]\n{name} = host={parts.hostname} port={parts.port}\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
                f"auth_type = plain\nauth_file = {tmp_path / 'users'}\n" + "\n".join(lines)
            )
            pgbouncer = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(pgbouncer.terminate)
            eventually(answers)
            return url

        yield start


# pgbouncer is of the system, and no part of `make setup`
on_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.mark.long
@on_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement", "session"])
def test_pgbouncer(pooled: Callable[..., str], mode: str) -> None:
    url = pooled(pool_mode=mode)
    line = refusal(["serve", "--port", "0", "--database-url", url], Exit.DATABASE)
    assert "give the address of Postgres itself" in line
    assert ("transaction mode" in line) is (mode != "session")


@pytest.mark.long
@on_pgbouncer
def test_one_that_ignores_settings_needs_a_database_without_others(
    pooled: Callable[..., str], migrated_url: str
) -> None:
    url = pooled(pool_mode="session", ignore_startup_parameters="options")
    settings = settings_for(url)
    with running(Broker(settings), settings) as service:
        assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert why_not_usable(url) is None
    with psycopg.connect(migrated_url, autocommit=True) as admin:
        name = urlsplit(migrated_url).path.strip("/")
        admin.execute(f"ALTER DATABASE {name} SET row_security = off".encode())
        # Those that the pooler keeps are older.
        end_other_sessions(migrated_url)

    def is_refused() -> bool:
        try:
            refusal = str(why_not_usable(url))
        except DatabaseUnreachable:
            # The pooler has not noticed yet which of its connections are ended.
            return False
        assert "ignores session settings, and row_security is 'off'" in refusal
        return True

    eventually(is_refused)
