"""A topic of Kafka between a publisher and consumers that share it: in order, each message once."""

import threading
import uuid

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Retry
from tests.counterpoise.consumer.conftest import in_order, positions
from tests.kafka_server import LIST_OFFSETS, kafka
from tests.service import eventually

__all__ = ["kafka"]


@pytest.fixture
def topic(kafka):
    name = uuid.uuid4().hex
    kafka.create_topic(name, 4)
    return name


@pytest.fixture
def client(service, kafka, topic):
    """The queue has another name than the topic, and its partition count."""
    with Client(service.url) as client:
        queue = client.create_queue(
            "flights", log=kafka.log(topic), rebalance_delay=0, max_handoff_time=600
        )
        assert queue.partition_count == 4
        yield client


@pytest.mark.long
def test_two_consumers_share_a_topic_and_hand_over_without_a_trace(client, running, publish):
    publish(range(300))
    with running(concurrency=2, commit_seconds=0.1) as one:
        eventually(lambda: len(one.partitions) == 4)
        with running() as two:
            eventually(lambda: len(two.partitions) == 2 and len(one.partitions) == 2)
            publish(range(300, 600))
            eventually(lambda: len(one.seen) + len(two.seen) == 600)
            one.stop()
            eventually(lambda: len(two.partitions) == 4)
            publish(range(600, 700))
            eventually(lambda: len(one.seen) + len(two.seen) == 700)
    assert sorted(one.numbers + two.numbers) == list(range(700))
    assert in_order(one, two)
    assert {dict(message.headers)["number"] for message in one.seen + two.seen} == {
        str(number) for number in range(700)
    }
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}
    assert sum(int(position or 0) for position in positions(client).values()) == 700


@pytest.mark.long
def test_what_is_set_aside_in_a_topic_is_handed_over_in_order(client, kafka, running, publish):
    name = uuid.uuid4().hex
    kafka.create_topic(name, 2)
    client.create_queue("retries", log=kafka.log(name), rebalance_delay=0)
    policy = Retry("retries", after_seconds=[0.5] * 100_000)
    gate = threading.Event()

    def fail(message):
        if int(message.value) == 23 and not gate.is_set():
            raise ValueError("not yet")

    held = [number for number in range(23, 300) if number % 7 == 23 % 7]
    publish(range(300))
    with running(fail, on_poison=policy) as one:
        eventually(lambda: one.consumer.set_aside == len(held))
        with running(fail, on_poison=policy) as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.stop()
            eventually(lambda: two.consumer.set_aside == len(held))
            assert not {*one.numbers, *two.numbers} & {*held}
            gate.set()
            eventually(lambda: len(one.seen) + len(two.seen) == 300)
    assert sorted(one.numbers + two.numbers) == list(range(300))
    assert in_order(one, two)
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}


@pytest.mark.long
def test_a_broker_that_is_lost_before_it_answers_is_asked_again(client, kafka, running, publish):
    publish(range(100))
    with running() as one:
        eventually(lambda: len(one.seen) == 100)
        # Both brokers are asked for starts and for ends.
        kafka.cut_instead_of_answering(LIST_OFFSETS, 4)
        publish(range(100, 200))
        eventually(lambda: len(one.seen) == 200)
    assert sorted(one.numbers) == list(range(200))
    assert in_order(one)


@pytest.mark.long
def test_a_cluster_that_is_away_for_a_while_costs_time_and_no_message(
    client, kafka, running, publish
):
    publish(range(100))
    with running(commit_seconds=0.1) as one:
        eventually(lambda: len(one.seen) == 100)
        kafka.stop_brokers()
        try:
            eventually(lambda: one.consumer.status().log_away)
        finally:
            kafka.start_brokers()
        publish(range(100, 200))
        eventually(lambda: len(one.seen) == 200)
    assert sorted(one.numbers) == list(range(200))
    assert in_order(one)
