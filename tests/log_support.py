"""Helpers for tests of the built-in log: create it, act as the service, append and read texts.

Fixtures (import them where needed): `log_url`, a database with the log's schema, and not that of
the `service`; `log`, the log `flights` with four partitions in it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs.builtin import BuiltinLogs
from counterpoise.logs import AppendBatch, AppendResult, Log, Message
from counterpoise.logs.postgres import PostgresLog
from tests.databases import Databases

T = TypeVar("T")


def migrate_log(url: str) -> None:
    config = Config()
    config.set_main_option("script_location", "migrations:log")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, "head")


def with_logs(url: str, act: Callable[[BuiltinLogs], Awaitable[T]]) -> T:
    """Run something as the service would, with an engine of its own."""

    async def run() -> T:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        try:
            return await act(BuiltinLogs(engine, url))
        finally:
            await engine.dispose()

    return asyncio.run(run())


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


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition holds; fail when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


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
