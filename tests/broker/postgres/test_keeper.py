"""If the service's own Postgres ends, the service starts it again at the same address."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import structlog

from broker.postgres.embedded import EmbeddedPostgres
from broker.postgres.keeper import PostgresKeeper
from tests.databases import FAST
from tests.service import eventually

pytestmark = pytest.mark.long


def started_at(url: str) -> object:
    """When it started; None if it does not run."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
    except psycopg.OperationalError:
        return None
    return row[0] if row else None


def is_new(url: str, before: set[object]) -> bool:
    return started_at(url) not in before


def kept(url: str) -> list[tuple]:
    with psycopg.connect(url, connect_timeout=60) as connection:
        return connection.execute("SELECT n FROM kept").fetchall()


def kill(directory: Path) -> None:
    file = directory / "postgres" / "postmaster.pid"
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


def take(url: str) -> socket.socket:
    """Listen on the port of an ended Postgres, as soon as its last process has released it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def bound() -> bool:
        with suppress(OSError):
            listener.bind(("127.0.0.1", urlsplit(url).port or 0))
        return listener.getsockname()[1] != 0

    eventually(bound)
    listener.listen()
    return listener


@pytest.fixture
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """A Postgres in `tmp_path` that is soon started again, and its URL."""
    monkeypatch.setattr("broker.postgres.keeper.PAUSE_SECONDS", 0.1)
    postgres = EmbeddedPostgres(tmp_path, settings=FAST)
    url = postgres.start()
    yield postgres, url
    postgres.stop()


def test_a_postgres_that_is_killed_runs_again(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path)
    url = postgres.start()
    try:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (n integer)")
            connection.execute("INSERT INTO kept VALUES (7)")
        with PostgresKeeper(postgres, url):
            for _ in range(2):
                before = {None, started_at(url)}
                kill(tmp_path)
                eventually(partial(is_new, url, before))
                assert kept(url) == [(7,)]
    finally:
        postgres.stop()
    assert started_at(url) is None


def test_a_failed_start_is_tried_again(
    tmp_path: Path, started: tuple[EmbeddedPostgres, str]
) -> None:
    postgres, url = started
    version = tmp_path / "postgres" / "PG_VERSION"
    with structlog.testing.capture_logs() as logs, PostgresKeeper(postgres, url):
        right = version.read_text()
        version.write_text("7\n")
        kill(tmp_path)
        eventually(lambda: sum("yet" in line["event"] for line in logs) > 1)
        assert "was made by Postgres 7" in logs[-1]["error"]
        version.write_text(right)
        eventually(lambda: started_at(url))


def test_a_failed_recovery_from_a_crash_is_tried_again(
    tmp_path: Path, started: tuple[EmbeddedPostgres, str]
) -> None:
    """A Postgres that recovers without ending would never end nor serve (`keeper`)."""
    postgres, url = started
    # No recovery gets past it.
    obstacle = tmp_path / "postgres" / "backup_label"
    with structlog.testing.capture_logs() as logs, PostgresKeeper(postgres, url):
        obstacle.write_text("this is no label\n")
        with suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
        eventually(lambda: any("yet" in line["event"] for line in logs))
        assert "was terminated by signal 9" in logs[0]["reason"]
        assert "backup_label" in logs[-1]["error"]
        obstacle.unlink()
        eventually(lambda: started_at(url))


def test_it_waits_for_its_port_when_another_program_has_taken_it(
    tmp_path: Path, started: tuple[EmbeddedPostgres, str]
) -> None:
    postgres, url = started
    kill(tmp_path)
    with (
        take(url) as other,
        structlog.testing.capture_logs() as logs,
        PostgresKeeper(postgres, url),
    ):
        eventually(lambda: sum("yet" in line["event"] for line in logs) > 1)
        assert f"port {urlsplit(url).port} on 127.0.0.1 is taken" in logs[-1]["error"]
        # A service that is started again now wants the same port.
        assert (tmp_path / "port").read_text().strip() == str(urlsplit(url).port)
        other.close()
        eventually(lambda: started_at(url))


def test_a_machine_that_starts_no_program_now_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the bound of logins; it may be out of processes or files for a moment."""
    monkeypatch.setattr("broker.postgres.keeper.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sys, "executable", "/none")
    postgres: Any = SimpleNamespace(pid=1, poll=lambda: None, bound_log=lambda: None)
    with structlog.testing.capture_logs() as logs, PostgresKeeper(postgres, ""):
        eventually(lambda: len(logs) > 1)
    assert {line["event"] for line in logs} == {"logins to Postgres are not bounded yet"}
