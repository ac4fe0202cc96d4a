"""A client of the log who fills the queue in which Postgres keeps notifications for the service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
import structlog
from psycopg import sql

from broker.postgres import migrations
from broker.postgres.embedded import EmbeddedPostgres
from broker.service import Broker
from counterpoise.client import Client
from counterpoise.flow import Flow
from tests.databases import FAST
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long

# 64 pages, the fewest that Postgres takes: 512 kB.
SMALL = {"max_notify_queue_pages": "64"}


def test_a_full_queue_of_notifications_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas cannot wake each other then; each finds the changes when it looks."""
    monkeypatch.setattr("broker.logs.roles.IDLE_SECONDS", 600.0)
    with EmbeddedPostgres(tmp_path, settings={**FAST, **SMALL}) as url, ExitStack() as stack:
        migrations.upgrade(url)
        settings = settings_for(url)
        first, second = (stack.enter_context(running(Broker(settings), settings)) for _ in "12")
        client = stack.enter_context(Client(first.url))
        client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=0)
        access = client.log_access("flights", "read").access
        assert access is not None
        holder, flooder = (
            stack.enter_context(closing(psycopg.connect(access.url, autocommit=True)))
            for _ in range(2)
        )
        holder.execute("LISTEN flood")
        holder.execute("BEGIN")
        holder.execute("SELECT 1")
        told = 0
        while _is_told(flooder, f"{told} {'x' * 7900}"):
            told += 1
        with structlog.testing.capture_logs() as logs:
            one = stack.enter_context(Flow("flights", url=first.url))
            eventually(lambda: len(one.partitions) == 2)
            other = stack.enter_context(Flow("flights", url=second.url))
            eventually(lambda: len(one.partitions) == len(other.partitions) == 1)
            eventually(lambda: any(line.get("code") == "54000" for line in logs))
        assert {line.get("code") for line in logs if line["log_level"] == "error"} == {"54000"}
        # Whoever keeps it full is ended, and it is empty again.
        monkeypatch.setattr("broker.logs.roles.IDLE_SECONDS", 0.0)
        eventually(lambda: _is_told(flooder, "again"))


def test_a_client_of_the_log_neither_hears_nor_wakes_replicas(
    target: Service, name_of_a_queue: Callable[[], str]
) -> None:
    mine, theirs = name_of_a_queue(), name_of_a_queue()
    url = target.settings.database_url
    assert url is not None
    with ExitStack() as stack:
        client = stack.enter_context(Client(target.url))
        client.create_queue(mine, 1)
        client.create_queue(theirs, 1)
        access = client.log_access(mine, "read").access
        assert access is not None
        reader, owner = (
            stack.enter_context(closing(psycopg.connect(one, autocommit=True)))
            for one in (access.url, url.get_secret_value())
        )
        [channel] = owner.execute("SELECT channel FROM counterpoise.service").fetchone() or ()
        owner.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        # What older releases used, and all that a client knows of this one.
        for known in ("counterpoise", "counterpoise_"):
            reader.execute(sql.SQL("LISTEN {}").format(sql.Identifier(known)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("SELECT channel FROM counterpoise.service")
        client.change_queue(theirs, rebalance_delay=1)
        [heard] = owner.notifies(stop_after=1)
        assert client.queue(theirs).raw["id"] in heard.payload
        assert channel not in str(reader.execute("SELECT query FROM pg_stat_activity").fetchall())
        assert not list(reader.notifies(timeout=0))


def _is_told(connection: psycopg.Connection, payload: str) -> bool:
    try:
        connection.execute("SELECT pg_notify('flood', %s)", [payload])
    except psycopg.errors.ProgramLimitExceeded:
        return False
    return True
