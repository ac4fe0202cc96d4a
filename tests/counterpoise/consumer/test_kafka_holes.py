"""Plain consumers of a topic of Apache Kafka that loses messages before they are read.

tests/faults/test_kafka.py plays the rest amid kills.
"""

import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer

from counterpoise.client import Client
from counterpoise.logs import PositionTrimmed, open_log
from counterpoise.logs.kafka import reader
from tests.counterpoise.consumer.conftest import in_order, positions
from tests.log_support import texts
from tests.service import eventually

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

HOURS = 40
KEYS = 4


@pytest.fixture
def topic(request, apache_kafka):
    """A topic of one partition, with the settings of the test."""
    name = uuid.uuid4().hex
    apache_kafka.create_topic(name, 1, **getattr(request, "param", {}))
    return name


@pytest.fixture
def client(service, apache_kafka, topic):
    with Client(service.url) as client:
        client.create_queue("flights", log=apache_kafka.log(topic), rebalance_delay=0)
        yield client


@pytest.fixture
def log(apache_kafka, topic):
    log = open_log(apache_kafka.log(topic), timeout_seconds=30)
    yield log
    log.close()


@pytest.fixture
def send(apache_kafka, topic):
    """`send(numbers)`: one message each, an hour after the one before, with one of KEYS keys.

    Segments end by the times of their messages, so that each message has one.
    """
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap})
    began = datetime.now(UTC) - timedelta(hours=HOURS + 1)

    def send_numbers(numbers):
        for number in numbers:
            at = int((began + timedelta(hours=number)).timestamp() * 1000)
            producer.produce(topic, str(number), f"k{number % KEYS}", timestamp=at)
            # A batch is in one segment.
            assert producer.flush(30) == 0

    return send_numbers


COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.001,
    "segment_ms": 1000,
    "delete_retention_ms": 0,
}


@pytest.mark.parametrize("topic", [COMPACTED], indirect=True)
def test_compaction_amid_a_reading_leaves_the_newest_of_each_key_in_order(
    client, send, running, log, monkeypatch
):
    """The consumer holds at its first message until those that it has not fetched are compacted.

    It fetches nothing while it has anything that it did not handle. What was there at first may be
    compacted before it comes.
    """
    for properties in (reader.CONSUMER, reader.STAYING, reader.SHARED):
        monkeypatch.setitem(properties, "queued.min.messages", 1)
    holding, compacted = threading.Event(), threading.Event()

    def hold(_):
        holding.set()
        assert compacted.wait(240)

    send(range(HOURS // 2))
    with running(hold, max_messages=2, commit_seconds=0.1) as one:
        assert holding.wait(240)
        send(range(HOURS // 2, HOURS))
        # The last segment is not compacted, the one before it may wait.
        eventually(lambda: len(texts(log, 0)) <= 2 * KEYS)
        compacted.set()
        eventually(lambda: positions(client) == {0: str(HOURS)})
        eventually(lambda: [each.lag for each in client.partitions("flights")] == [0])
    assert in_order(one)
    assert len(set(one.numbers)) == len(one.numbers) < HOURS
    assert set(range(HOURS - KEYS, HOURS)) <= set(one.numbers)


def test_a_position_that_retention_has_passed_ends_the_consumer_with_where_to_go_on(
    client, apache_kafka, topic, send, running
):
    send(range(4))
    with running(commit_seconds=0.1) as one:
        eventually(lambda: positions(client) == {0: "4"})
    send(range(4, 9))
    apache_kafka.delete_records(topic, 0, 6)
    with running() as two:
        two.join()
        gone, two.error = two.error, None
    assert isinstance(gone, PositionTrimmed)
    assert (gone.position, gone.first) == ("4", "6")
    client.set_positions("flights", {0: gone.first})
    with running(commit_seconds=0.1) as three:
        eventually(lambda: positions(client) == {0: "9"})
    assert one.numbers + two.numbers + three.numbers == [0, 1, 2, 3, 6, 7, 8]


def test_behind_an_aborted_transaction_the_end_is_reached_without_a_message(
    client, apache_kafka, topic, running
):
    """Of three messages and two markers one message is read, and no lag remains."""
    producer = Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(30)
    with running(commit_seconds=0.1) as one:
        for values, end in (
            (["0"], producer.commit_transaction),
            (["1", "2"], producer.abort_transaction),
        ):
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value)
            assert producer.flush(30) == 0
            end(30)
        eventually(lambda: positions(client) == {0: "5"})
        eventually(lambda: [each.lag for each in client.partitions("flights")] == [0])
    assert one.numbers == [0]
