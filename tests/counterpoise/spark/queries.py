"""Queries of the tests' own Spark session, and helpers for their queues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.counterpoise.spark.starting import started
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Collected:
    """A sink in this process: the rows, batch by batch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.partitions_read: list[int] = []

    def __call__(self, batch: Any, _: int) -> None:
        self.partitions_read.append(batch.rdd.getNumPartitions())
        self.rows.extend(batch.collect())


def start(
    spark: SparkSession, sink: Callable[..., None], checkpoint: Path, **options: str | int
) -> StreamingQuery:
    stream = spark.readStream.format("counterpoise").options(**options).load()
    writer = stream.writeStream.foreachBatch(sink)
    return started(writer.option("checkpointLocation", str(checkpoint)))


def publish(service: Service, queue: str, count: int, first: int = 0) -> None:
    with Publisher(queue, url=service.url) as publisher:
        for number in range(first, first + count):
            publisher.publish(
                f"v{number}".encode(),
                key=f"k{number % 17}",
                headers={"n": str(number)} if number % 2 else None,
                published_at=datetime(2013, 1, 1, 0, 0, number % 60, tzinfo=UTC),
            )


def committed(client: Client, queue: str) -> dict[int, str | None]:
    return {one.partition: one.position for one in client.partitions(queue)}
