"""A reader of the log that keeps a lock on its tables, while they are migrated.

docs/security-background.md, *Locks*: a transaction that has read a table locks it in ACCESS SHARE
mode until it ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import psycopg
import pytest

from broker.logs.credentials import scram_verifier
from broker.postgres import migrations

pytestmark = pytest.mark.long

NEXT = """
from alembic import op

revision = "log_next"
down_revision = {previous!r}
serves_from = {previous!r}


def upgrade():
    op.execute("ALTER TABLE counterpoise_log.partition_rows ADD COLUMN colour text")
"""
ROLE, READ = "counterpoise_log_client_locks", "SELECT partition FROM counterpoise_log.partitions"
APPEND = """
SELECT appended FROM counterpoise_log.append('orders', 1, 'publisher', %s, '{0}',
    ARRAY['x']::bytea[], NULL, NULL, NULL)
"""


@pytest.fixture
def next_release(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A database of this release, and a migration of the next one to be run; the reader's URL."""
    migrations.upgrade(database_url)
    directory, previous = tmp_path / "next", migrations.head(migrations.LOG)
    shutil.copytree(migrations.LOG.location, directory)
    (directory / "versions" / "next.py").write_text(NEXT.format(previous=previous))
    monkeypatch.setattr("migrations.environment.LOCK_SECONDS", 0.1)
    monkeypatch.setattr(migrations, "LOG", replace(migrations.LOG, location=directory))
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO counterpoise_log.logs (name, partition_count) VALUES ('orders', 1)"
        )
        owner.execute(
            "INSERT INTO counterpoise_log.partitions (log_id, partition)"
            " SELECT log_id, 0 FROM counterpoise_log.logs"
        )
        owner.execute(
            "SELECT counterpoise_log.make_clients(%s, %s, '{orders}', '{read}', '{anyone}',"
            " '{NULL}', 600, 8)",
            [[ROLE], [scram_verifier("locks")]],
        )
        parts = urlsplit(database_url)
        yield parts._replace(netloc=f"{ROLE}:locks@{parts.hostname}:{parts.port}").geturl()
        owner.execute("SELECT counterpoise_log.drop_clients(%s)", [[ROLE]])


def test_appends_go_on_while_a_reader_keeps_a_migration_waiting(
    next_release: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "IN_THE_WAY_SECONDS", 3600.0)
    with (
        closing(psycopg.connect(next_release)) as reader,
        closing(psycopg.connect(database_url, autocommit=True)) as publisher,
    ):
        reader.execute(READ)
        publisher.execute("SET lock_timeout = '60s'")
        appended: list[object] = []

        def pause(_seconds: float) -> None:
            """Between two attempts of the migration."""
            appended.append(publisher.execute(APPEND, [len(appended)]).fetchone())
            if len(appended) == 3:
                reader.rollback()

        monkeypatch.setattr(migrations, "time", SimpleNamespace(sleep=pause))
        steps = migrations.upgrade(database_url)
    assert [step.after for step in steps if step.tree == "log"] == ["log_next"]
    assert appended == [(1,)] * 3


def test_a_reader_that_keeps_its_lock_is_ended(
    next_release: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "IN_THE_WAY_SECONDS", 0.0)
    monkeypatch.setattr(migrations, "WATCH_SECONDS", 0.01)
    with (
        closing(psycopg.connect(next_release)) as reader,
        closing(psycopg.connect(next_release)) as other,
    ):
        reader.execute(READ)
        other.execute("SELECT 1")
        steps = migrations.upgrade(database_url)
        assert [step.after for step in steps if step.tree == "log"] == ["log_next"]
        with pytest.raises(psycopg.OperationalError):
            reader.execute("SELECT 1")
        # Its transaction is as old, but not in the way.
        other.execute("SELECT 1")
