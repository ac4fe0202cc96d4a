"""How fast a plain consumer processes a queue, by the number of workers and their work.

    python -m benchmarks.consumer [--messages 20000] [--rounds 3]

Messages of 1 KB in 16 partitions, with a service and a log of its own (embedded Postgres). Measured
is the time from the first handled message to the last commit. `nothing` is a handler that does
nothing; `1 ms` is one that waits so long, as for a remote answer (with a tenth of the messages).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from collections.abc import Callable

from benchmarks.service import served_here
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher

PARTITIONS = 16
MESSAGE_BYTES = 1024


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with served_here() as url:
        measure(url, arguments.messages, arguments.rounds)


def measure(url: str, messages: int, rounds: int) -> None:
    """Consume `messages` in each round and each way; print the medians."""
    few = max(PARTITIONS, messages // 10)
    ways: list[tuple[str, int, Callable[[str, int], float]]] = [
        ("batches, nothing, 1 worker", messages, lambda q, n: _handled(url, q, n, batches=True)),
        ("loop, nothing", messages, lambda q, n: _iterated(url, q, n)),
        ("each, nothing, 1 worker", messages, lambda q, n: _handled(url, q, n)),
        ("each, nothing, 4 workers", messages, lambda q, n: _handled(url, q, n, workers=4)),
        ("each, 1 ms, 1 worker", few, lambda q, n: _handled(url, q, n, seconds=0.001)),
        ("each, 1 ms, 4 workers", few, lambda q, n: _handled(url, q, n, workers=4, seconds=0.001)),
        (
            "each, 1 ms, 16 workers",
            few,
            lambda q, n: _handled(url, q, n, workers=16, seconds=0.001),
        ),
    ]
    print(f"{MESSAGE_BYTES} B messages, {PARTITIONS} partitions, {rounds} rounds")
    for name, count, way in ways:
        rates = []
        for _ in range(rounds):
            queue = published(url, count)
            rates.append(count / way(queue, count))
        print(f"{name:<28}{statistics.median(rates):>10,.0f} messages/s", flush=True)


def published(url: str, count: int) -> str:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    value = os.urandom(MESSAGE_BYTES)
    with Client(url) as client:
        client.create_queue(queue, PARTITIONS, rebalance_delay=0)
    with Publisher(queue, url=url) as publisher:
        for number in range(count):
            publisher.publish(value, key=f"key-{number}")
    return queue


def _handled(
    url: str,
    queue: str,
    count: int,
    *,
    workers: int = 1,
    seconds: float = 0.0,
    batches: bool = False,
) -> float:
    """Seconds from the first message to the last commit."""
    begun: list[float] = []

    def note() -> None:
        if not begun:
            begun.append(time.perf_counter())
        if seconds:
            time.sleep(seconds)

    consumer = Consumer(
        queue,
        (lambda owned, batch: note()) if batches else None,
        each=None if batches else (lambda message: note()),
        url=url,
        workers=workers,
        limit=count,
    )
    consumer.run()
    assert consumer.handled == count
    return time.perf_counter() - begun[0]


def _iterated(url: str, queue: str, count: int) -> float:
    began = None
    for _message in Consumer(queue, url=url, limit=count):
        began = began or time.perf_counter()
    assert began is not None
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
