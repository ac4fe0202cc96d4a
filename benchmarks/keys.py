"""How fast one partition is processed when different keys are handled at once (`order="key"`).

    python -m benchmarks.keys [--messages 10000] [--rounds 3]

The table of Confluent's Parallel Consumer: messages of one partition, and a handler that waits 0 to
5 ms, as for a remote answer; one after the other, then with 20 and with 100 keys and 64 at once.
Then a handler of 10 ms, one and 64 at once, with a key for each message. Measured is the time from
the first handled message to the last commit, with a service and a log of its own (embedded
Postgres). `handlers` is the time that the handlers of the busiest key, or of all over 64, take
alone: no order by key can be faster. CPU is that of the consumer's process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.service import served_here
from counterpoise.client import Client
from counterpoise.consumer import AsyncConsumer, Consumer, Message
from counterpoise.publisher import Publisher

AT_ONCE = 64


def up_to_5_ms(number: int) -> float:
    """Seconds for a message: 0 to 5 ms, evenly."""
    return number * 7919 % 51 / 10_000


def ten_ms(number: int) -> float:
    return 0.01


class Way(NamedTuple):
    """One row. `keys`: how many there are; `at_once` 1: in the order of the partition."""

    name: str
    messages: int
    keys: int
    at_once: int
    seconds_of: Callable[[int], float]
    is_async: bool = False

    def floor_seconds(self) -> float:
        """What the handlers take at least."""
        of_key: dict[int, float] = defaultdict(float)
        for number in range(self.messages):
            of_key[number % self.keys] += self.seconds_of(number)
        return max(max(of_key.values()), sum(of_key.values()) / self.at_once)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with served_here() as url:
        measure(url, arguments.messages, arguments.rounds)


def measure(url: str, messages: int, rounds: int) -> None:
    """Consume in each way and round; print the medians."""
    few = max(1, messages // 20)
    ways = [
        Way("0 to 5 ms, one after the other", messages, 100, 1, up_to_5_ms),
        Way("0 to 5 ms, 20 keys", messages, 20, AT_ONCE, up_to_5_ms),
        Way("0 to 5 ms, 100 keys", messages, 100, AT_ONCE, up_to_5_ms),
        Way("0 to 5 ms, 20 keys, async", messages, 20, AT_ONCE, up_to_5_ms, is_async=True),
        Way("0 to 5 ms, 100 keys, async", messages, 100, AT_ONCE, up_to_5_ms, is_async=True),
        Way("10 ms, one at a time", few, few, 1, ten_ms),
        Way("10 ms, 64 at once", messages, messages, AT_ONCE, ten_ms),
        Way("10 ms, 64 at once, async", messages, messages, AT_ONCE, ten_ms, is_async=True),
    ]
    print(f"one partition, {rounds} rounds; seconds")
    print(f"{'':<32}{'messages':>9}{'took':>8}{'handlers':>10}{'CPU':>7}{'messages/s':>12}")
    for way in ways:
        taken = [handled(url, way) for _ in range(rounds)]
        took, cpu = (statistics.median(one[place] for one in taken) for place in (0, 1))
        print(
            f"{way.name:<32}{way.messages:>9,}{took:>8.2f}{way.floor_seconds():>10.2f}{cpu:>7.2f}"
            f"{way.messages / took:>12,.0f}",
            flush=True,
        )


def handled(url: str, way: Way) -> tuple[float, float]:
    """Seconds from the first message to the last commit, and of CPU."""
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    with Client(url) as client:
        client.create_queue(queue, 1, rebalance_delay=0)
    with Publisher(queue, url=url) as publisher:
        for number in range(way.messages):
            publisher.publish(str(number).encode(), key=f"key-{number % way.keys}")
    begun: list[tuple[float, float]] = []

    def seconds(message: Message) -> float:
        if not begun:
            begun.append((time.perf_counter(), time.process_time()))
        return way.seconds_of(int(message.value))

    async def wait(message: Message) -> None:
        await asyncio.sleep(seconds(message))

    if way.is_async:
        consumer = AsyncConsumer(
            queue, each=wait, url=url, order="key", concurrency=way.at_once, limit=way.messages
        )
        asyncio.run(consumer.run())
    else:
        Consumer(
            queue,
            each=lambda message: time.sleep(seconds(message)),
            url=url,
            order="key" if way.at_once > 1 else "partition",
            concurrency=way.at_once,
            limit=way.messages,
        ).run()
    since, cpu = begun[0]
    return time.perf_counter() - since, time.process_time() - cpu


if __name__ == "__main__":
    main()
