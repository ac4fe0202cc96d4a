"""How long a partition pauses in a graceful handoff, and what the other partitions notice of it.

    python -m benchmarks.handoffs [--rounds 9]

Two consumers share a queue with a backlog. A third one joins, without a holddown, and leaves again.

* *One handoff*: 3 partitions, so one moves. The target is a pause of 20 (Y1 + Y2).
* *20 handoffs at once*: 60 partitions, 1,200 messages a second. The throughput of the other 40 is
  that from the join to a moment after the last handoff, next to the time before the join. The
  target is 98 %. The pauses are longer here, because the releases of an owner and the commits of a
  queue come one after the other, and because the new consumer starts beside them.

Each message takes 50 ms, and each partition has a worker. So no partition waits for a worker, and
all are as fast as each other, whoever owns them. The pause is the time between two messages of a
partition that changed its owner. A message that lies only partly in a time counts by that part:
with whole messages, the throughput of half a second would vary by some percent by chance.

Consumers are processes of their own, as in operation. In one process, as this was measured before,
they share one interpreter, so 180 workers wait for each other, and for those of the other
consumers. `benchmarks.release` measures the release by a Spark query.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.figures import Figure, spread
from benchmarks.service import Served, running
from benchmarks.yardsticks import CALL, Yardsticks, yardsticks
from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.consumer.message import Message
from counterpoise.publisher import Publisher

ONE, MANY = 3, 60
MESSAGE_SECONDS = 0.05
BEFORE_SECONDS = 2.5
AFTER_SECONDS = 0.3
WAIT_SECONDS = 120.0
YARDSTICKS_EACH = 20
# The backlog is for rounds of this length; on a busy machine they are so long.
ROUND_SECONDS = 20.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    for figure in measure(parser.parse_args().rounds):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Pauses of plain consumers, and the throughput of the partitions that stay."""
    return measure(1 if quick else 9)


def measure(rounds: int) -> list[Figure]:
    """Joins of a third consumer, on a service of their own."""
    with (
        tempfile.TemporaryDirectory() as name,
        running(Path(name)) as service,
        asyncio.Runner() as runner,
    ):
        stack = AsyncExitStack()
        yard = runner.run(stack.enter_async_context(yardsticks(service.database_url)))
        try:
            one = Joins(service, runner, yard, "one", ONE, 2 * rounds, AFTER_SECONDS)
            many = Joins(service, runner, yard, "many", MANY, rounds, BEFORE_SECONDS)
        finally:
            runner.run(stack.aclose())
    handoffs = MANY // 3
    return [
        one.figure("pause of a partition, one handoff", 20),
        many.figure(f"pause of a partition, {handoffs} handoffs at once"),
        Figure(
            f"throughput of the others during {handoffs} handoffs",
            statistics.median(many.kept),
            "%",
            target=98,
            at_least=True,
            spread=spread(many.kept),
            rounds=rounds,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Work:
    """The handling of a message."""

    owner: str
    began: float
    ended: float


class Joins:
    """Rounds in which a third consumer joins two, and leaves.

    `pauses` in seconds, one for each handoff; `kept`: the throughput of the others in per cent of
    that in `before_seconds` before the join.
    """

    def __init__(
        self,
        service: Served,
        runner: asyncio.Runner,
        yard: Yardsticks,
        queue: str,
        partitions: int,
        rounds: int,
        before_seconds: float,
    ) -> None:
        self._service, self._queue, self._partitions = service, queue, partitions
        self._before_seconds = before_seconds
        self.pauses: list[float] = []
        self.kept: list[float] = []
        joins: list[float] = []
        works: list[tuple[int, Work]] = []
        with Client(service.url) as client:
            client.create_queue(queue, partitions, rebalance_delay=0, max_handoff_time=30)
            each_second = int(partitions / MESSAGE_SECONDS)
            publish(service.url, queue, int(each_second * ROUND_SECONDS * (rounds + 1)))
            first_sample = len(yard.y1_samples)
            with self._consuming("first", works) as first, self._consuming("second", works) as more:
                first.send("run")
                more.send("run")
                for number in range(rounds):
                    with self._consuming(f"third-{number}", works) as third:
                        self._until_shared(client, 2)
                        runner.run(sample(yard, before_seconds))
                        joins.append(time.perf_counter())
                        third.send("run")
                        self._until_shared(client, 3)
                        time.sleep(2 * AFTER_SECONDS)
        self._call_seconds = statistics.median(
            y1 + y2
            for y1, y2 in zip(
                yard.y1_samples[first_sample:], yard.y2_samples[first_sample:], strict=True
            )
        )
        by_partition: dict[int, list[Work]] = defaultdict(list)
        for partition, work in sorted(works, key=lambda one: one[1].began):
            by_partition[partition].append(work)
        for number, joined_at in enumerate(joins):
            self._evaluate(by_partition, f"third-{number}", joined_at)

    def figure(self, name: str, target: float | None = None) -> Figure:
        """Of the pauses."""
        median = statistics.median(self.pauses)
        return Figure(
            name,
            median * 1e3,
            "ms",
            median / self._call_seconds,
            CALL,
            target,
            spread=spread([one * 1e3 for one in self.pauses]),
            rounds=len(self.pauses),
        )

    def _until_shared(self, client: Client, consumers: int) -> None:
        def shared() -> bool:
            counts = sorted(flow.partitions for flow in client.flows(self._queue))
            ready = client.rebalance_status(self._queue).status == "Ready"
            all_of_it = len(counts) == consumers and sum(counts) == self._partitions
            return ready and all_of_it and counts[-1] - counts[0] <= 1

        what = f"{consumers} consumers share {self._queue}"
        until(shared, what, pause_seconds=0.1)

    @contextmanager
    def _consuming(self, name: str, works: list[tuple[int, Work]]) -> Iterator[Connection]:
        """A consumer that begins when it is sent something, and leaves in order at the end."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (self._service.url, self._queue, self._partitions, theirs)
        process = context.Process(target=consume, args=arguments, name=name, daemon=True)
        process.start()
        ours.recv()
        try:
            yield ours
            ours.send("stop")
            works += [(partition, Work(name, *times)) for partition, *times in ours.recv()]
            process.join()
        finally:
            process.kill()

    def _evaluate(self, by_partition: dict[int, list[Work]], third: str, joined_at: float) -> None:
        mine = {
            partition
            for partition, works in by_partition.items()
            if any(work.owner == third for work in works)
        }
        assert len(mine) == self._partitions // 3, "not all partitions were handed over"
        last = joined_at
        for partition in mine:
            for before, after in itertools.pairwise(by_partition[partition]):
                if before.owner != third and after.owner == third:
                    self.pauses.append(after.began - before.ended)
                    last = max(last, after.began)
        others = [works for partition, works in by_partition.items() if partition not in mine]
        during = rate(others, joined_at, last + AFTER_SECONDS)
        self.kept.append(100 * during / rate(others, joined_at - self._before_seconds, joined_at))


async def sample(yard: Yardsticks, seconds: float) -> None:
    """Samples over this time, each alone like the calls of a handoff, beside consumers that work.

    One after another they take a third of the time.
    """
    for _ in range(YARDSTICKS_EACH):
        await asyncio.sleep(seconds / YARDSTICKS_EACH)
        await yard.sample()


def rate(partitions: Sequence[Sequence[Work]], since: float, until: float) -> float:
    """Messages a second in this time."""
    count = 0.0
    for works in partitions:
        for before, work in itertools.pairwise(works):
            inside = min(work.ended, until) - max(before.ended, since)
            if inside > 0:
                count += inside / (work.ended - before.ended)
    return count / (until - since)


def until(
    condition: Callable[[], bool],
    what: str,
    seconds: float = WAIT_SECONDS,
    pause_seconds: float = 0.002,
) -> None:
    """Wait for it. Raises RuntimeError."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited in vain: {what}")
        time.sleep(pause_seconds)


def publish(url: str, queue: str, messages: int) -> None:
    """Fill the queue, evenly."""
    with Publisher(queue, url=url, batch_messages=1000) as publisher:
        for _ in range(messages):
            publisher.publish(b"x" * 100)


def consume(url: str, queue: str, workers: int, pipe: Connection) -> None:
    """A process of its own: a consumer. Sends (partition, began, ended) of each message at its
    end, by the clock of all processes.
    """
    works: list[tuple[int, float, float]] = []

    def handle(message: Message) -> None:
        began = time.perf_counter()
        time.sleep(MESSAGE_SECONDS)
        works.append((message.partition, began, time.perf_counter()))

    consumer = Consumer(queue, each=handle, url=url, concurrency=workers, max_messages=100)
    thread = threading.Thread(target=consumer.run)
    pipe.send("ready")
    pipe.recv()
    thread.start()
    pipe.recv()
    consumer.stop()
    thread.join()
    pipe.send(works)


if __name__ == "__main__":
    main()
