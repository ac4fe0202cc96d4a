"""How fast the built-in log appends and reads messages of 1 KB; medians over some rounds.

    python -m benchmarks.log [--url postgresql://...] [--messages 50000] [--batch 1000] [--rounds 5]

Without a URL it starts an embedded Postgres in a temporary directory, as the service would
(durable: fsync is on).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.figures import Figure, rate, spread, timed
from benchmarks.rows import Y3, Y5, ArrowReader, Copier
from broker.logs.builtin import BuiltinLogs
from broker.logs.database import log_engine
from broker.logs.ports import Holder, Purpose
from broker.postgres import migrations
from broker.postgres.embedded import EmbeddedPostgres
from counterpoise.client import Client
from counterpoise.keys import partition_of
from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.publisher import Publisher
from counterpoise.wire import LogAccess, LogView

PARTITIONS = 16
MESSAGE_BYTES = 1024
ROUNDS = 5
BATCH = 1000


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=50_000, help="in each round")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = arguments.url or stack.enter_context(_postgres())
        for figure in measure(url, arguments.messages, arguments.batch, arguments.rounds):
            print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Append, publish and read messages of 1 KB."""
    with _postgres() as url:
        return measure(url, 20_000 if quick else 50_000, BATCH, 5 if quick else 11)


@contextmanager
def _postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(Path(directory)) as url:
        yield url


def measure(url: str, messages: int, batch: int, rounds: int) -> list[Figure]:
    """Append and read `messages` in each round."""
    given = asyncio.run(_prepare(url))
    sides = {"a client": (given["publish"], given["read"]), "the owner": (url, url)}
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    copier = Copier(url)
    # In turns: what slows the machine down slows all.
    for number in range(rounds):
        yard = copier.per_second(os.urandom(MESSAGE_BYTES), messages, batch, PARTITIONS)
        for side, (publish_url, read_url) in sides.items():
            one = _measure(side, publish_url, read_url, messages, batch, number)
            for what, figure in {**one, "copied": yard}.items():
                found[side].setdefault(what, []).append(figure)
    copier.close()
    result = []
    for side, of in found.items():
        # The other side is the owner of the tables.
        who = "" if side == "a client" else ", no row policy"
        result += [
            rate(f"append, batches of {batch}{who}", of["append"], Y5, of["copied"]),
            rate(f"publish, through Publisher{who}", of["publish"], Y5, of["copied"]),
            rate(f"publish, over one connection{who}", of["publish alone"], Y5, of["copied"]),
            rate(f"read, one connection{who}", of["read"], Y3, of["adbc"], None if who else 0.9),
        ]
        if not who:
            result += [
                Figure(
                    name, statistics.median(of[what]), "µs", spread=spread(of[what]), rounds=rounds
                )
                for name, what in (
                    ("CPU of the publisher, a message", "append CPU"),
                    ("CPU of the reader, a message", "read CPU"),
                    ("CPU of a reader through ADBC, a message", "adbc CPU"),
                )
            ]
            result += [
                timed(f"bounds of {PARTITIONS} partitions", of["bounds"]),
                rate("Y3: ADBC reads the same rows into Arrow", of["adbc"]),
                rate("Y5: COPY of the same rows into a table", of["copied"]),
            ]
    return result


def _measure(
    side: str, publish_url: str, read_url: str, messages: int, batch: int, round_number: int
) -> dict[str, float]:
    """One round, by what was measured."""
    name = f"bench-{side.split()[-1]}"
    found = {}
    log = PostgresLog(name, publish_url, timeout_seconds=60)
    cpu, began = time.process_time(), time.perf_counter()
    _append(log, messages, batch, first=round_number * messages)
    found["append"] = messages / (time.perf_counter() - began)
    found["append CPU"] = (time.process_time() - cpu) / messages * 1e6
    log.close()
    found["publish"] = _publish(name, publish_url, messages, batch)
    found["publish alone"] = _publish(name, publish_url, messages, batch, connections=1)
    log = PostgresLog(name, read_url, timeout_seconds=60)
    arrow = ArrowReader(read_url, name, PARTITIONS)
    # Both have read the rows before, so none finds them in colder memory.
    _read(log)
    arrow.per_second()
    cpu, began = time.process_time(), time.perf_counter()
    rows = _read(log)
    found["read"] = rows / (time.perf_counter() - began)
    found["read CPU"] = (time.process_time() - cpu) / rows * 1e6
    cpu = time.process_time()
    found["adbc"] = arrow.per_second()
    found["adbc CPU"] = (time.process_time() - cpu) / rows * 1e6
    arrow.close()
    bounds = []
    for _ in range(200):
        began = time.perf_counter()
        log.bounds(range(PARTITIONS))
        bounds.append(time.perf_counter() - began)
    found["bounds"] = statistics.median(bounds)
    log.close()
    return found


def _read(log: PostgresLog) -> int:
    """All messages from the begin; returns how many."""
    return sum(
        part.num_rows
        for partition in range(PARTITIONS)
        for part in log.read(partition, "0", None, max_messages=sys.maxsize)
    )


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
        self._view = LogView(f"builtin:{name}", PARTITIONS, LogAccess(url), name)

    def log_access(self, *_: object, **__: object) -> LogView:
        return self._view


def _publish(
    name: str, url: str, messages: int, batch: int, connections: int | None = None
) -> float:
    value = os.urandom(MESSAGE_BYTES)
    before = time.perf_counter()
    with _Service(name, url) as service:
        with Publisher(
            name, client=service, batch_messages=batch, connections=connections
        ) as publisher:
            for number in range(messages):
                publisher.publish(value, f"key-{number}")
    return messages / (time.perf_counter() - before)


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
