"""Queries that would lose messages are refused as they start, before they take anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import IllegalArgumentException

from counterpoise.client import Client
from counterpoise.spark.driver.refusals import newest_batch
from counterpoise.spark.errors import Unsupported
from tests.counterpoise.spark.queries import committed, publish
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="queries that are refused")]

Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, service: Service, client: Client, tmp_path: Path) -> Start:
    """`start(format, checkpoint, …)` starts a query that reads a queue of two partitions."""
    client.create_queue("flights", 2, rebalance_delay=0)

    def start_query(kind: str, checkpoint: str, **options: str) -> StreamingQuery:
        stream = spark.readStream.format("counterpoise").options(url=service.url, queue="flights")
        writer = stream.load().writeStream.format(kind).options(**options)
        return started(writer.option("checkpointLocation", str(tmp_path / checkpoint)))

    return start_query


def test_the_newest_batch_is_read_from_the_names_of_sparks_logs() -> None:
    names = ["0", "9.compact", "10", "10.tmp", ".11.crc", "_counterpoise-7f", "x"]
    assert newest_batch(names) == 10
    assert newest_batch(["9.compact", "8"]) == 9
    assert newest_batch(["_counterpoise-7f"]) is None


def read_all(query: StreamingQuery, client: Client, count: int) -> None:
    """Wait until so many messages are committed, and stop."""
    try:
        until(
            lambda: sum(int(at or 0) for at in committed(client, "flights").values()) == count,
            f"{count} messages are committed",
        )
    finally:
        query.stop()


@pytest.mark.long
def test_a_directory_of_files_belongs_to_one_query(
    spark: SparkSession, service: Service, client: Client, start: Start, tmp_path: Path
) -> None:
    """Spark's file sink skips numbers of micro-batches that another query has written there."""
    files = tmp_path / "files"
    metadata = files / "_spark_metadata"

    def refused(checkpoint: str, why: str) -> None:
        before = committed(client, "flights"), client.rebalances("flights")
        with pytest.raises(Unsupported, match=why):
            start("parquet", checkpoint, path=str(files))
        assert (committed(client, "flights"), client.rebalances("flights")) == before
        until(lambda: not spark.streams.active, "it has ended")

    def rows() -> Any:
        return spark.read.parquet(str(files)).select("partition", "position").distinct().count()

    publish(service, "flights", 20)
    first = start("parquet", "first", path=str(files))
    read_all(first, client, 20)
    assert rows() == 20
    publish(service, "flights", 20, first=20)
    refused("second", "the mark of a query with another checkpoint")
    # The query itself goes on, also where an older release has made no mark.
    for mark in metadata.glob("*_counterpoise-*"):
        mark.unlink()
    refused("second", "batches up to 0, which this checkpoint did not write")
    read_all(start("parquet", "first", path=str(files)), client, 40)
    assert rows() == 40
    (mark,) = metadata.glob("_counterpoise-*")
    assert mark.name == f"_counterpoise-{first.id}"
    refused("second", "Give each application a directory of its own")
    publish(service, "flights", 20, first=40)
    read_all(start("parquet", "second", path=str(tmp_path / "others")), client, 60)
    assert spark.read.parquet(str(tmp_path / "others")).count() == 20


@pytest.mark.long
def test_a_pattern_reads_files_of_unfinished_micro_batches_too(
    spark: SparkSession, service: Service, client: Client, start: Start, tmp_path: Path
) -> None:
    """So docs/sinks.md says to read each directory by its own path."""
    files = tmp_path / "files"
    publish(service, "flights", 20)
    read_all(start("parquet", "first", path=str(files)), client, 20)
    finished = sorted(files.glob("part-*.parquet"))
    shutil.copy(finished[0], files / "part-unfinished.snappy.parquet")
    assert spark.read.parquet(str(files)).count() == 20
    assert spark.read.parquet(f"{tmp_path}/file*").count() > 20


@pytest.mark.long
def test_a_trigger_interval_in_which_the_lease_ends_is_refused(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2)
    given = {"url": service.url, "queue": "flights", "maxBatchSeconds": "60"}
    writer = spark.readStream.format("counterpoise").options(**given).load().writeStream
    writer = writer.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Unsupported, match=r"interval of 60 s .* maxBatchSeconds \(60\)"):
        writer.trigger(processingTime="1 minute").start()
    assert not client.rebalances("flights"), "no flow was bound"
    started(writer.trigger(processingTime="59 seconds")).stop()


@pytest.mark.long
def test_asynchronous_tracking_of_progress_is_refused(client: Client, start: Start) -> None:
    with pytest.raises(Unsupported, match="Leave the option asyncProgressTrackingEnabled out"):
        start("noop", "asynchronous", asyncProgressTrackingEnabled="true")
    assert not client.rebalances("flights"), "no flow was bound"


@pytest.mark.long
def test_spark_itself_refuses_it_for_sinks_that_users_can_write(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    stream = spark.readStream.format("counterpoise").options(url=service.url, queue="flights")
    writer = stream.load().writeStream.foreachBatch(lambda batch, number: None)
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    with pytest.raises(IllegalArgumentException, match="does not support async"):
        writer.option("checkpointLocation", str(tmp_path / "refused")).start()


@pytest.mark.long
def test_without_it_such_a_query_runs(client: Client, start: Start, service: Service) -> None:
    publish(service, "flights", 10)
    query = start("noop", "checkpoint")
    try:
        until(lambda: query.recentProgress or query.exception(), "without it all is well")
        assert query.exception() is None
    finally:
        query.stop()
