"""How fast the fenced sinks write into PostgreSQL, and what they add to a small micro-batch.

    python -m benchmarks.sink [--messages 200000] [--rounds 3]

A real service process on an embedded Postgres, a database for results on the same server, and a
real Spark with two cores. They share the machine, so all figures are of the same run, in turns.
Messages of 1 KB are a backlog in a queue with 16 partitions. Each way reads and writes all of them
in four micro-batches; the first is not measured (the JVM compiles, workers start).

* *FencedSink.to_table*: COPY in binary, from Arrow.
* *Y10*: the same sink, and its `write` copies in text, row by row, as a program does by hand.
* *Deduplicate*: each message has an id of its own, which is remembered.
* *FencedAggregate*: counts of 1,000 keys in windows of a minute.
* *a small micro-batch*: 16 messages, next to the same ones into Spark's `noop`.

Target: 1.5 of Y10.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.figures import Figure, print_measured, rate, timed
from benchmarks.service import running
from benchmarks.source import checkpoint, publish, small_session
from counterpoise.client import Client
from counterpoise.spark import Count, Deduplicate, FencedAggregate, FencedSink, Windows
from counterpoise.spark.sink.insert import Insert

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 16
MESSAGE_BYTES = 1024
BATCHES = 4
SMALL_BATCHES = 12
TARGET = 1.5
Y10 = "Y10"
COLUMNS = ("partition", "position", "key", "value")
TABLES = """
CREATE TABLE events (partition int, position text, key text, value bytea);
CREATE TABLE counts (window_start timestamptz, window_end timestamptz, key text, n bigint);
"""


def main() -> None:
    """Parse the arguments, measure, print."""
    print_measured(__doc__, measure)


def figures(quick: bool = False) -> list[Figure]:
    """The sinks, next to COPY row by row."""
    return measure(40_000, 1) if quick else measure(200_000, 3)


def by_row(connection: Any, rows: pa.Table, scope: Any) -> None:
    """A `write` function: COPY in text."""
    columns = [rows.column(name).to_pylist() for name in COLUMNS]
    with connection.connection.driver_connection.cursor() as cursor:
        with cursor.copy(f"COPY events ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)


def ways(url: str) -> dict[str, Callable[[], Callable[[DataFrame, int], None]]]:
    """How to make each sink, under a new name: it has written nothing yet."""
    insert = Insert("events", COLUMNS)

    def named() -> str:
        return uuid.uuid4().hex

    return {
        "FencedSink.to_table": lambda: FencedSink.to_table(
            url, "events", columns=COLUMNS, name=named()
        ),
        Y10: lambda: FencedSink(url, by_row, name=named()),
        "Deduplicate": lambda: FencedSink(
            url, Deduplicate(insert, by=["partition", "position"]), name=named()
        ),
        "FencedAggregate": lambda: FencedAggregate(
            url,
            "counts",
            values={"n": Count()},
            by=["bucket"],
            windows=Windows("published_at", size_seconds=60),
            emit=lambda connection, rows: None,
            name=named(),
        ),
    }


def measure(messages: int, rounds: int) -> list[Figure]:
    """In each round all messages go into each sink, and some small micro-batches."""
    found: dict[str, list[float]] = {}
    small: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, running(Path(name)) as service:
        directory = Path(name)
        url = results_beside(service.database_url)
        spark = small_session(2, directory)
        with Client(service.url) as client:
            client.create_queue("source", PARTITIONS, rebalance_delay=0, max_handoff_time=30)
            # Keeps the messages for the next round (benchmarks.source).
            client.create_queue("keeps", PARTITIONS, log="builtin:source")
            publish(service.url, "source", messages, MESSAGE_BYTES)

            def run(sink: Any, limit: int, batches: int) -> list[Any]:
                with psycopg.connect(url) as connection:
                    connection.execute("TRUNCATE events")
                progress = through(spark, service.url, sink, limit, batches, directory)
                while client.flows("source"):  # else the next query waits for its handoff
                    time.sleep(0.05)
                client.set_positions("source", "earliest")
                return progress

            for number in range(rounds + 1):
                for what, sink in ways(url).items():
                    steady = run(sink(), messages // BATCHES, BATCHES)[1:]
                    seconds = sum(one["batchDuration"] for one in steady) / 1e3
                    if number:
                        rows = sum(one["numInputRows"] for one in steady)
                        found.setdefault(what, []).append(rows / seconds)
                for what, make in {"noop": lambda: None, **ways(url)}.items():
                    if what == Y10:
                        continue
                    steady = run(make(), PARTITIONS, SMALL_BATCHES)[SMALL_BATCHES // 3 :]
                    if number:
                        took = statistics.median(one["batchDuration"] for one in steady)
                        small.setdefault(what, []).append(took / 1e3)
        spark.stop()
    by_hand, nothing = found.pop(Y10), small.pop("noop")
    return [
        *(
            rate(what, rates, Y10, by_hand, TARGET if what == "FencedSink.to_table" else None)
            for what, rates in found.items()
        ),
        rate("Y10: the fenced sink with COPY row by row", by_hand),
        *(
            timed(f"a small micro-batch, {what}", took, "noop", statistics.median(nothing))
            for what, took in small.items()
        ),
        timed("a small micro-batch, noop", nothing),
    ]


def results_beside(url: str) -> str:
    """A database for the results on the same server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE results")
    with psycopg.connect(url, dbname="results") as connection:
        connection.execute(TABLES)
    head, _, _ = url.rpartition("/")
    return f"{head}/results"


def through(
    spark: SparkSession, url: str, sink: Any, limit: int, batches: int, directory: Path
) -> list[Any]:
    """The progress of so many micro-batches of `limit` messages. `sink` None: `noop`."""
    stream = spark.readStream.format("counterpoise").options(
        url=url, queue="source", maxMessagesPerTrigger=str(limit), maxBytesPerTrigger="unlimited"
    )
    rows = stream.load().selectExpr(
        *COLUMNS, "published_at", "concat('k', pmod(hash(key), 1000)) as bucket"
    )
    writer = rows.writeStream.option("checkpointLocation", checkpoint(directory))
    query = (writer.format("noop") if sink is None else writer.foreachBatch(sink)).start()
    progress: list[Any] = []
    while len(progress) < batches and query.isActive:
        query.awaitTermination(1)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    query.stop()
    if error := query.exception():
        raise error
    return progress[:batches]


if __name__ == "__main__":
    main()
