"""The batch reader in a real Spark, on a real service and log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from counterpoise.client import Client
from counterpoise.flow import Flow
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.starting import started
from tests.log_support import until, with_logs
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="batch reads"),
]


SOON = {"startTimeoutSeconds": "0.2"}
# The service has to answer in this time before the log cannot be reached.
LATER = {"startTimeoutSeconds": "3"}


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0)
        yield client


@pytest.fixture
def queue(service: Service, client: Client) -> str:
    until(lambda: client.log_access("flights", "publish").access)
    publish(service, "flights", 100)
    return "flights"


def load(spark: SparkSession, service: Service, **options: Any) -> DataFrame:
    reader = spark.read.format("counterpoise")
    return reader.options(**{"url": service.url, "queue": "flights", **options}).load()


def test_a_snapshot_has_all_messages_and_leaves_no_trace(
    spark: SparkSession, service: Service, client: Client, queue: str
) -> None:
    check_snapshot(spark, service, client, queue)


@pytest.mark.long
@pytest.mark.parametrize("log_settings", ["redis", "kafka"], indirect=True)
def test_so_has_one_of_a_log_elsewhere(
    spark: SparkSession,
    service: Service,
    client: Client,
    log_settings: Callable[[int], dict[str, Any]],
) -> None:
    client.create_queue("elsewhere", rebalance_delay=0, **log_settings(4))
    publish(service, "elsewhere", 100)
    check_snapshot(spark, service, client, "elsewhere")
    rows = load(
        spark,
        service,
        queue="elsewhere",
        startingPositions='{"0": "3"}',
        endingPositions='{"0": 5}',
    ).collect()
    assert [(row.partition, row.position) for row in rows] == [(0, "3"), (0, "4")]


def check_snapshot(spark: SparkSession, service: Service, client: Client, queue: str) -> None:
    messages = load(spark, service, queue=queue)
    stream = spark.readStream.format("counterpoise").options(url=service.url, queue=queue).load()
    assert messages.schema == stream.schema
    rows = messages.collect()
    assert sorted(row.value.decode() for row in rows) == sorted(f"v{n}" for n in range(100))
    assert {row.epoch for row in rows} == {None}
    assert {row.replay for row in rows} == {False}
    for partition in range(4):
        positions = [int(row.position) for row in rows if row.partition == partition]
        assert positions == list(range(len(positions)))
    assert messages.rdd.getNumPartitions() == 2
    assert client.flows(queue) == []
    assert {one.position for one in client.partitions(queue)} == {None}


def test_ranges_are_those_of_the_options_and_of_what_consumers_committed(
    spark: SparkSession, service: Service, client: Client, queue: str
) -> None:
    with Flow(queue, url=service.url) as flow:
        until(lambda: len(flow.partitions) == 4)
        flow.commit({0: "7", 1: "9"})
    positions = json.dumps({"0": "3", "2": 5})
    ends = json.dumps({"0": "committed", "2": "6"})
    rows = load(spark, service, startingPositions=positions, endingPositions=ends).collect()
    found = sorted((row.partition, int(row.position)) for row in rows)
    assert found == [(0, 3), (0, 4), (0, 5), (0, 6), (2, 5)]
    done = load(spark, service, endingPositions="committed").count()
    assert done == 16
    assert load(spark, service, startingPositions="committed").count() == 84


def test_a_read_may_begin_and_end_at_a_time_and_divide_partitions(
    spark: SparkSession, service: Service, queue: str
) -> None:
    """The messages are of one minute of 2013."""
    every = load(spark, service, startingTimestamp="2013-01-01T00:00:00Z", minPartitions=12)
    assert every.count() == 100
    assert every.rdd.getNumPartitions() >= 12
    assert load(spark, service, startingTimestamp="1h").count() == 0
    end = datetime(2013, 1, 1, 0, 1, tzinfo=UTC)
    assert load(spark, service, endingTimestamp=round(1000 * end.timestamp())).count() == 100


def test_a_queue_without_messages_has_no_rows(
    spark: SparkSession, service: Service, client: Client
) -> None:
    client.create_queue("empty", 4)
    assert load(spark, service, queue="empty").collect() == []


def test_a_partition_count_of_tasks_may_be_chosen(
    spark: SparkSession, service: Service, queue: str
) -> None:
    assert load(spark, service, maxInputPartitions=1).rdd.getNumPartitions() == 1


def failure(messages: DataFrame) -> str:
    with pytest.raises(Exception) as failed:
        messages.collect()
    return str(failed.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"leaseSeconds": "5"}, "'leaseSeconds' belongs to a stream"),
        ({"queue": "nobody"}, "'nobody'"),
        ({"startingPositions": '{"9": "0"}'}, "queue 'flights' has no partition 9 (it has 0..3)"),
        ({"endingPositions": '{"1": "1000"}'}, "1000 lies behind the end of the log"),
        ({"logUrl": "postgresql://u:hunter2@127.0.0.1:9/d", **LATER}, "no log within"),
        ({"url": "http://127.0.0.1:9", **SOON}, "no service within"),
    ],
)
def test_an_unreadable_queue_is_refused_with_advice(
    spark: SparkSession,
    service: Service,
    queue: str,
    options: dict[str, str],
    said: str,
) -> None:
    message = failure(load(spark, service, **options))
    assert said in message
    assert "hunter2" not in message


def test_a_trimmed_range_fails_unless_the_user_accepts_the_rest(
    spark: SparkSession, service: Service, client: Client, queue: str
) -> None:
    assert service.settings.database_url is not None
    url = service.settings.database_url.get_secret_value()
    with_logs(url, lambda logs: logs.trim("builtin:flights", {0: "5"}))
    whole = {"startingPositions": '{"0": "2"}', "endingPositions": '{"0": "8"}'}
    said = failure(load(spark, service, **whole))
    assert "set the option onTrimmed to 'earliest'" in said
    rows = load(spark, service, **whole, onTrimmed="earliest").collect()
    assert [int(row.position) for row in rows] == [5, 6, 7]
    # A snapshot begins with the first existing message.
    assert load(spark, service, endingPositions='{"0": "8"}').count() == 3


def test_a_schema_is_refused(spark: SparkSession, service: Service, queue: str) -> None:
    reader = spark.read.format("counterpoise").options(url=service.url, queue=queue)
    said = failure(reader.schema("key string, value string").load())
    assert "leave .schema(...) out" in said
    assert "struct<key:string,value:string>" in said


def failure_of_stream(stream: Any, checkpoint: Path) -> str:
    writer = stream.load().writeStream.format("noop")
    query = started(writer.option("checkpointLocation", str(checkpoint)))
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(240)
    return str(failed.value)


@pytest.mark.long
def test_a_stream_refuses_a_schema_and_the_options_of_a_batch_read(
    spark: SparkSession, service: Service, queue: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("counterpoise").options(url=service.url, queue=queue)
    said = failure_of_stream(stream.option("endingPositions", "committed"), tmp_path / "1")
    assert "the option 'endingPositions' belongs to a batch read" in said
    stream = spark.readStream.format("counterpoise").options(url=service.url, queue=queue)
    said = failure_of_stream(stream.schema("key string"), tmp_path / "2")
    assert "leave .schema(...) out" in said


def test_the_tasks_read_without_the_service(
    spark: SparkSession, service: Service, queue: str
) -> None:
    messages = load(spark, service)
    # Spark plans a scan once; asking for the number of partitions makes it plan.
    assert messages.rdd.getNumPartitions() == 2
    service.stop()
    assert messages.count() == 100
