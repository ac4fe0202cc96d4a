"""What ordered resizes cost a queue that is never resized: appends, reads and commits side by side.

    python -m benchmarks.ordered [--messages 20000] [--rounds 7]

Two queues in each round, one with ordered resizes and one without, in alternating order, with a
service and a log of their own (embedded Postgres). Publishing is one `Publisher`; consuming is one
plain consumer that commits after each 200 messages of a partition. Publisher, consumer and service
are one process, so its CPU time is what all three need, without Postgres.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable

from benchmarks.service import served_here
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher

PARTITIONS = 16
MESSAGE_BYTES = 1024
COMMIT_MESSAGES = 200


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="in each queue")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with served_here() as url:
        measure(url, arguments.messages, arguments.rounds)


def measure(url: str, messages: int, rounds: int) -> None:
    """Print the medians of both kinds of queues, and the median of the ratios of each round."""
    print(f"{MESSAGE_BYTES} B messages, {PARTITIONS} partitions, {rounds} rounds")
    found: dict[str, dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    _round(url, True, messages)  # warms everything up
    for number in range(rounds):
        for ordered in (True, False) if number % 2 else (False, True):
            for what, figure in _round(url, ordered, messages).items():
                found[what][ordered].append(figure)
    print(f"{'':24}{'ordered':>12}{'not':>12}{'ratio':>9}")
    for what, by in found.items():
        ratio = statistics.median(a / b for a, b in zip(by[True], by[False], strict=True))
        medians = [statistics.median(by[kind]) for kind in (True, False)]
        print(f"{what:<24}{medians[0]:>12,.1f}{medians[1]:>12,.1f}{ratio:>9.3f}")


def _round(url: str, ordered: bool, messages: int) -> dict[str, float]:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    value = os.urandom(MESSAGE_BYTES)
    with Client(url) as client:
        client.create_queue(queue, PARTITIONS, rebalance_delay=0, ordered_resize=ordered)

    def publish() -> None:
        with Publisher(queue, url=url) as publisher:
            for number in range(messages):
                publisher.publish(value, key=f"key-{number}")

    def consume() -> None:
        consumer = Consumer(
            queue,
            lambda owned, batch: None,
            url=url,
            limit=messages,
            max_messages=COMMIT_MESSAGES,
            commit_messages=COMMIT_MESSAGES,
        )
        consumer.run()

    found = {}
    for what, act in {"publish": publish, "consume": consume}.items():
        seconds, cpu_seconds = _timed(act)
        found[f"{what}, µs a message"] = seconds / messages * 1e6
        found[f"{what}, µs of CPU"] = cpu_seconds / messages * 1e6
    with Client(url) as client:
        client.delete_queue(queue, True)
    return found


def _timed(act: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and seconds of this process's CPU."""
    began, before = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - before


if __name__ == "__main__":
    main()
