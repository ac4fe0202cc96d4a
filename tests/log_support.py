"""Helpers for tests of the built-in log: create it, act as the service, append and read texts.

Fixtures (import them where needed): `log_url`, a database with the log's schema, and not that of
the `service`; `log`, the log `flights` with four partitions in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
import pytest
from alembic import command
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs.builtin import BuiltinLogs
from counterpoise.logs import AppendBatch, AppendResult, Log, Message
from counterpoise.logs.builtin.log import PostgresLog
from tests.databases import Databases, alembic_tree
from tests.service import eventually

T = TypeVar("T")

until = eventually


def migrate_log(url: str) -> None:
    with alembic_tree("log", url) as config:
        command.upgrade(config, "head")


def with_logs(url: str, act: Callable[[BuiltinLogs], Awaitable[T]]) -> T:
    """Run something as the service would, with an engine of its own. Waits longer than a call."""

    async def run() -> T:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        try:
            return await act(BuiltinLogs(engine, url))
        finally:
            await engine.dispose()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.logs.database.CALL_SECONDS", 60.0)
        return asyncio.run(run())


def write_past(url: str, log: str, rows: Sequence[tuple[Any, Any, Any, Any]]) -> None:
    """Appends rows to partition 0 that the log itself refuses.

    Each is (value, key, headers in JSON, time as Postgres reads it).
    """
    with psycopg.connect(url) as connection:
        constraints = connection.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c'"
            " AND conrelid = 'counterpoise_log.messages'::regclass"
        ).fetchall()
        for name, _ in constraints:
            connection.execute(f"ALTER TABLE counterpoise_log.messages DROP CONSTRAINT {name}")
        for value, key, headers, time_text in rows:
            connection.execute(
                "WITH moved AS (UPDATE counterpoise_log.ends AS p"
                "   SET next_position = next_position + 1"
                "   FROM counterpoise_log.logs AS l WHERE l.log_id = p.log_id AND l.name = %s"
                "   AND p.partition = 0 RETURNING p.log_id, p.next_position - 1 AS position)"
                " INSERT INTO counterpoise_log.messages"
                " (log_id, partition, position, published_at, key, value, headers)"
                " SELECT log_id, 0, position, %s::timestamptz, %s, %s, %s::jsonb FROM moved",
                [log, time_text, key, value, headers],
            )
        for name, definition in constraints:
            connection.execute(
                f"ALTER TABLE counterpoise_log.messages ADD CONSTRAINT {name}"
                f" {definition} NOT VALID"
            )


def asked_of(log: PostgresLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of the log from now on."""
    asked: list[str] = []
    query = log._connection.query

    def watched(statement: str, *parameters: Any, **more: Any) -> Any:
        asked.append(statement)
        return query(statement, *parameters, **more)

    monkeypatch.setattr(log._connection, "query", watched)
    return asked


def texts(log: Log, partition: int, start: str = "0", end: str | None = None) -> list[str]:
    """The values of a range, as text."""
    batches = log.read(partition, start, end, max_messages=1_000_000)
    return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


def waiters(url: str) -> int:
    """How many sessions of this database are waiting for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    return row[0] if row else 0


def append(
    log: Log,
    *values: str,
    partition: int = 0,
    first: int = 0,
    publisher: str = "p",
    partition_count: int = 4,
) -> AppendResult:
    """Append values to one partition."""
    messages = [Message(value.encode()) for value in values]
    return log.append(
        AppendBatch(publisher, first, partition_count, [partition] * len(values), messages)
    )


@pytest.fixture
def log_url(databases: Databases) -> Iterator[str]:
    with databases.lend() as url:
        yield url


@pytest.fixture
def log(log_url: str) -> Iterator[PostgresLog]:
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 4))
    log = PostgresLog("flights", log_url, timeout_seconds=10)
    yield log
    log.close()
