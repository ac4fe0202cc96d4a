"""Two applications with a fenced sink share a topic of Apache Kafka: in the result each message is
there once, in the order of its key, though one is killed amid its writing and the other drained.

The topic has holes: another program's transactions are aborted between the messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.sink.test_kills import Database, SinkStage
from tests.counterpoise.spark.stage import staged
from tests.counterpoise.spark.waiting import until
from tests.kafka_server import ApacheKafka
from tests.service import Service

# The drivers of this group are warm; a broker starts sooner than they.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("drivers 2")]

PARTITIONS = 6


class TopicStage(SinkStage):
    """Its queue is on a topic, which has holes: messages cannot be counted from offsets."""

    def committed(self) -> int:
        lag = sum(one.lag or 0 for one in self.client.partitions("flights"))
        return self.published if lag == 0 else 0


@pytest.fixture
def stage(
    service: Service, drivers: Drivers, tmp_path: Path, database_url: str
) -> Iterator[TopicStage]:
    results = Database(database_url)
    with results.connection, staged(TopicStage, service, tmp_path, drivers, results) as stage:
        yield stage


def abort_one(kafka: ApacheKafka, topic: str) -> None:
    """Leave a hole in each partition: a message that is never read, and a marker."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, "gone", partition=partition)
    assert producer.flush(60) == 0
    producer.abort_transaction(60)


@pytest.mark.matrix(of="crashes of writers")
def test_one_is_killed_and_one_drained_and_each_message_is_there_once(
    stage: TopicStage, apache_kafka: ApacheKafka
) -> None:
    topic = uuid.uuid4().hex
    apache_kafka.create_topic(topic, PARTITIONS)
    stage.client.create_queue(
        "flights", log=apache_kafka.log(topic), rebalance_delay=0, max_handoff_time=600
    )
    stage.publish(60)
    killed = stage.fenced("killed", leaseSeconds=600)
    drained = stage.fenced("drained", leaseSeconds=600)
    killed.start()
    drained.start()
    until(lambda: stage.shared("killed", "drained"), "shared")
    stage.until_idle()
    abort_one(apache_kafka, topic)
    killed.hold("inside")
    first = stage.published
    stage.publish(60)
    until(killed.held, "it holds inside its first transaction")
    killed.kill()
    stage.unbind("killed")
    until(lambda: stage.owned("drained") == PARTITIONS, "the other takes over")
    until(stage.all_written, "the other writes the rest")
    assert not stage.partitions_with(first, "killed")
    killed.go_on()
    killed.start()
    until(lambda: stage.shared("killed", "drained"), "shared")
    abort_one(apache_kafka, topic)
    stage.publish(60)
    (flow,) = [one for one in stage.client.flows("flights") if one.client_name == "drained"]
    stage.client.drain("flights", flow.flow_id)
    until(lambda: stage.owned("killed") == PARTITIONS, "the first owns all")
    drained.drained_from_outside()
    stage.publish(60)
    abort_one(apache_kafka, topic)
    stage.check()
    assert killed.stop() == 0
    assert {one.application for one in stage.results.events()} == {"killed", "drained"}
