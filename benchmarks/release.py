"""How soon a partition that is revoked from a query is granted to its successor.

    python -m benchmarks.release [--rounds 5] [--trigger 10]

One PySpark query on `local[2]` owns a queue, a plain flow joins (no holddown) and gets half of it.
A real service process on loopback; everything shares the machine. Measured is the time until the
grant, from

- the bind of the flow that joins, if no message of the partition is in flight;
- the end of the sink's work, if a micro-batch with its messages is running at the bind. "unheard"
  is the query without Spark's events, as it is when they are late or lost:
a release then waits until Spark asks for the next offset.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.service import served
from benchmarks.sessions import CHECKPOINTS
from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher

QUEUE = "flights"
PARTITIONS = 8
SETTINGS = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__log__level": "OFF",
    "spark__driver__memory": "512m",
    "spark__sql__shuffle__partitions": "1",
    "spark__sql__streaming__checkpointFileManagerClass": CHECKPOINTS,
}


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trigger", type=int, default=10, help="the trigger interval, in seconds")
    arguments = parser.parse_args()
    from counterpoise.spark import session

    spark = session("release", spark__master="local[2]", **SETTINGS)
    rounds, trigger = arguments.rounds, f"{arguments.trigger} seconds"
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as url:
        stage = Stage(spark, url, Path(directory))
        with stage.query("0 seconds"):
            show("idle, no trigger interval", [stage.at_rest() for _ in range(rounds)])
            show("amid a micro-batch, no interval", [stage.at_work() for _ in range(rounds)])
        with stage.query(trigger):
            show(f"idle, trigger {trigger}", [stage.at_rest() for _ in range(rounds)])
            few = range(max(1, rounds // 2))
            show(f"amid a micro-batch, trigger {trigger}", [stage.at_work() for _ in few])
        with stage.query(trigger, heard=False):
            show(f"the same, unheard, trigger {trigger}", [stage.at_work() for _ in few])
    spark.stop()


class Stage:
    """The queue, the query on it, and the flow that joins."""

    def __init__(self, spark: Any, url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory
        self._go_on = threading.Event()
        self._go_on.set()
        self._working = threading.Event()
        self._ended_at = 0.0
        self._published = 0
        self._queries = 0

    @contextmanager
    def query(self, trigger: str, *, heard: bool = True) -> Iterator[None]:
        """Run the query on a new queue."""
        self._queries += 1
        with Client(self._url) as client:
            client.create_queue(QUEUE, PARTITIONS, rebalance_delay=0, max_handoff_time=300)
        listener = vars(self._spark).get("_counterpoise_listener")
        if not heard:
            self._spark.streams.removeListener(listener)
        stream = self._spark.readStream.format("counterpoise")
        stream = stream.options(url=self._url, queue=QUEUE).load()
        writer = stream.writeStream.foreachBatch(self._sink).trigger(processingTime=trigger)
        checkpoint = self._directory / f"checkpoint-{self._queries}"
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            self._publish()
            self._until_committed()
            yield
        finally:
            query.stop()
            with Client(self._url) as client:
                client.delete_queue(QUEUE, force=True)
            if not heard:
                self._spark.streams.addListener(listener)
            self._published = 0

    def at_rest(self) -> float:
        """From bind to grant, with no message in flight."""
        self._until_committed()
        return self._join()

    def at_work(self) -> float:
        """From the end of the sink to grant."""
        self._working.clear()
        self._go_on.clear()
        self._publish()
        if not self._working.wait(60):
            raise RuntimeError("no micro-batch came")
        return self._join()

    def _join(self) -> float:
        granted = threading.Event()
        began = time.monotonic()
        with Flow(QUEUE, url=self._url, on_granted=lambda _: granted.set()) as flow:
            self._go_on.set()
            if not granted.wait(60):
                raise RuntimeError("nothing was handed over")
            seconds = time.monotonic() - max(began, self._ended_at)
            while len(flow.partitions) < PARTITIONS // 2:
                flow.wait(1.0)
            flow.drain()
            flow.release_many([(number, None, False) for number in flow.partitions])
        return seconds

    def _publish(self) -> None:
        with Publisher(QUEUE, url=self._url) as publisher:
            for _ in range(100):
                publisher.publish(b"x" * 100, key=str(self._published))
                self._published += 1

    def _until_committed(self) -> None:
        give_up_at = time.monotonic() + 120
        with Client(self._url) as client:
            while sum(int(p.position or 0) for p in client.partitions(QUEUE)) < self._published:
                if time.monotonic() > give_up_at:
                    raise RuntimeError("the query does not come forward")
                time.sleep(0.05)

    def _sink(self, batch: Any, _: int) -> None:
        batch.count()
        self._working.set()
        self._go_on.wait(60)
        self._ended_at = time.monotonic()


def show(name: str, seconds: list[float]) -> None:
    """One line: the median and the maximum."""
    figures = f"median {statistics.median(seconds) * 1e3:7.0f} ms, worst {max(seconds) * 1e3:7.0f}"
    print(f"  {name:42} {figures} ms of {len(seconds)}", flush=True)


if __name__ == "__main__":
    main()
