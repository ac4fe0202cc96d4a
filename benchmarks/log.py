"""How fast the built-in log appends and reads messages of 1 KB; medians over some rounds.

    python -m benchmarks.log [--url postgresql://...] [--messages 50000] [--batch 1000]

Without a URL it starts an embedded Postgres in a temporary directory, as the service would
(durable: fsync is on).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs.builtin import BuiltinLogs
from broker.postgres.embedded import EmbeddedPostgres
from counterpoise.client import Client
from counterpoise.keys import partition_of
from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.postgres import PostgresLog
from counterpoise.publisher import Publisher
from counterpoise.wire import LogAccess, LogView

PARTITIONS = 16
MESSAGE_BYTES = 1024
ROUNDS = 5


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=50_000, help="in each round")
    parser.add_argument("--batch", type=int, default=1000)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url
        if url is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(EmbeddedPostgres(Path(directory)))
        measure(url, arguments.messages, arguments.batch)


def measure(url: str, messages: int, batch: int) -> None:
    """Append and read `messages` in each round; print the medians."""
    asyncio.run(_prepare(url))
    log = PostgresLog("bench", url, timeout_seconds=60)
    appended = []
    spent = []
    for round_number in range(ROUNDS):
        before_cpu, before = _cpu_seconds(), time.perf_counter()
        _append(log, messages, batch, first=round_number * messages)
        appended.append(messages / (time.perf_counter() - before))
        spent.append((_cpu_seconds() - before_cpu) / messages * 1e6)
    published = [_publish(url, messages, batch) for _ in range(ROUNDS)]
    read = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        rows = sum(
            part.num_rows
            for partition in range(PARTITIONS)
            for part in log.read(partition, "0", None, max_messages=messages)
        )
        read.append(rows / (time.perf_counter() - before))
    bounds = []
    for _ in range(200):
        before = time.perf_counter()
        log.bounds(range(PARTITIONS))
        bounds.append(time.perf_counter() - before)
    log.close()
    print(
        f"{MESSAGE_BYTES} B messages, batches of {batch}, {PARTITIONS} partitions, {ROUNDS} rounds"
    )
    print(f"append   {statistics.median(appended):>10,.0f} messages/s", end="")
    print(f"   ({statistics.median(spent):.1f} µs CPU of the publisher per message)")
    print(f"publish  {statistics.median(published):>10,.0f} messages/s   (through Publisher)")
    print(f"read     {statistics.median(read):>10,.0f} messages/s")
    print(f"bounds   {statistics.median(bounds) * 1e3:>10.2f} ms for {PARTITIONS} partitions")


def _append(log: PostgresLog, messages: int, batch: int, first: int) -> None:
    value = os.urandom(MESSAGE_BYTES)
    for start in range(first, first + messages, batch):
        keys = [f"key-{number}" for number in range(start, start + batch)]
        log.append(
            AppendBatch(
                "bench",
                start,
                PARTITIONS,
                [partition_of(key, PARTITIONS) for key in keys],
                [Message(value, key) for key in keys],
            )
        )


class _Service(Client):
    """Returns the log's address, so that the benchmark needs no service."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._view = LogView("builtin:bench", PARTITIONS, "earliest", LogAccess(url))

    def log_access(self, name: str, purpose: str) -> LogView:
        return self._view


def _publish(url: str, messages: int, batch: int) -> float:
    value = os.urandom(MESSAGE_BYTES)
    before = time.perf_counter()
    with _Service(url) as service:
        with Publisher("bench", client=service, batch_messages=batch) as publisher:
            for number in range(messages):
                publisher.publish(value, f"key-{number}")
    return messages / (time.perf_counter() - before)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _prepare(url: str) -> None:
    config = Config()
    config.set_main_option("script_location", "migrations:log")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    await asyncio.to_thread(command.upgrade, config, "head")
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    logs = BuiltinLogs(engine, url)
    await logs.drop("builtin:bench")
    await logs.ensure("builtin:bench", PARTITIONS)
    await engine.dispose()


if __name__ == "__main__":
    main()
