"""Queues whose log is a topic of Kafka: the topic decides how many partitions there are.

Real services and librdkafka's mock cluster. The mock cannot add partitions to a topic, so a growing
topic is created again, empty and with more partitions.
"""

import uuid
from functools import partial

import pytest

from broker import service as broker_service
from broker.logs import external
from broker.logs.publisher import append_one
from counterpoise.client import Client
from counterpoise.errors import Invalid
from counterpoise.logs import AppendBatch, Message, StaleRouting, open_log
from tests.kafka_server import kafka
from tests.service import eventually

__all__ = ["kafka"]


@pytest.fixture
def topic(kafka):
    name = uuid.uuid4().hex
    kafka.create_topic(name, 3)
    return name


@pytest.fixture
def log(kafka, topic):
    return kafka.log(topic)


@pytest.fixture
def client(request, monkeypatch, services):
    """What finds a topic's growth comes soon; only what a test names if it is a parameter."""
    monkeypatch.setattr(broker_service, getattr(request, "param", "UPKEEP_SECONDS"), 0.2)
    (service,) = services(1)
    with Client(service.url) as client:
        yield client


def publish(log, partition, partition_count, *values):
    opened = open_log(log)
    try:
        messages = [Message(value) for value in values]
        where = [partition] * len(values)
        opened.append(AppendBatch(uuid.uuid4().hex, 0, partition_count, where, messages))
    finally:
        opened.close()


@pytest.mark.long
def test_a_queue_takes_its_partition_count_from_the_topic(client, log):
    queue = client.create_queue("orders", log=log)
    assert (queue.partition_count, queue.log) == (3, log)
    assert client.create_queue("same", 3, log=log).partition_count == 3
    with pytest.raises(Invalid, match="has its partition count, 3; leave it out"):
        client.create_queue("other", 4, log=log)


@pytest.mark.long
def test_its_count_is_changed_at_the_topic_and_nothing_is_discarded(client, log):
    client.create_queue("orders", log=log)
    for change in ({"partition_count": 4}, {"partition_count": 2, "discard": True}):
        with pytest.raises(Invalid, match="add partitions to the topic"):
            client.change_queue("orders", **change)
    publish(log, 0, 3, b"a")
    client.change_queue("orders", partition_count=3, discard=True)
    client.delete_queue("orders")
    opened = open_log(log)
    assert opened.bounds([0]).ends == {0: "1"}
    opened.close()


def test_a_topic_that_cannot_be_reached_or_is_not_there_is_refused_with_what_to_do(
    client, kafka, monkeypatch
):
    with pytest.raises(Invalid, match=r"no topic 'nowhere'"):
        client.create_queue("orders", log=kafka.log("nowhere"))
    monkeypatch.setattr(external, "CALL_SECONDS", 1.0)
    with pytest.raises(Invalid, match=r"COUNTERPOISE_LOG_URLS"):
        client.create_queue("orders", log="kafka://127.0.0.1:1/orders")
    assert [queue.name for queue in client.queues()] == []


def test_credentials_in_the_name_of_the_log_are_refused_and_not_repeated(client):
    with pytest.raises(Invalid) as refusal:
        client.create_queue("orders", log="kafka://u:geheim@127.0.0.1:9092/orders")
    assert "geheim" not in str(refusal.value)


@pytest.mark.long
@pytest.mark.matrix("client")
@pytest.mark.parametrize("client", ["UPKEEP_SECONDS", "GROWTH_SECONDS"], indirect=True)
def test_all_queues_of_a_topic_grow_with_it_and_their_flows_get_the_new_partitions(
    client, kafka, topic, log
):
    for name in ("orders", "copy"):
        client.create_queue(name, log=log, rebalance_delay=0, start="latest")
    flow = client.bind("orders", "one", lease_seconds=60).flow_id
    eventually(lambda: owned(client, flow) == [0, 1, 2])
    kafka.grow_topic(topic, 5)
    eventually(lambda: client.queue("orders").partition_count == 5)
    eventually(lambda: client.queue("copy").partition_count == 5)
    eventually(lambda: owned(client, flow) == [0, 1, 2, 3, 4])
    assert "resize" in [rebalance.trigger for rebalance in client.rebalances("orders")]
    # A publisher with the old count is refused. The new partitions begin at their start, although
    # the queue begins at the end.
    with pytest.raises(StaleRouting) as refusal:
        publish(log, 0, 3, b"a")
    assert refusal.value.partition_count == 5
    publish(log, 4, 5, b"a", b"b")
    seen = {one.partition: one for one in client.partitions("orders")}
    assert seen[4].position is None
    assert (seen[4].end, seen[4].lag) == ("2", 2)


def owned(client, flow):
    return [one.partition for one in client.partitions("orders") if one.owner == flow]


@pytest.mark.long
def test_a_topic_with_fewer_partitions_takes_none_away(client, kafka, topic, log):
    client.create_queue("orders", log=log)
    kafka.grow_topic(topic, 2)
    client.create_queue("two", log=log)
    kafka.grow_topic(topic, 4)
    eventually(lambda: client.queue("two").partition_count == 4)
    assert client.queue("orders").partition_count == 4


def test_topics_of_one_cluster_and_one_access_are_asked_together():
    urls = "kafka://u:p@*.in:9092/private kafka://v:q@*.in:9092"
    logs = external.ExternalLogs(urls)
    named = [f"kafka://{place}" for place in ("a.in,b.in/x", "b.in:9092,a.in/y", "a.in/x")]
    private, far = "kafka://a.in,b.in/private", "kafka://elsewhere/x"
    assert [*logs.clusters([*named, private, far]).values()] == [named[:2], named[2:], [private]]
    logs.close()


async def test_a_message_with_an_id_is_published_once_whichever_replica_is_called(log):
    async def publish_by_another_replica(id):
        logs = external.ExternalLogs()
        try:
            return await append_one(partial(logs.append, log), Message(b"a"), id, 3)
        finally:
            logs.close()

    said = [await publish_by_another_replica(id) for id in ("x", "x", "y", None, None)]
    assert [one.before for one in said] == [False, True, False, False, False]
    opened = open_log(log)
    assert sum(map(int, opened.bounds([0, 1, 2]).ends.values())) == 4
    opened.close()


@pytest.mark.long
def test_positions_are_found_in_the_topic(client, kafka, topic, log):
    client.create_queue("orders", log=log)
    publish(log, 1, 3, b"a", b"b", b"c")
    kafka.delete_records(topic, 1, 1)
    assert positions(client, "earliest") == {0: "0", 1: "1", 2: "0"}
    assert positions(client, "latest") == {0: "0", 1: "3", 2: "0"}
    assert positions(client, {1: "2"}) == {0: "0", 1: "2", 2: "0"}
    with pytest.raises(Invalid, match="partition 1 ends at 3"):
        client.set_positions("orders", {1: "4"})


def positions(client, where):
    client.set_positions("orders", where)
    return {one.partition: one.position for one in client.partitions("orders")}
