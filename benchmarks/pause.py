"""How long a partition pauses when a second Spark application joins, in micro-batches.

    python -m benchmarks.pause [--rounds 5]

Two applications with a driver each, on `local[1]`, without a trigger interval, share a queue of 16
partitions, to which 20 messages a second and partition are published. The first one owns all of
them; the second one has run a small query before, then its query starts (no holddown): 8 graceful
handoffs. Then it drains, and the next round begins. All share the machine with the service.

* *pause*: from the moment at which the sink of the first application has the last message of the
  partition until the sink of the second one has the next. Its unit is the median micro-batch of
  both queries in the same seconds. A partition that does not move pauses for one micro-batch.
  Target: 2.
* *first query of a session*: the same for the very first query, whose JVM compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, spread, timed
from benchmarks.service import running
from benchmarks.sessions import CHECKPOINTS, session
from benchmarks.traffic import traffic
from counterpoise.client import Client
from counterpoise.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUEUE = "flights"
PARTITIONS = 16
WAIT_SECONDS = 120.0
# Micro-batches of the new owner that a round lasts.
STEADY_BATCHES = 5
MICRO_BATCHES = "micro-batches"


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--application", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.application:
        application(json.loads(given.application))
        return
    print(f"load {os.getloadavg()[0]:.1f} before the start")
    for figure in shown(measure(given.rounds)):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Pauses in micro-batches. A quick run leaves them out: two sessions start."""
    return [] if quick else shown(measure(5))


# ---------------------------------------------------------------------- what happened


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, when its messages were in the sink. Positions are those of the log."""

    number: int
    at: float
    """Seconds since the epoch."""
    first: Mapping[int, int]
    """The position of the first message, by partition."""
    last: Mapping[int, int]


def pauses_of(
    old: Sequence[Batch], new: Sequence[Batch], after: float, gap: int = 1
) -> dict[int, float]:
    """Seconds between the last message at the old owner and the first at the new one, by partition.

    Both lists are in the order of time; only micro-batches of `new` later than `after` count.
    Raises ValueError if a message was left out or came twice.
    """
    found: dict[int, float] = {}
    for batch in new:
        for number in batch.first.keys() - found.keys() if batch.at > after else ():
            before = [one for one in old if number in one.last and one.at < batch.at]
            if not before:
                continue
            last = before[-1]
            if batch.first[number] != last.last[number] + gap:
                raise ValueError(
                    f"partition {number} went on at {batch.first[number]} after {last.last[number]}"
                )
            found[number] = batch.at - last.at
    return found


@dataclass(frozen=True)
class Round:
    """The handoffs of one join, or of the drain after it."""

    pauses: Sequence[float]
    batch_seconds: Sequence[float]
    """The micro-batches of both queries meanwhile."""

    @property
    def ratios(self) -> list[float]:
        """The pauses in median micro-batches."""
        batch = statistics.median(self.batch_seconds)
        return [one / batch for one in self.pauses]


# ---------------------------------------------------------------------- measuring


class Application:
    """An application's process, and its micro-batches."""

    def __init__(
        self, directory: Path, url: str, who: str, module: str = "benchmarks.pause", **more: str
    ) -> None:
        """Runs `module` with `--application` and these settings."""
        self.who = who
        self.batches: list[Batch] = []
        self._seconds: dict[int, float] = {}
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        settings = {"url": url, "who": who, "home": str(directory / who), **more}
        self._log = directory / f"{who}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--application", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, what: str) -> None:
        """A command; `heard` waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def heard(self, what: str) -> None:
        """Wait until it says so. Raises RuntimeError with its log."""
        try:
            while self._said.get(timeout=WAIT_SECONDS) != what:
                pass
        except queue.Empty:
            log = self._log.read_text()[-3000:]
            raise RuntimeError(f"{self.who} has not {what} in time:\n{log}") from None

    def batch_seconds(self, since: float, until: float) -> list[float]:
        """The micro-batches whose messages were in the sink at that time."""
        numbers = [one.number for one in self.batches if since <= one.at < until and one.last]
        return [self._seconds[number] for number in numbers if number in self._seconds]

    def close(self) -> None:
        """End it, with its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "progress" in said:
                milliseconds = said["progress"]["durationMs"]["triggerExecution"]
                self._seconds[said["number"]] = milliseconds / 1000
            elif "number" in said:
                first, last = ({int(n): at for n, at in said[k].items()} for k in ("first", "last"))
                self.batches.append(Batch(said["number"], said["at"], first, last))
            else:
                self._said.put(said["done"])


def measure(rounds: int) -> tuple[Sequence[Round], Sequence[Round]]:
    """The joins, the first one of a new session first; and the drains after them."""
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as service:
        with Client(service.url) as client:
            client.create_queue(QUEUE, PARTITIONS, rebalance_delay=0, max_handoff_time=60)
        with publishing(service.url), applications(Path(name), service.url) as (first, second):
            return handoffs(first, second, rounds)


@contextmanager
def publishing(url: str) -> Iterator[None]:
    """20 messages a second and partition into the queue."""
    with Publisher(QUEUE, url=url, linger_seconds=0) as publisher:

        def publish() -> None:
            for _ in range(PARTITIONS):
                publisher.publish(b"x" * 100)
            publisher.flush()

        with traffic(publish):
            yield


def handoffs(
    first: Application, second: Application, rounds: int
) -> tuple[Sequence[Round], Sequence[Round]]:
    """The joins of the second one, one more than `rounds`; and the drains after them."""
    first.tell("start")
    until_working(first, PARTITIONS)
    joins, drains = [], []
    for _ in range(rounds + 1):
        began = time.time()
        second.tell("start")
        until_working(second, PARTITIONS // 2)
        joins.append(_round(first, second, began))
        began = time.time()
        second.tell("drain")
        second.heard("drain")
        until_working(first, PARTITIONS)
        drains.append(_round(second, first, began))
    return joins, drains


def _round(old: Application, new: Application, began: float) -> Round:
    found = pauses_of(old.batches, new.batches, began)
    now = time.time()
    seconds = [*old.batch_seconds(began, now), *new.batch_seconds(began, now)]
    return Round([*found.values()], seconds)


@contextmanager
def applications(
    directory: Path, url: str, module: str = "benchmarks.pause", **more: str
) -> Iterator[tuple[Application, Application]]:
    """Two applications, one started after the other."""
    first = Application(directory, url, "first", module, **more)
    try:
        first.heard("begin")
        second = Application(directory, url, "second", module, **more)
        try:
            second.heard("begin")
            yield first, second
        finally:
            second.close()
    finally:
        first.close()


def until_working(one: Application, partitions: int) -> None:
    """It has run STEADY_BATCHES micro-batches with messages of so many partitions."""
    began = time.time()
    give_up_at = time.monotonic() + WAIT_SECONDS
    seen = 0
    while seen < STEADY_BATCHES:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{one.who} does not get {partitions} partitions")
        time.sleep(0.02)
        seen = sum(len(b.last) >= partitions for b in one.batches[:] if b.at > began)


def shown(found: tuple[Sequence[Round], Sequence[Round]]) -> list[Figure]:
    """The first join apart, because its session is new."""
    joins, drains = found
    batches = [seconds for one in joins[1:] for seconds in one.batch_seconds]
    return [
        timed("micro-batch, two queries on local[1]", batches),
        _pause("pause of a partition, second query starts", joins[1:], 2),
        _pause("pause of a partition, first query of a session", joins[:1], None),
        _pause("pause of a partition, second query drains", drains, None),
    ]


def _pause(name: str, rounds: Sequence[Round], target: float | None) -> Figure:
    pauses = [seconds for one in rounds for seconds in one.pauses]
    ratios = [ratio for one in rounds for ratio in one.ratios]
    return Figure(
        name,
        statistics.median(pauses) * 1e3,
        "ms",
        statistics.median(ratios),
        MICRO_BATCHES,
        target,
        spread=spread([one * 1e3 for one in pauses]),
        rounds=len(pauses),
    )


# ---------------------------------------------------------------------- the application


def application(settings: Mapping[str, Any]) -> None:
    """A driver: runs a small query, then starts and drains its query as it is told."""
    from counterpoise import spark as cs

    spark, say, start = begin(settings)
    stream = spark.readStream.format("counterpoise")
    stream = stream.options(url=settings["url"], queue=QUEUE, clientName=settings["who"])
    say(done="begin")
    query: Any = None
    for line in sys.stdin:
        command = line.strip()
        if command == "start":
            query = start(stream.load())
        elif command == "drain":
            cs.drain(query, timeout_seconds=WAIT_SECONDS)
        say(done=command)


def begin(
    settings: Mapping[str, Any], **more: str
) -> tuple[SparkSession, Callable[..., None], Callable[[DataFrame], StreamingQuery]]:
    """A session that has run a small query, with these settings of Spark; how to say something to
    the process that measures; and how to start a query on rows with `partition` and `position`,
    which says when they are in its sink.
    """
    from counterpoise.spark.driver.driver import EventListener

    home = Path(settings["home"])
    spark = session(
        settings["who"],
        1,
        home,
        spark__driver__memory="512m",
        spark__sql__shuffle__partitions="1",
        spark__sql__streaming__checkpointFileManagerClass=CHECKPOINTS,
        **more,
    )

    def say(**what: Any) -> None:
        # One write for each line, because two threads say something.
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    def small(batch: Any, _: int) -> None:
        batch.toArrow()

    def sink(batch: Any, number: int) -> None:
        rows = batch.select("partition", "position").toArrow()
        at = time.time()
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        partitions, positions = rows["partition"].to_pylist(), rows["position"].to_pylist()
        for partition, position in zip(partitions, positions, strict=True):
            first.setdefault(partition, int(position))
            last[partition] = int(position)
        say(number=base + number, at=at, first=first, last=last)

    class Told(EventListener):
        """Tells how long micro-batches took."""

        def progressed(self, progress: Any) -> None:
            say(number=base + progress["batchId"], progress=progress)

    base = 0

    def start(stream: DataFrame) -> StreamingQuery:
        nonlocal base
        base += 1_000_000
        writer = stream.writeStream.foreachBatch(sink).trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(home / f"of-{base}")).start()

    rate = spark.readStream.format("rate").load().writeStream.foreachBatch(small)
    rate.option("checkpointLocation", str(home / "small")).trigger(
        availableNow=True
    ).start().awaitTermination()
    spark.streams.addListener(Told())
    return spark, say, start


if __name__ == "__main__":
    main()
