"""The plain consumer on a real queue: each message once, in order, while consumers come and go."""

import time
from collections import defaultdict

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.errors import FlowGone, QueueNotFound
from counterpoise.logs import LogError
from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import InThread, positions
from tests.counterpoise.leases import LONG_SECONDS, Health
from tests.service import eventually


class Running(InThread):
    """The messages that it has handled: (key, number) in order."""

    def __init__(self, url, slow_seconds=0.0, **options):
        super().__init__()
        self.handled: list = []
        self.slow_seconds = slow_seconds
        self.consumer = Consumer("flights", self.handle, url=url, **options)

    def handle(self, owned, batch):
        time.sleep(self.slow_seconds)
        for message in batch.to_pylist():
            self.handled.append((message["key"], int(message["value"])))


def in_order(*consumers):
    by_key = defaultdict(list)
    for consumer in consumers:
        for key, number in consumer.handled:
            by_key[key].append(number)
    return all(numbers == sorted(numbers) for numbers in by_key.values())


def numbers(*consumers):
    return sorted(number for one in consumers for _, number in one.handled)


def test_all_is_handled_once_in_order_and_committed(service, client, publish):
    publish(range(500))
    with Running(service.url, max_messages=50) as one:
        eventually(lambda: len(one.handled) == 500)
        publish(range(500, 600))
        eventually(lambda: len(one.handled) == 600)
        one.stop()
    assert numbers(one) == list(range(600))
    assert in_order(one)
    with Running(service.url) as again:
        publish(range(600, 610))
        eventually(lambda: len(again.handled) == 10)
    assert numbers(again) == list(range(600, 610))


@pytest.mark.long
def test_consumers_come_and_go_without_a_message_twice(service, client, publish):
    publish(range(300))
    with Running(service.url, slow_seconds=0.02, max_messages=20) as first:
        eventually(lambda: len(first.partitions) == 4)
        with Running(service.url, max_messages=20) as second:
            eventually(lambda: len(second.partitions) == 2 and len(first.partitions) == 2)
            publish(range(300, 600))
            eventually(lambda: second.handled)
            first.stop()
            eventually(lambda: len(second.partitions) == 4)
            eventually(lambda: len(first.handled) + len(second.handled) >= 600)
    assert numbers(first, second) == list(range(600))
    assert in_order(first)
    assert in_order(second)
    outcomes = {m.outcome for r in client.rebalances("flights") for m in r.moves}
    assert outcomes <= {"initial", "graceful"}


@pytest.mark.long
def test_retiring_partitions_are_worked_to_their_end(service, client, publish):
    publish(range(400))
    with Running(service.url, slow_seconds=0.01, max_messages=20) as one:
        eventually(lambda: one.handled)
        client.change_queue("flights", partition_count=1)
        eventually(lambda: client.queue("flights").scale_status == "Ready")
        eventually(lambda: len(one.handled) == 400)
        eventually(lambda: client.queue("flights").operational_partition_count == 1)
    assert numbers(one) == list(range(400))


@pytest.mark.long
def test_a_queue_that_starts_at_the_latest_skips_what_was_before(service, client, publish):
    publish(range(20))
    client.change_queue("flights", start="latest")
    publish(range(20, 40))
    with Running(service.url) as one:
        eventually(lambda: len(one.handled) == 20)
    assert numbers(one) == list(range(20, 40))


def test_it_ends_after_a_limit_and_not_one_message_later(service, client, publish):
    publish(range(50))
    with Running(service.url, limit=17) as one:
        one.thread.join(240)
    with Running(service.url, limit=33) as another:
        another.thread.join(240)
    assert (len(one.handled), len(another.handled)) == (17, 33)
    assert numbers(one, another) == list(range(50))


@pytest.mark.long
def test_an_exception_of_the_program_ends_it_and_loses_nothing(service, client, publish):
    publish(range(20))

    def fail(owned, batch):
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        Consumer("flights", fail, url=service.url).run()
    assert client.flows("flights") == []
    with Running(service.url) as one:
        eventually(lambda: len(one.handled) == 20)


def test_an_unknown_or_deleted_queue_ends_the_consumer(service, client, caplog):
    with pytest.raises(QueueNotFound):
        Consumer("trains", lambda owned, batch: None, url=service.url).run()
    one = Running(service.url)
    one.thread.start()
    eventually(lambda: one.partitions)
    client.delete_queue("flights", force=True)
    one.thread.join(240)
    # It ends, and tells why; only what is wrong from the beginning is raised.
    assert not one.thread.is_alive()
    assert one.error is None
    assert one.consumer.flow.gone_reason == "queue_not_found"
    assert caplog.messages[-1] == "queue flights was deleted; the consumer has ended"


def test_a_handler_that_misses_a_queue_is_not_taken_for_the_end(service, client, publish):
    publish(range(1))

    def handle(owned, batch):
        client.queue("trains")

    with pytest.raises(QueueNotFound):
        Consumer("flights", handle, url=service.url).run()


@pytest.mark.long
def test_a_recreated_queue_is_not_mistaken_for_the_consumed_one(
    service, client, publish, migrated_url
):
    publish(range(20))
    health = Health()
    one = Running(service.url, lease_seconds=LONG_SECONDS, renew_while=health)
    one.thread.start()
    try:
        eventually(lambda: {number for _, number in one.handled} == set(range(20)))
        health.end_lease(migrated_url, one.consumer.flow.flow_id)
        client.delete_queue("flights")
        client.create_queue("flights", 4, rebalance_delay=0)
        publish(range(30))
        health.recover()
        eventually(lambda: not one.thread.is_alive())
    finally:
        one.consumer.stop(now=True)
        one.join()
    assert isinstance(one.error, FlowGone)
    assert one.error.reason == "queue_recreated"
    assert set(positions(client).values()) == {None}
    with Running(service.url) as another:
        eventually(lambda: len(another.handled) == 30)


def test_the_logs_address_in_the_environment_wins(service, client, publish, monkeypatch):
    publish(range(1))
    monkeypatch.setenv("COUNTERPOISE_LOG_URL", "rubbish")
    with pytest.raises(LogError, match=r"scheme|Postgres URL"):
        Consumer("flights", lambda owned, batch: None, url=service.url, limit=1).run()


@pytest.mark.long
def test_it_goes_on_after_the_service_was_away(served):
    with Client(served.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0)
    with Publisher("flights", url=served.url) as publisher:
        for number in range(10):
            publisher.publish(str(number).encode(), key=str(number))
    with Running(served.url) as one:
        eventually(lambda: len(one.handled) == 10)
        served.kill()
        eventually(lambda: one.consumer.flow.last_error is not None)
        served.start()
        with Publisher("flights", url=served.url) as publisher:
            for number in range(10, 20):
                publisher.publish(str(number).encode(), key=str(number))
        eventually(lambda: len(one.handled) == 20)
    assert numbers(one) == list(range(20))
