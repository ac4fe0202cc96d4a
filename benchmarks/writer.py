"""How fast Spark writes into a queue, next to `Publisher` with as many connections.

    python -m benchmarks.writer [--messages 200000] [--rounds 3]

A real service process on an embedded Postgres, and a real Spark with two cores. They share the
machine, so all figures are of the same run, in turns. Messages have 1 KB.

* *a batch*: `df.write.format("counterpoise")` of rows in memory, two tasks.
* *a chain*: a backlog of one queue into another one, with positions. It reads, too. The first half
  of the messages is not measured (the JVM compiles).
* *nothing to write*: what a micro-batch costs whatever it writes. For each micro-batch Spark makes
  the writer in a new Python process.

Targets: 0.7 of Y9, `Publisher` with two connections, which generates its messages.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, print_measured, rate, timed
from benchmarks.service import running
from benchmarks.source import small_session
from counterpoise.client import Client
from counterpoise.publisher import Publisher
from counterpoise.spark import QueueSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CONNECTIONS = 2
PARTITIONS = 16
MESSAGE_BYTES = 1024
TARGET = 0.7
Y9 = "Y9"


def main() -> None:
    """Parse the arguments, measure, print."""
    print_measured(__doc__, measure)


def figures(quick: bool = False) -> list[Figure]:
    """A batch and chains, next to `Publisher`."""
    return measure(100_000, 1) if quick else measure(200_000, 3)


def measure(messages: int, rounds: int) -> list[Figure]:
    """In each round so many messages are written in each way."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as service:
        directory, url = Path(name), service.url
        spark = small_session(CONNECTIONS, directory)
        with Client(url) as client:
            client.create_queue("source", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
            # Keeps the messages for the next round (benchmarks.source).
            client.create_queue("keeps", PARTITIONS, log="builtin:source")
            client.create_queue("target", PARTITIONS)
            _publish(url, "source", 2 * messages)
            rows = spark.range(0, messages, 1, CONNECTIONS).selectExpr(
                "concat('key-', id) as key", f"repeat('x', {MESSAGE_BYTES}) as value"
            )
            for number in range(rounds + 1):
                found_now = {
                    Y9: messages / _publish(url, "target", messages),
                    "a batch": messages / _batch(rows, url),
                    "a chain": _chain(spark, client, directory, messages, _writer),
                    "a chain with QueueSink": _chain(spark, client, directory, messages, _sink),
                    "nothing": _nothing(spark, directory, url),
                }
                if number:
                    for what, value in found_now.items():
                        found.setdefault(what, []).append(value)
        spark.stop()
    written = ("a batch", "a chain", "a chain with QueueSink")
    return [
        *(rate(f"{what} from Spark", found[what], Y9, found[Y9], TARGET) for what in written),
        timed("a micro-batch that writes nothing", found["nothing"]),
        rate(f"Y9: Publisher with {CONNECTIONS} connections", found[Y9]),
    ]


def _publish(url: str, queue: str, messages: int) -> float:
    """How long it takes."""
    value = os.urandom(MESSAGE_BYTES)
    began = time.perf_counter()
    with Publisher(queue, url=url, connections=CONNECTIONS) as publisher:
        for number in range(messages):
            publisher.publish(value, f"key-{number}")
    return time.perf_counter() - began


def _batch(rows: DataFrame, url: str) -> float:
    began = time.perf_counter()
    rows.write.format("counterpoise").mode("append").options(queue="target", url=url).save()
    return time.perf_counter() - began


def _writer(rows: DataFrame, url: str) -> DataStreamWriter:
    name = uuid.uuid4().hex
    return rows.writeStream.format("counterpoise").options(queue="target", url=url, name=name)


def _sink(rows: DataFrame, url: str) -> DataStreamWriter:
    return rows.writeStream.foreachBatch(QueueSink("target", url=url, name=uuid.uuid4().hex))


def _chain(
    spark: SparkSession, client: Client, directory: Path, messages: int, write: Any
) -> float:
    """Messages a second in the second of two micro-batches."""
    url = client.url.removesuffix("/v1")
    stream = spark.readStream.format("counterpoise").options(url=url, queue="source")
    limits = {"maxMessagesPerTrigger": str(messages), "maxBytesPerTrigger": "unlimited"}
    rows = stream.options(**limits).load()
    writer = write(rows.select("partition", "position", "key", "value"), url)
    query = writer.trigger(availableNow=True).option(
        "checkpointLocation", str(directory / uuid.uuid4().hex)
    )
    running_query = query.start()
    running_query.awaitTermination()
    progress = [one for one in running_query.recentProgress if one["numInputRows"]]
    client.set_positions("source", "earliest")
    return float(messages / progress[-1]["batchDuration"] * 1e3)


def _nothing(spark: SparkSession, directory: Path, url: str) -> float:
    """Seconds of a micro-batch whose rows are all filtered out."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    writer = rows.where("value < 0").selectExpr("cast(value as string) as value").writeStream
    query = (
        writer.format("counterpoise")
        .options(queue="target", url=url)
        .option("checkpointLocation", str(directory / uuid.uuid4().hex))
        .start()
    )
    while len(query.recentProgress) < 8 and query.isActive:
        query.awaitTermination(1)
    query.stop()
    return statistics.median(one["batchDuration"] / 1e3 for one in query.recentProgress[3:])


if __name__ == "__main__":
    main()
