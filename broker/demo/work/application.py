"""One PySpark application of the demo: `python -m broker.demo.work.application`.

The code that a user of Counterpoise writes is in `stream` and `BatchWork`: a query on
`format("counterpoise")` whose micro-batches go to a sink. It knows nothing of grants, handoffs and
losses of partitions, nor of splits and merges; the source handles them.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from broker.demo.work.flights import Flight
from broker.demo.work.lake import fenced_sink
from broker.demo.work.sink import FlightMessage, FlightSlice
from broker.demo.work.staging import Cues, Work, parser, say
from counterpoise.spark.driver.environment import NOT_CONNECTED, ensure_java, installed_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MASTER = "local[1]"
# Spark's classes are those of its wheel: to verify each of them takes two seconds of a processor.
JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# A busy machine may exceed Spark's limit for the start of a source's process.
STARTS = 5


class BatchWork:
    """The work on a micro-batch, as Spark's `foreachBatch` calls it."""

    def __init__(self, work: Work, lake: Path | None) -> None:
        self._work = work
        self._lake = None if lake is None else fenced_sink(lake)

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        if self._lake is not None:
            self._lake(batch, batch_id)
        table = batch.select("partition", "position", "epoch", "value", "published_at").toArrow()
        self._work(batch_id, list(slices_of(table)))


def slices_of(table: "pa.Table") -> Iterator[FlightSlice]:
    """The messages by partition and epoch, each in the order in which they came."""
    messages: dict[tuple[int, int], list[FlightMessage]] = {}
    published = table.column("published_at").cast("int64")
    columns = (table.column(name) for name in ("partition", "epoch", "position", "value"))
    for partition, epoch, position, value, microseconds in zip(
        *(column.to_pylist() for column in (*columns, published)), strict=True
    ):
        message = FlightMessage(int(position), Flight.of(value), microseconds / 1e6)
        messages.setdefault((partition, epoch), []).append(message)
    for (partition, epoch), own in messages.items():
        yield FlightSlice(partition, epoch, own)


def stream(spark: "SparkSession", options: argparse.Namespace, work: BatchWork) -> "StreamingQuery":
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

    builder = (
        SparkSession.builder.master(MASTER)
        .appName(name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "WARN")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_MANAGER)
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with installed_pyspark(MASTER):
        spark = builder.getOrCreate()
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
    import counterpoise.logs.builtin.log
    import counterpoise.spark.data_source
    import counterpoise.spark.source.reader  # noqa: F401

    yield from batches


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, the end of standard input or a drain; 1 if the query failed."""
    options = parser("broker.demo.work.application").parse_args(arguments)
    cues = Cues()
    say("starts Java and Spark")
    spark = session(options.name, options.directory)
    if not cues.stop.is_set():
        say("warms Spark up")
        warm_up(spark, options.directory)
    if not cues.wait():
        spark.stop()
        return 0
    work = Work(options)
    processing = BatchWork(work, options.lake)
    for _ in range(STARTS):
        query = stream(spark, options, processing)
        while query.isActive and not cues.stop.wait(0.2):
            pass
        failure = query.exception()
        query.stop()
        if NOT_CONNECTED not in str(failure):
            break
    spark.stop()
    work.sink.close()
    if failure is None:
        return 0
    print(failure, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
