"""How fast a PySpark query reads a queue, and how soon a starting query gets its first row.

    python -m benchmarks.source [--messages 1000000] [--rounds 5] [--bytes 1024] [--cores 1 2]

A real service process on an embedded Postgres, and a real Spark. They share the machine. So the
wall clock shows the speed of the query next to the service, and the CPU time of the application
(JVM and Python workers, without Postgres and the service) shows the cost of a message.

* *through the source*: micro-batches of the built-in log into a sink that does nothing, in steady
  state: the second half of the messages, after a query that is not measured (the JVM compiles).
  Targets: 0.4 of Y3 with one core and 0.6 with two. Y7 is the simplest Python data source
  (`benchmarks.floor`), in the same session and with micro-batches of the same size.
* *share*: which steps of a micro-batch take how much of its time, as Spark's progress tells them.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import floor
from benchmarks.figures import Figure, beside, rate, timed
from benchmarks.rows import Y3, Y4, ArrowReader, parquet_per_second, write_parquet
from benchmarks.service import running
from benchmarks.sessions import CHECKPOINTS, session
from counterpoise.client import Client
from counterpoise.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 16
Y7 = "Y7"
# Of Y3, by cores.
TARGETS = {1: 0.4, 2: 0.6}
FIRST_ROW_SECONDS = 2.0
# Steps of a micro-batch, by their names in Spark's progress.
STEPS = {
    "the source's answers": ("latestOffset",),
    "Spark's plan": ("queryPlanning", "getBatch"),
    "checkpoint files": ("walCommit", "commitOffsets"),
    "tasks": ("addBatch",),
}
EMPTY_BATCHES = 20
WAIT_SECONDS = 120.0


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    for figure in measure(arguments.messages, arguments.bytes, arguments.rounds, arguments.cores):
        print(figure)


def figures(quick: bool = False) -> list[Figure]:
    """Through the source with one and two cores, and the first row of a query."""
    return measure(*((400_000, 1024, 1) if quick else (1_000_000, 1024, 5)), [1, 2])


def measure(messages: int, size: int, rounds: int, cores: list[int]) -> list[Figure]:
    """Throughput with so many cores each, then the first row."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as service:
        directory, url = Path(name), service.url
        with Client(url) as client:
            client.create_queue("source", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
            # The service deletes what every queue has processed, once a minute. This one processes
            # nothing, so each round finds all messages.
            client.create_queue("keeps", PARTITIONS, log="builtin:source", start="earliest")
            publish(url, "source", messages, size)
            arrow = ArrowReader(service.database_url, "source", PARTITIONS)
            write_parquet(arrow.table(), directory / "parquet")
            for count in cores:
                spark = small_session(count, directory)
                found += throughput(spark, url, count, messages, size, directory, rounds, arrow)
                spark.stop()
            arrow.close()
            spark = small_session(max(cores), directory)
            found += first_rows(spark, client, url, rounds, directory)
            spark.stop()
    return found


def publish(url: str, queue: str, messages: int, size: int) -> None:
    """Fill the queue."""
    value = os.urandom(size)
    with Publisher(queue, url=url, batch_messages=1000) as publisher:
        for number in range(messages):
            publisher.publish(value, f"key-{number}")


def small_session(cores: int, directory: Path) -> SparkSession:
    """A session with so many cores, whose checkpoints are on a local disk."""
    return session(
        "benchmark",
        cores,
        directory,
        spark__sql__streaming__checkpointFileManagerClass=CHECKPOINTS,
    )


def throughput(
    spark: SparkSession,
    url: str,
    cores: int,
    messages: int,
    size: int,
    directory: Path,
    rounds: int,
    arrow: ArrowReader,
) -> list[Figure]:
    """All messages into a sink that does nothing, next to the yardsticks."""
    found: dict[str, list[float]] = {}
    parquet_per_second(spark, directory / "parquet", messages)  # Spark compiles in the first one
    floor.register(spark)
    options = {"url": url, "queue": "source"}
    for number in range(rounds + 1):
        yard = arrow.per_second()
        ours = _through(spark, "counterpoise", options, directory)
        assert ours.messages == messages, f"{ours.messages} of {messages} came"
        with Client(url) as client:
            client.set_positions("source", "earliest")
        chunks = ours.batch_messages // floor.CHUNK_MESSAGES
        simplest = {"size": str(size), "cores": str(cores)}
        batches = -(-messages // ours.batch_messages)
        bare = _through(
            spark,
            floor.FORMAT,
            {**simplest, "chunks": str(chunks), "batches": str(batches)},
            directory,
        )
        nothing = _through(
            spark,
            floor.FORMAT,
            {**simplest, "chunks": "0", "batches": str(EMPTY_BATCHES)},
            directory,
        )
        if not number:
            continue
        for name, value in {
            Y3: yard,
            "source": ours.per_second,
            "cpu": ours.cpu_microseconds,
            "messages": ours.batch_messages,
            **{step: 100 * share for step, share in ours.shares.items()},
            Y7: bare.per_second,
            "cpu of Y7": bare.cpu_microseconds,
            "nothing": nothing.batch_seconds,
            Y4: parquet_per_second(spark, directory / "parquet", messages),
        }.items():
            found.setdefault(name, []).append(value)

    def median(name: str, key: str, unit: str) -> Figure:
        return Figure(name, statistics.median(found[key]), unit, rounds=rounds)

    name = "through the source"
    return beside(
        f"local[{cores}]",
        rate(name, found["source"], Y3, found[Y3], TARGETS.get(cores)),
        rate(f"{name}, beside Y7", found["source"], Y7, found[Y7]),
        rate(f"{name}, beside Y4", found["source"], Y4, found[Y4]),
        median("messages of a micro-batch", "messages", ""),
        *(median(f"share: {step}", step, "%") for step in STEPS),
        timed("Y7: a micro-batch of nothing", found["nothing"]),
        median("CPU of the application, a message", "cpu", "µs"),
        median("CPU of Y7, a message", "cpu of Y7", "µs"),
        rate("Y3: ADBC reads the same rows into Arrow", found[Y3]),
        rate("Y4: Spark reads them from Parquet", found[Y4]),
        rate("Y7: the simplest Python data source", found[Y7], Y3, found[Y3]),
    )


@dataclass(frozen=True)
class Run:
    """What one query showed: `messages` in all, the rest in its second half."""

    messages: int
    batch_messages: int
    """Of the largest micro-batch."""
    batch_seconds: float
    per_second: float
    cpu_microseconds: float
    """Of the application, for each message after the first micro-batch."""
    shares: dict[str, float]


def _through(spark: SparkSession, source: str, options: dict[str, str], directory: Path) -> Run:
    """One query until it ends by itself."""
    stream = spark.readStream.format(source).options(**options)
    return through(spark, stream.load().writeStream.format("noop"), directory)


def through(
    spark: SparkSession, writer: DataStreamWriter, directory: Path, *, to_the_end: bool = True
) -> Run:
    """One query until it ends by itself, with a checkpoint of its own.

    Without `to_the_end` its last micro-batch is not in the rates.
    """
    process = jvm_pid(spark)
    writer = writer.trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint(directory)).start()
    progresses: dict[int, Any] = {}
    at_first: tuple[int, float] | None = None
    while query.isActive:
        if at_first is None:
            progresses = {one.batchId: one for one in query.recentProgress}
            at_first = (rows_of(progresses), cpu_seconds(process)) if progresses else None
        time.sleep(0.05)
    used = cpu_seconds(process)
    if error := query.exception():
        raise error
    progresses = {one.batchId: one for one in query.recentProgress}
    messages = rows_of(progresses)
    # In the first half workers start, and the limit of a micro-batch grows.
    steady, seen = [], 0
    for number, one in sorted(progresses.items()):
        second_half = seen >= messages // 2 if messages else number >= EMPTY_BATCHES // 2
        if second_half and "addBatch" in one.durationMs:
            steady.append(one)
        seen += one.numInputRows
    if not to_the_end:
        steady.pop()
        assert steady, "too few messages for a rate; there have to be at least five micro-batches"
    took = sum(one.durationMs["triggerExecution"] for one in steady) / 1000
    assert at_first is not None
    return Run(
        messages,
        max(one.numInputRows for one in steady),
        took / len(steady),
        sum(one.numInputRows for one in steady) / took,
        (used - at_first[1]) / max(1, messages - at_first[0]) * 1e6,
        {
            step: sum(one.durationMs.get(name, 0) for one in steady for name in names) / 1000 / took
            for step, names in STEPS.items()
        },
    )


def first_rows(
    spark: SparkSession, client: Client, url: str, rounds: int, directory: Path
) -> list[Figure]:
    """Start a query repeatedly: the time to the first row."""
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
    return [
        timed("first row, since the bind", from_bind, target=FIRST_ROW_SECONDS * 1e3),
        timed("first row, since start()", from_start),
    ]


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
