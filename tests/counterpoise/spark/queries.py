"""Queries of the tests' own Spark session, and helpers for their queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.counterpoise.spark.starting import started
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Collected:
    """A sink in this process: the rows, batch by batch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.partitions_read: list[int] = []

    def __call__(self, batch: Any, _: int) -> None:
        self.partitions_read.append(batch.rdd.getNumPartitions())
        self.rows.extend(batch.collect())


class QueryStage:
    """A queue, and queries on it that end with the stage; their checkpoints are in `home`.

    `published` counts the messages that a test has published.
    """

    queue = "flights"

    def __init__(self, spark: SparkSession, service: Service, home: Path) -> None:
        self.spark = spark
        self.service = service
        self.home = home
        self.client = Client(service.url)
        self.published = 0
        self.queries: list[StreamingQuery] = []

    def messages(self, **options: Any) -> DataFrame:
        given = {"url": self.service.url, "queue": self.queue, **options}
        return self.spark.readStream.format("counterpoise").options(**given).load()

    def started(self, writer: DataStreamWriter, checkpoint: str = "checkpoint") -> StreamingQuery:
        query = started(writer.option("checkpointLocation", str(self.home / checkpoint)))
        self.queries.append(query)
        return query

    def shares(self) -> dict[str, int]:
        """How many partitions each application owns, by its client name."""
        names = {flow.flow_id: flow.client_name for flow in self.client.flows(self.queue)}
        return dict(
            Counter(
                names.get(one.owner or "") or ""
                for one in self.client.partitions(self.queue)
                if one.state == "owned"
            )
        )

    def all_committed(self) -> bool:
        """Whether every message that was published is processed."""
        positions = committed(self.client, self.queue).values()
        return sum(int(position or 0) for position in positions) == self.published

    def end(self) -> None:
        for query in self.queries:
            query.stop()
        self.client.close()


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
