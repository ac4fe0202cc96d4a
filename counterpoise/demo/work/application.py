"""One PySpark application of the demo: `python -m counterpoise.demo.work.application`.

The code that a user of Counterpoise writes is in `stream` and `Work`: a query on
`format("counterpoise")` whose micro-batches go to a sink. It knows nothing of grants, handoffs and
losses of partitions; the source handles them.

The scenario controls it by simple means: the application prints a line when it is ready to join,
waits for a line on standard input, and stops in order on SIGTERM. It also stops when standard input
ends, which happens when the scenario has died.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.demo.work.flights import Flight
from counterpoise.demo.work.sabotage import SABOTAGES, Damage, Zombie
from counterpoise.demo.work.sink import Message, Sink, Slice
from counterpoise.spark.driver.java import ensure_java
from counterpoise.spark.errors import DRAINED_FROM_OUTSIDE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

READY = "ready"
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class Work:
    """The application's work on a micro-batch: journal and statistics, at a given rate.

    The rate (flights a second; 0 is as fast as can be) is read from a file before each batch, so
    that the scenario decides when there is backlog. A kill while the application waits hits it
    between its write to the sink and its commit at the service.
    """

    def __init__(self, sink: Sink, rate: Path, sabotage: str | None, zombie: Zombie | None) -> None:
        self._sink = sink
        self._rate = rate
        self._damage = Damage(sabotage)
        self._zombie = zombie
        self._last = time.monotonic()

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        table = batch.select("partition", "position", "epoch", "value", "published_at").toArrow()
        slices = self._damage(batch_id, list(slices_of(table)))
        self._sink.write(batch_id, slices)
        if self._zombie:
            self._sink.write(batch_id, self._zombie.more(slices))
        self._wait(table.num_rows)

    def _wait(self, messages: int) -> None:
        rate = float(self._rate.read_text() or 0)
        if rate:
            time.sleep(max(0.0, self._last + messages / rate - time.monotonic()))
        self._last = time.monotonic()


def slices_of(table: "pa.Table") -> Iterator[Slice]:
    """The messages by partition and epoch, each in the order in which they came."""
    messages: dict[tuple[int, int], list[Message]] = {}
    published = table.column("published_at").cast("int64")
    columns = (table.column(name) for name in ("partition", "epoch", "position", "value"))
    for partition, epoch, position, value, microseconds in zip(
        *(column.to_pylist() for column in (*columns, published)), strict=True
    ):
        message = Message(int(position), Flight.of(value), microseconds / 1e6)
        messages.setdefault((partition, epoch), []).append(message)
    for (partition, epoch), own in messages.items():
        yield Slice(partition, epoch, own)


def stream(spark: "SparkSession", options: argparse.Namespace, work: Work) -> "StreamingQuery":
    """The query: no more code is needed to share a queue with other applications."""
    flights = (
        spark.readStream.format("counterpoise")
        .option("url", options.url)
        .option("queue", options.queue)
        .option("clientName", options.name)
        .option("instanceId", options.instance)
        .option("leaseSeconds", options.lease_seconds)
        .option("maxMessagesPerTrigger", options.max_messages)
        .load()
    )
    return (
        flights.writeStream.foreachBatch(work)
        .option("checkpointLocation", options.checkpoint)
        .start()
    )


def session(name: str, directory: Path) -> "SparkSession":
    """A small Spark: one core, little memory, no network ports except its own internal ones."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    ensure_java()
    from pyspark.sql import SparkSession

    from counterpoise.spark import register

    spark = (
        SparkSession.builder.master("local[1]")
        .appName(name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "WARN")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_MANAGER)
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    register(spark)
    return spark


def warm_up(spark: "SparkSession", directory: Path) -> None:
    """Run a query of one line, in the manner of the real one.

    Spark's first micro-batch takes seconds. It is better to spend them before the application owns
    partitions that wait for it. This is good practice for every application that joins others.
    """
    lines = directory / "warm-up"
    lines.mkdir()
    (lines / "line.txt").write_text("line\n")
    query = (
        spark.readStream.format("text")
        .load(str(lines))
        .mapInArrow(_through_a_worker, "value string")
        .writeStream.foreachBatch(lambda batch, _: batch.toArrow())
        .option("checkpointLocation", str(directory / "warm-up-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _through_a_worker(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Load the modules that Spark's Python worker, which is reused, needs to read the log."""
    import counterpoise.logs.postgres
    import counterpoise.spark.source.data_source
    import counterpoise.spark.source.reader  # noqa: F401

    yield from batches


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, the end of standard input or a drain; 1 if the query failed."""
    options = _parser().parse_args(arguments)
    go, stop = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        stop.set()
        go.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_listen, args=[go.set, end], daemon=True).start()

    spark = session(options.name, options.directory)
    if not stop.is_set():
        warm_up(spark, options.directory)
        print(READY, flush=True)
    go.wait()
    if stop.is_set():
        spark.stop()
        return 0
    sink = Sink(options.sink, options.name, fenced=options.sabotage != "unfenced")
    zombie = Zombie(options.url, options.queue) if options.sabotage == "unfenced" else None
    query = stream(spark, options, Work(sink, options.rate, options.sabotage, zombie))
    while query.isActive and not stop.wait(0.2):
        pass
    failure = query.exception()
    query.stop()
    spark.stop()
    sink.close()
    if failure is None or DRAINED_FROM_OUTSIDE in str(failure):
        return 0
    print(failure, file=sys.stderr)
    return 1


def _listen(go: Callable[[], None], end: Callable[[], None]) -> None:
    """The first line of standard input starts the application; its end stops it."""
    if sys.stdin.readline():
        go()
        sys.stdin.read()
    end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m counterpoise.demo.work.application")
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--name", required=True, help="name of the writer in the journal")
    parser.add_argument("--instance", required=True, help="its instance_id at the service")
    parser.add_argument("--lease-seconds", required=True)
    parser.add_argument("--max-messages", required=True, help="in a micro-batch")
    parser.add_argument("--directory", type=Path, required=True, help="for Spark's own files")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--sink", type=Path, required=True)
    parser.add_argument("--rate", type=Path, required=True, help="file with flights a second")
    parser.add_argument("--sabotage", choices=SABOTAGES)
    return parser


if __name__ == "__main__":
    sys.exit(main())
