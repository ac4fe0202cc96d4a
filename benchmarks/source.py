"""How fast a PySpark query reads a queue, and how soon a starting query gets its first row.

    python -m benchmarks.source [--messages 200000] [--rounds 5] [--bytes 1024]

A real service process on an embedded Postgres, and a real Spark. They share the machine. So the
wall clock shows the speed of the query next to the service, and the CPU time of the application
(JVM and Python workers, without Postgres and the service) shows the cost of a message.

* *through the source*: micro-batches of the built-in log into a sink that does nothing, in steady
  state: the first micro-batch of a query starts workers and is left out. Target: 10,000 messages of
  1 KB a second and core.
* *first row*: a session that has run a query before starts another one on a queue with messages,
  without a holddown. From `start()`, and from the bind, to the first row in `foreachBatch`. Target:
  2 s after the bind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.service import served
from counterpoise.client import Client
from counterpoise.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 16
MESSAGES_A_SECOND_AND_CORE = 10_000
FIRST_ROW_SECONDS = 2.0
WAIT_SECONDS = 120.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as url:
        with Client(url) as client:
            client.create_queue("source", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
            publish(url, "source", arguments.messages, arguments.bytes)
            for cores in arguments.cores:
                spark = session(cores, Path(directory))
                throughput(spark, url, cores, arguments.messages, Path(directory))
                spark.stop()
            spark = session(max(arguments.cores), Path(directory))
            first_rows(spark, client, url, arguments.rounds, Path(directory))
            spark.stop()


def publish(url: str, queue: str, messages: int, size: int) -> None:
    """Fill the queue."""
    value = os.urandom(size)
    with Publisher(queue, url=url, batch_messages=1000) as publisher:
        for number in range(messages):
            publisher.publish(value, f"key-{number}")


def session(cores: int, directory: Path) -> SparkSession:
    """A small session with so many cores."""
    from counterpoise import spark

    return spark.session(
        "benchmark",
        spark__master=f"local[{cores}]",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__memory="1g",
        spark__local__dir=str(directory),
        spark__log__level="ERROR",
    )


def throughput(spark: SparkSession, url: str, cores: int, messages: int, directory: Path) -> None:
    """All messages into a sink that does nothing; prints messages a second."""
    stream = spark.readStream.format("counterpoise").options(url=url, queue="source")
    writer = stream.load().writeStream.format("noop").trigger(availableNow=True)
    process = jvm_pid(spark)
    query = writer.option("checkpointLocation", checkpoint(directory)).start()
    used = cpu_seconds(process)
    progresses: dict[int, Any] = {}
    at_first: tuple[int, float, float] | None = None
    while query.isActive:
        for progress in query.recentProgress:
            progresses[progress.batchId] = progress
        if at_first is None and progresses:
            at_first = rows_of(progresses), cpu_seconds(process), time.perf_counter()
        time.sleep(0.05)
    for progress in query.recentProgress:
        progresses[progress.batchId] = progress
    used = cpu_seconds(process)
    if error := query.exception():
        raise error
    Client(url).set_positions("source", "earliest")
    assert at_first is not None
    assert rows_of(progresses) == messages, f"{rows_of(progresses)} of {messages} came"
    steady = [one for number, one in sorted(progresses.items()) if number > 0 and one.numInputRows]
    rows = sum(one.numInputRows for one in steady)
    seconds = sum(one.durationMs["triggerExecution"] for one in steady) / 1000
    per_core = rows / seconds / cores
    cost = (used - at_first[1]) / (messages - at_first[0])
    print(
        f"through the source, local[{cores}]: {rows / seconds:>9,.0f} messages/s, "
        f"{per_core:,.0f} a core {verdict(per_core >= MESSAGES_A_SECOND_AND_CORE)}; "
        f"{cost * 1e6:.0f} µs CPU of the application a message ({1 / cost:,.0f} a CPU second)",
        flush=True,
    )


def first_rows(spark: SparkSession, client: Client, url: str, rounds: int, directory: Path) -> None:
    """Start a query repeatedly; prints the time to the first row."""
    client.create_queue("soon", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
    publish(url, "soon", 1000, 1024)
    from_start, from_bind = [], []
    for number in range(rounds + 1):
        arrived = threading.Event()
        at = [0.0, 0.0]

        def sink(batch: Any, _: int, arrived: threading.Event = arrived, at: Any = at) -> None:
            if not arrived.is_set() and batch.count():
                at[0], at[1] = time.perf_counter(), time.time()
                arrived.set()

        stream = spark.readStream.format("counterpoise").options(url=url, queue="soon").load()
        began = time.perf_counter()
        query = stream.writeStream.foreachBatch(sink)
        running = query.option("checkpointLocation", checkpoint(directory)).start()
        if not arrived.wait(WAIT_SECONDS):
            raise RuntimeError(f"no row came: {running.exception()}")
        (flow,) = client.flows("soon")
        assert flow.bound_at is not None
        if number:  # the first query of a session compiles and starts workers
            from_start.append(at[0] - began)
            from_bind.append(at[1] - flow.bound_at.timestamp())
        running.stop()
        client.set_positions("soon", "earliest")
    soon = statistics.median(from_bind)
    print(
        f"first row: {soon:.2f} s after the bind (worst of {rounds}: {max(from_bind):.2f}) "
        f"{verdict(soon < FIRST_ROW_SECONDS)}; {statistics.median(from_start):.2f} s after start()",
        flush=True,
    )


def verdict(reached: bool) -> str:
    """Whether the target is reached."""
    return "(target reached)" if reached else "(TARGET MISSED)"


def rows_of(progresses: dict[int, Any]) -> int:
    """The number of rows in these micro-batches."""
    return sum(one.numInputRows for one in progresses.values())


def checkpoint(directory: Path) -> str:
    """A new checkpoint."""
    return str(directory / "checkpoints" / uuid.uuid4().hex)


def jvm_pid(spark: SparkSession) -> int:
    """The process of the session's JVM."""
    handle = spark.sparkContext._jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]
    return int(handle.pid())


def cpu_seconds(process: int) -> float:
    """The CPU seconds of a process and all its descendants so far (Linux)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        # Its own time, and that of its children that have ended.
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family, grown = {process}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family, grown = family | more, bool(more)
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
