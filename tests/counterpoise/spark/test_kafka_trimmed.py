"""Apache Kafka has deleted messages in front of a position: the option `onTrimmed` decides.

A micro-batch fails, or goes on with the rest. So does the read of a snapshot.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from counterpoise.client import Client
from tests.counterpoise.spark.queries import Collected, committed, start
from tests.counterpoise.spark.waiting import until
from tests.kafka_server import ApacheKafka
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The Spark of this group is warm; a broker starts sooner than another Spark.
pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="queries on Kafka"),
]

MESSAGES = 10
BEGIN = {0: "2", 1: "2"}
END = {0: "10", 1: "10"}
FIRST = 6
"""Partition 0 begins there by now."""


@pytest.fixture
def options(service: Service, client: Client, apache_kafka: ApacheKafka) -> dict[str, str]:
    """Those of a read of a topic of two partitions, the first of which has lost messages that the
    queue has not read.
    """
    topic = uuid.uuid4().hex
    apache_kafka.create_topic(topic, len(BEGIN))
    client.create_queue("flights", log=apache_kafka.log(topic), rebalance_delay=0)
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap})
    for partition in BEGIN:
        for number in range(MESSAGES):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(60) == 0
    client.set_positions("flights", BEGIN)
    apache_kafka.delete_records(topic, 0, FIRST)
    return {"url": service.url, "queue": "flights"}


def read(sink: Collected) -> dict[int, list[int]]:
    """The positions of the rows, by their partition, in the order of the rows."""
    found: dict[int, list[int]] = {}
    for row in sink.rows:
        assert row.value.decode() == row.position
        found.setdefault(row.partition, []).append(int(row.position))
    return found


def test_a_query_fails_and_goes_on_with_the_rest_if_it_is_told_to(
    spark: SparkSession, client: Client, options: dict[str, str], tmp_path: Path
) -> None:
    lost, rest = Collected(), Collected()
    query = start(spark, lost, tmp_path / "checkpoint", **options)
    until(lambda: not query.isActive, "the query ends")
    said = str(query.exception())
    assert "partition 0 has been trimmed up to position 6, so it cannot be read from 2" in said
    assert "If not, messages were lost unread" in said
    assert "set the option onTrimmed to 'earliest' to continue with the rest" in said
    # The micro-batch failed as a whole.
    assert read(lost) == {}
    assert committed(client, "flights") == BEGIN
    again = start(spark, rest, tmp_path / "checkpoint", **options, onTrimmed="earliest")
    try:
        until(lambda: not again.isActive or committed(client, "flights") == END, "all committed")
        assert again.exception() is None
        assert read(rest) == {0: [*range(FIRST, MESSAGES)], 1: [*range(2, MESSAGES)]}
    finally:
        again.stop()


def test_small_micro_batches_pass_over_what_is_gone(
    spark: SparkSession, client: Client, options: dict[str, str], tmp_path: Path
) -> None:
    rows = Collected()
    options = {**options, "onTrimmed": "earliest", "maxMessagesPerTrigger": "4"}
    query = start(spark, rows, tmp_path / "checkpoint", **options)
    try:
        until(lambda: not query.isActive or committed(client, "flights") == END, "all committed")
        assert query.exception() is None
        assert read(rows) == {0: [*range(FIRST, MESSAGES)], 1: [*range(2, MESSAGES)]}
    finally:
        query.stop()


def test_the_read_of_a_snapshot_fails_unless_the_rest_is_enough(
    spark: SparkSession, options: dict[str, str]
) -> None:
    whole = {"startingPositions": '{"0": "2"}', "endingPositions": '{"0": "8"}'}
    reader = spark.read.format("counterpoise").options(**options, **whole)
    with pytest.raises(Exception, match="set the option onTrimmed to 'earliest'"):
        reader.load().collect()
    rows = reader.option("onTrimmed", "earliest").load().collect()
    assert [int(row.position) for row in rows if row.partition == 0] == [6, 7]
