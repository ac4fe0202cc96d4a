"""Spark reads a topic of Kafka: as a stream, as a batch, and without showing its secret."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from broker.demo.mock_kafka import MockKafka
from counterpoise.client import Client
from counterpoise.publisher import Publisher
from tests.counterpoise.spark.queries import start
from tests.counterpoise.spark.starting import started
from tests.kafka_server import kafka
from tests.log_support import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["kafka"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="queries on Kafka"),
]

MESSAGES = 2000


@pytest.fixture
def client(service: Service, kafka: MockKafka) -> Iterator[Client]:
    topic = uuid.uuid4().hex
    kafka.create_topic(topic, 4)
    with Client(service.url) as client:
        client.create_queue("flights", log=kafka.log(topic), rebalance_delay=0)
        yield client


def publish(service: Service, first: int, count: int) -> None:
    with Publisher("flights", url=service.url) as publisher:
        for number in range(first, first + count):
            publisher.publish(str(number).encode(), f"k{number % 23}", {"number": str(number)})


def committed(client: Client) -> int:
    return sum(int(one.position or 0) for one in client.partitions("flights"))


def test_a_query_reads_a_topic_in_order_goes_on_after_a_restart_and_shows_no_secret(
    spark: SparkSession, service: Service, client: Client, kafka: MockKafka, tmp_path: Path
) -> None:
    rows: list[Any] = []
    # The mock does not check the password, but the client does not know that.
    secret = f"kafka://user:geheim@{kafka.bootstrap}?security.protocol=PLAINTEXT"

    def take(batch: DataFrame, _: int) -> None:
        rows.extend(batch.collect())

    def run(until_seen: int) -> None:
        options = {
            "url": service.url,
            "queue": "flights",
            "logUrl": secret,
            "maxMessagesPerTrigger": "300",
        }
        messages = spark.readStream.format("counterpoise").options(**options).load()
        query = started(
            messages.writeStream.foreachBatch(take).option(
                "checkpointLocation", str(tmp_path / "checkpoint")
            )
        )
        try:
            until(lambda: not query.isActive or committed(client) == until_seen)
            assert query.exception() is None
            assert "geheim" not in str(query.recentProgress)
            assert "geheim" not in str(query._jsq.toString())
        finally:
            query.stop()

    publish(service, 0, MESSAGES)
    run(MESSAGES)
    publish(service, MESSAGES, 200)
    run(MESSAGES + 200)
    assert sorted(int(row.value) for row in rows) == list(range(MESSAGES + 200))
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(int(row.value))
        assert row.headers == {"number": row.value.decode()}
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    written = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert written
    assert all(b"geheim" not in path.read_bytes() for path in written)

    batch = spark.read.format("counterpoise").options(url=service.url, queue="flights").load()
    assert batch.count() == MESSAGES + 200


def test_messages_of_others_may_be_larger_than_ours(
    spark: SparkSession, service: Service, client: Client, kafka: MockKafka, tmp_path: Path
) -> None:
    large = 20 * 1000 * 1000
    sent = {bytes([number]): large + number for number in range(4)}
    topic = client.queue("flights").log.rpartition("/")[2]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": large + 2**20})
    for number, (byte, size) in enumerate(sent.items()):
        producer.produce(topic, byte * size, partition=number)
    assert producer.flush(60) == 0
    seen: dict[bytes, int] = {}

    def take(batch: DataFrame, _: int) -> None:
        rows = batch.selectExpr("length(value) size", "substring(value, -1, 1) last").collect()
        seen.update({bytes(row["last"]): row["size"] for row in rows})

    query = start(spark, take, tmp_path / "checkpoint", url=service.url, queue="flights")
    try:
        until(lambda: not query.isActive or committed(client) == len(sent))
        assert query.exception() is None
    finally:
        query.stop()
    assert seen == sent
