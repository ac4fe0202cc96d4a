"""The source in a real Spark, on a real service and log, in the process of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from counterpoise.client import Client
from tests.counterpoise.spark.queries import Collected, committed, publish, start
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_messages_arrive_once_with_all_columns_and_are_committed(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    publish(service, "flights", 100)
    sink = Collected()
    options: dict[str, str | int] = {
        "url": service.url,
        "queue": "flights",
        "maxMessagesPerTrigger": 30,
    }
    query = start(spark, sink, tmp_path / "checkpoint", **options)
    try:
        until(lambda: len(sink.rows) >= 100 or query.exception(), "all messages")
        assert query.exception() is None
        # The position of the last micro-batch is committed although no more messages arrive.
        until(
            lambda: sum(int(at or 0) for at in committed(client, "flights").values()) == 100,
            "the commit of the last micro-batch",
        )
        progress = json.loads(query.lastProgress.json if query.lastProgress else "{}")
    finally:
        query.stop()
    assert sorted(row.value.decode() for row in sink.rows) == sorted(f"v{n}" for n in range(100))
    for row in sink.rows:
        number = int(row.value[1:])
        assert row.key == f"k{number % 17}"
        assert row.headers == ({"n": str(number)} if number % 2 else None)
        assert row.epoch == 1
        assert row.published_at.second == number % 60
    for partition in range(4):
        positions = [int(row.position) for row in sink.rows if row.partition == partition]
        assert positions == list(range(len(positions)))
    assert max(sink.partitions_read) <= 2
    assert len(sink.partitions_read) >= 4
    assert progress["sources"][0]["latestOffset"]["owned"] == 4
    until(lambda: not client.flows("flights"), "the flow unbinds when the query stops")


@pytest.mark.matrix("log_settings")
@pytest.mark.long
def test_a_query_goes_on_where_it_stopped_and_available_now_drains(
    spark: SparkSession,
    service: Service,
    client: Client,
    tmp_path: Path,
    log_settings: Callable[[int], dict[str, Any]],
) -> None:
    client.create_queue("flights", rebalance_delay=0.2, **log_settings(4))
    publish(service, "flights", 50)
    sink = Collected()

    def drain() -> None:
        stream = spark.readStream.format("counterpoise")
        stream = stream.options(url=service.url, queue="flights", maxMessagesPerTrigger=10)
        writer = stream.load().writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = started(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        assert query.awaitTermination(240)
        until(lambda: not client.flows("flights"), "the flow unbinds")

    drain()
    assert len(sink.rows) == 50
    assert sum(int(at or 0) for at in committed(client, "flights").values()) == 50
    publish(service, "flights", 20, first=50)
    drain()
    assert sorted(int(row.value[1:]) for row in sink.rows) == list(range(70))


def test_the_secret_way_to_the_log_is_not_shown(
    spark: SparkSession, service: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"url": service.url, "queue": "none", "logUrl": "postgresql://u:hunter2@h/d"}
    stream = spark.readStream.format("counterpoise").options(**options).load()
    stream.explain(True)
    out, err = capfd.readouterr()
    assert "counterpoise" in out
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the option 'queue' is missing"),
        ({"queue": "q", "leaseSecond": "3"}, "did you mean 'leaseSeconds'"),
        ({"queue": "q", "leaseSeconds": "soon"}, "is seconds (1..3600), not 'soon'"),
        ({"queue": "q", "url": "ftp://localhost:8640"}, "http:// or https://"),
    ],
)
def test_wrong_options_are_refused_when_the_stream_is_loaded(
    spark: SparkSession, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        spark.readStream.format("counterpoise").options(**options).load()
    assert said in str(refused.value)


@pytest.mark.matrix(of="queries that are refused")
@pytest.mark.long
def test_an_unknown_queue_fails_the_query(
    spark: SparkSession, service: Service, tmp_path: Path
) -> None:
    query = start(spark, Collected(), tmp_path / "checkpoint", url=service.url, queue="nobody")
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(240)
    assert "nobody" in str(failed.value)


@pytest.mark.matrix(of="queries that are refused")
@pytest.mark.long
def test_a_wrong_address_fails_the_query_after_the_time_for_starting(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"url": "http://127.0.0.1:9", "queue": "q", "startTimeoutSeconds": "1"}
    query = start(spark, Collected(), tmp_path / "checkpoint", **options)
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(240)
    assert "http://127.0.0.1:9" in str(failed.value)
    assert "COUNTERPOISE_URL" in str(failed.value)


@pytest.mark.matrix(of="queries that are refused")
@pytest.mark.long
def test_a_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, service: Service, client: Client, tmp_path: Path
) -> None:
    for queue in ("first", "second"):
        client.create_queue(queue, 1, rebalance_delay=0)
    publish(service, "first", 3)
    sink = Collected()
    query = start(spark, sink, tmp_path / "checkpoint", url=service.url, queue="first")
    until(lambda: sink.rows, "the messages")
    query.stop()
    query = start(spark, sink, tmp_path / "checkpoint", url=service.url, queue="second")
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(240)
    assert "belongs to queue 'first'" in str(failed.value)
