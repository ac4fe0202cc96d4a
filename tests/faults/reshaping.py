"""A queue that changes its shape all the time, while consumers are killed.

First a fixed queue with ordered resizes is resized to random counts, then a dynamic one is split
and merged at random. Publishers write all the time; three consumers work, one of them a
PySpark application. Every few seconds a plain consumer is killed and started again, and once the
publishers are. The judge decides from log and sink: nothing is lost, and each key is handled in the
order in which it was published, over all partitions that it ever had.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from counterpoise.client import Client
from counterpoise.logs.ranges import HashRange, parse_range
from tests.faults.stage import QUEUE, START_SECONDS, Stage, Worker
from tests.judge.judge import Verdict
from tests.service import eventually

RESIZES, SPLITS = "ordered resizes", "splits and merges"
COUNTS = range(2, 13)
LEAST = 5
"""So many changes are made, however long it takes."""
FEWEST, MOST = 3, 8
"""So many ranges a dynamic queue has, about."""
PUBLISHERS = 2
# More than were waiting when the publishers were killed.
MANY = 1000
# A micro-batch of a loaded machine takes seconds; handoffs by force are not the matter here.
HANDOFF_SECONDS = 30.0


@dataclass
class Shaped:
    """What was done to one queue, and which promises held."""

    changes: str
    times: int = 0
    killed: int = 0
    publishers_killed: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    by_spark: int = 0
    """How many messages the PySpark application handled."""

    def table(self) -> str:
        return (
            f"{self.times} {self.changes}, {self.killed} times a consumer killed, "
            f"{self.publishers_killed} times the publishers; "
            f"{self.by_spark:,} messages handled by Spark:\n\n{self.verdict.table()}"
        )

    def complaints(self) -> list[str]:
        """The reasons why the run does not pass; none: it passes."""
        found = []
        if not self.verdict.kept:
            found.append(f"PROMISES BROKEN BY {self.changes.upper()}\n{self.verdict.examples()}")
        for what, times in {
            self.changes: self.times,
            "consumers killed": self.killed,
            "publishers killed": self.publishers_killed,
            "messages handled by Spark": self.by_spark,
            "keys in several partitions": self.verdict.counts["keys judged in several partitions"],
        }.items():
            if not times:
                found.append(f"{self.changes}: no {what}, so nobody knows")
        return found


class Reshaping:
    """One queue on a stage of its own."""

    def __init__(
        self, stage: Stage, changes: str, times: int, seconds: float, seed: int, rate: float
    ) -> None:
        """At most so many changes, in so many seconds; `rate`: messages a second of a publisher."""
        self._stage = stage
        self._times = times
        self._seconds = seconds
        self._rate = rate
        self._rng = random.Random(f"{changes} {seed}")
        self._count = 4
        """The partitions of the fixed queue; of the dynamic one, those it ever had."""
        self._most = max(COUNTS)
        self.result = Shaped(changes)

    def run(self, say: Callable[[str], None]) -> Shaped:
        stage, result = self._stage, self.result
        fixed = result.changes == RESIZES
        shape = {"ordered_resize": True} if fixed else {"partitioning": "dynamic"}
        stage.make_queues(self._count, max_handoff_time=HANDOFF_SECONDS, **shape)
        spark = stage.spark("s")
        plain = [stage.consumers("c", 1), stage.consumers("d", 1)]
        stage.until_each_has_owned(1 + len(plain))
        publishers = stage.publishers("p", PUBLISHERS, self._rate)
        eventually(lambda: stage.handled_by("s-0") > 0, START_SECONDS)
        say(f"{result.changes}: three consumers work")
        ends = time.monotonic() + self._seconds
        with self._killing(plain, publishers):
            while result.times < self._times and (time.monotonic() < ends or not self._enough()):
                say(f"  {self._resize() if fixed else self._split_or_merge()}")
                result.times += 1
                time.sleep(self._rng.uniform(0.2, 1.5))
        say("everything is to be handled")
        count = self._most if fixed else self._count
        result.verdict = stage.settle(publishers, [*plain, spark], count)
        result.by_spark = stage.handled_by("s-0")
        return result

    def _enough(self) -> bool:
        """Whether the run shows something, as it does in its time unless the machine is slow."""
        return self.result.times >= LEAST and self.result.publishers_killed > 0

    @contextlib.contextmanager
    def _killing(self, plain: list[Worker], publishers: Worker) -> Iterator[None]:
        """Meanwhile consumers are killed, one after the other, and once the publishers."""
        over = threading.Event()
        thread = threading.Thread(target=self._kill, args=(over, plain, publishers))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _kill(self, over: threading.Event, plain: list[Worker], publishers: Worker) -> None:
        rng = random.Random(self._rng.random())
        while not over.wait(rng.uniform(2.0, 5.0)):
            victim = plain[self.result.killed % len(plain)]
            with self._stage.fault(victim.name, "killed"):
                victim.end(signal.SIGKILL)
                victim.start()
            self.result.killed += 1
            if self.result.killed == 2:
                self._kill_publishers(publishers)

    def _kill_publishers(self, publishers: Worker) -> None:
        publishers.end(signal.SIGKILL)
        before = len(self._stage.handled())
        publishers.start()
        self.result.publishers_killed += 1
        # On a slow machine a process takes long to start; without messages nothing is shown.
        eventually(lambda: len(self._stage.handled()) > before + MANY, START_SECONDS)

    # ------------------------------------------------------------------ changes

    def _resize(self) -> str:
        """To another count, as soon as the last resize is settled."""
        count = self._rng.choice([n for n in COUNTS if n != self._count])
        self._stage.ask(lambda client: client.change_queue(QUEUE, partition_count=count))
        before, self._count = self._count, count
        return f"{before} to {count} partitions"

    def _split_or_merge(self) -> str:
        ranges = self._ranges()
        few, many = len(ranges) < FEWEST, len(ranges) >= MOST
        if few or (not many and self._rng.random() < 0.5):
            one = self._rng.choice(ranges)
            at = self._rng.choice(["middle", "load"])
            answer = self._stage.ask(lambda c: c.split_partition(QUEUE, one.partition, at))
            said = f"{one.partition} split"
        else:
            left, right = self._rng.choice(list(pairwise(ranges)))
            answer = self._stage.ask(
                lambda c: c.merge_partitions(QUEUE, left.partition, right.partition)
            )
            said = f"{left.partition} and {right.partition} merged"
        children = [child["partition"] for child in answer["children"]]
        self._count = max(self._count, *(number + 1 for number in children))
        return f"{said}: {', '.join(map(str, children))}"

    def _ranges(self) -> list[HashRange]:
        """The partitions that take messages, in the order of hashes."""

        def asked(client: Client) -> list[HashRange]:
            nodes = [node for node in client.lineage(QUEUE) if not node.children]
            return sorted(found for node in nodes if (found := parse_range(node.key)))

        return self._stage.ask(asked)


def run(
    directory: Path,
    seed: int,
    say: Callable[[str], None],
    *,
    times: int = 20,
    seconds: float = 150.0,
    rate: float = 1000.0,
) -> Iterator[Shaped]:
    """Both queues, one after the other, each on a stage of its own."""
    for nth, changes in enumerate((RESIZES, SPLITS)):
        own = directory / str(nth)
        own.mkdir(parents=True)
        with Stage(own, replicas=1) as stage:
            shaped = Reshaping(stage, changes, times, seconds, seed, rate).run(say)
        yield shaped
