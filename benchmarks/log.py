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

from broker.logs.builtin import BuiltinLogs
from broker.logs.engine import log_engine
from broker.logs.ports import Holder, Purpose
from broker.postgres import migrations
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
    print(
        f"{MESSAGE_BYTES} B messages, batches of {batch}, {PARTITIONS} partitions, {ROUNDS} rounds"
    )
    given = asyncio.run(_prepare(url))
    sides = {"the owner": (url, url), "a client": (given["publish"], given["read"])}
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    # In turns: what slows the machine down slows both.
    for round_number in range(ROUNDS):
        for side, (publish_url, read_url) in sides.items():
            figures = _measure(side, publish_url, read_url, messages, batch, round_number)
            for what, figure in figures.items():
                found[side].setdefault(what, []).append(figure)
    for what in found["a client"]:
        owner, client = (statistics.median(found[side][what]) for side in sides)
        print(f"{what:44} {client:>12,.2f}   (the owner, whom no policy binds: {owner:,.2f})")


def _measure(
    side: str, publish_url: str, read_url: str, messages: int, batch: int, round_number: int
) -> dict[str, float]:
    """One round, by what was measured."""
    name = f"bench-{side.split()[-1]}"
    found = {}
    log = PostgresLog(name, publish_url, timeout_seconds=60)
    before_cpu, before = _cpu_seconds(), time.perf_counter()
    _append(log, messages, batch, first=round_number * messages)
    found["append, messages/s"] = messages / (time.perf_counter() - before)
    found["append, µs CPU of the publisher per message"] = (
        (_cpu_seconds() - before_cpu) / messages * 1e6
    )
    log.close()
    found["publish, messages/s (through Publisher)"] = _publish(name, publish_url, messages, batch)
    log = PostgresLog(name, read_url, timeout_seconds=60)
    before = time.perf_counter()
    rows = sum(
        part.num_rows
        for partition in range(PARTITIONS)
        for part in log.read(partition, "0", None, max_messages=messages)
    )
    found["read, messages/s"] = rows / (time.perf_counter() - before)
    bounds = []
    for _ in range(200):
        before = time.perf_counter()
        log.bounds(range(PARTITIONS))
        bounds.append(time.perf_counter() - before)
    found[f"bounds of {PARTITIONS} partitions, ms"] = statistics.median(bounds) * 1e3
    log.close()
    return found


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

    def __init__(self, name: str, url: str) -> None:
        super().__init__()
        self._view = LogView(f"builtin:{name}", PARTITIONS, "earliest", LogAccess(url))

    def log_access(self, *_: object, **__: object) -> LogView:
        return self._view


def _publish(name: str, url: str, messages: int, batch: int) -> float:
    value = os.urandom(MESSAGE_BYTES)
    before = time.perf_counter()
    with _Service(name, url) as service:
        with Publisher(name, client=service, batch_messages=batch) as publisher:
            for number in range(messages):
                publisher.publish(value, f"key-{number}")
    return messages / (time.perf_counter() - before)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _prepare(url: str) -> dict[Purpose, str]:
    """Empty logs for both sides, and a client's access to its log for each purpose."""
    await asyncio.to_thread(migrations.upgrade, url)
    engine = log_engine(url)
    logs = BuiltinLogs(engine, url)
    for name in ("bench-owner", "bench-client"):
        await logs.drop(f"builtin:{name}")
        await logs.ensure(f"builtin:{name}", PARTITIONS)
    holder = Holder.caller("bench", None, None)
    purposes: tuple[Purpose, ...] = ("publish", "read")
    given: dict[Purpose, str] = {}
    for purpose in purposes:
        access = await logs.access("builtin:bench-client", purpose, holder)
        if access is None:
            raise SystemExit("this user may not create roles (CREATEROLE)")
        given[purpose] = access.url
    await engine.dispose()
    return given


if __name__ == "__main__":
    main()
