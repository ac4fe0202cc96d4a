"""How long a partition pauses in a graceful handoff, and what the other partitions notice of it.

    python -m benchmarks.handoffs [--rounds 5]

Two consumers share 60 partitions with a backlog. Each message takes 50 ms, and each partition has a
worker, so all partitions are as fast as each other, whoever owns them. A third consumer joins,
without a holddown: 20 handoffs. The pause is the time between two messages of a partition that
changed its owner. The throughput of the other 40 is that from the join to a moment after the last
handoff, next to the same time before the join. Targets: a pause of 20 (Y1 + Y2), 98 % of the
throughput. `benchmarks.release` measures the release by a Spark query.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, spread
from benchmarks.service import Served, running
from benchmarks.yardsticks import CALL, yardsticks
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.consumer.message import Message
from counterpoise.publisher import Publisher

PARTITIONS = 60
HANDOFFS = 20
MESSAGE_SECONDS = 0.05
AFTER_SECONDS = 0.3
WAIT_SECONDS = 120.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    for figure in measure(parser.parse_args().rounds):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Pauses of plain consumers, and the throughput of the partitions that stay."""
    return measure(1 if quick else 7)


def measure(rounds: int) -> list[Figure]:
    """Joins of a third consumer, on a service of their own."""
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as service:
        return plain(service, rounds)


@dataclass(frozen=True)
class Work:
    """The handling of a message."""

    owner: str
    began: float
    ended: float


class Journal:
    """What was done of each partition, in the order in which it ended."""

    def __init__(self, partitions: int) -> None:
        self.work: list[list[Work]] = [[] for _ in range(partitions)]

    def done(self, partition: int, since: float, until: float) -> int:
        """How many works ended in this time."""
        return sum(since < one.ended <= until for one in list(self.work[partition]))


def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait for it. Raises RuntimeError."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited in vain: {what}")
        time.sleep(0.002)


def publish(url: str, queue: str, messages: int) -> None:
    """Fill the queue, evenly."""
    with Publisher(queue, url=url, batch_messages=1000) as publisher:
        for _ in range(messages):
            publisher.publish(b"x" * 100)


@contextmanager
def consuming(url: str, queue: str, name: str, journal: Journal) -> Iterator[Consumer]:
    """A consumer in threads of its own, which leaves in order at the end."""

    def handle(message: Message) -> None:
        began = time.perf_counter()
        time.sleep(MESSAGE_SECONDS)
        journal.work[message.partition].append(Work(name, began, time.perf_counter()))

    consumer = Consumer(
        queue, each=handle, url=url, workers=PARTITIONS, client_name=name, max_messages=100
    )
    thread = threading.Thread(target=consumer.run, name=name)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join()


def plain(service: Served, rounds: int) -> list[Figure]:
    """Joins of a third consumer."""
    with Client(service.url) as client:
        client.create_queue("plain", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
    each_second = int(PARTITIONS / MESSAGE_SECONDS)
    publish(service.url, "plain", each_second * (6 * rounds + 12))
    pauses: list[float] = []
    kept: list[float] = []
    calls = asyncio.run(_call_seconds(service))
    journal = Journal(PARTITIONS)
    with (
        consuming(service.url, "plain", "first", journal) as first,
        consuming(service.url, "plain", "second", journal) as second,
    ):
        half = PARTITIONS // 2

        def shared() -> bool:
            owners = (first, second)
            return all(
                len(one.flow.partitions) == half
                and all(held.state == "owned" for held in one.flow.partitions.values())
                for one in owners
            )

        until(lambda: all(journal.work), "all partitions are worked on")
        for _ in range(rounds):
            until(shared, "two consumers share the queue")
            time.sleep(2.0)  # for a time to compare with
            joined_at = time.perf_counter()
            seen = [len(works) for works in journal.work]
            with consuming(service.url, "plain", "third", journal) as third:
                until(lambda: len(third.flow.partitions) == HANDOFFS, "the third has its share")
                mine = set(third.flow.partitions)

                def working(mine: set[int] = mine) -> bool:
                    return all(journal.work[n][-1].owner == "third" for n in mine)

                until(working, "the third works on all its partitions")
                time.sleep(AFTER_SECONDS)
                ended_at = time.perf_counter()
            took = ended_at - joined_at
            others = set(range(PARTITIONS)) - mine
            now = sum(journal.done(n, joined_at, ended_at) for n in others)
            then = sum(journal.done(n, joined_at - took, joined_at) for n in others)
            kept.append(100 * now / then)
            for number in mine:
                works = sorted(journal.work[number][seen[number] - 1 :], key=lambda o: o.began)
                pauses += [
                    max(0.0, b.began - a.ended)
                    for a, b in itertools.pairwise(works)
                    if a.owner != "third" and b.owner == "third"
                ]
    calls += asyncio.run(_call_seconds(service))
    call = statistics.median(calls)
    return [
        Figure(
            "pause of a partition, plain consumers",
            statistics.median(pauses) * 1e3,
            "ms",
            statistics.median(pauses) / call,
            CALL,
            20,
            spread=spread([one * 1e3 for one in pauses]),
            rounds=len(pauses),
        ),
        Figure(
            f"throughput of the others during {HANDOFFS} handoffs",
            statistics.median(kept),
            "%",
            target=98,
            at_least=True,
            spread=spread(kept),
            rounds=rounds,
        ),
    ]


async def _call_seconds(service: Served) -> list[float]:
    """Samples of Y1 + Y2."""
    async with yardsticks(service.database_url) as yard:
        await yard.sample(50)
        return [a + b for a, b in zip(yard.y1_samples, yard.y2_samples, strict=True)]


if __name__ == "__main__":
    main()
