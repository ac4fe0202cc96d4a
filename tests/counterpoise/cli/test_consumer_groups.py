"""Moving between a queue and a consumer group: nothing is lost, and nothing comes twice."""

import json
import uuid
from collections import Counter
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from counterpoise.cli import consumer_groups
from counterpoise.cli.consumer_groups import Begin, Transfer
from counterpoise.client import Client
from counterpoise.logs import LogRefused, LogUnavailable, address
from tests.eventual import eventually
from tests.kafka_server import PASSWORD, USER

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
READER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def test_only_logs_in_kafka_have_consumer_groups(run):
    said = run("queues", "create", "a", "-p", "1", "--from-group", "etl", code=2).output
    assert "--log kafka://" in said
    assert "--from-group" in run("queues", "create", "a", "-p", "1", "--dry-run", code=2).output
    run("queues", "create", "a", "-p", "1")
    said = run("positions", "export", "a", "--to-group", "etl", code=2).output
    assert "only logs in Kafka" in " ".join(said.split())


@pytest.mark.parametrize(("error", "notes"), [(LogUnavailable, 1), (LogRefused, 0)])
def test_only_where_the_cluster_may_not_be_reached_an_error_says_what_to_check(error, notes):
    with pytest.raises(error) as failure, consumer_groups._opened("kafka://127.0.0.1:1/orders"):
        raise error("no")
    assert len(getattr(failure.value, "__notes__", ())) == notes


@pytest.mark.long
def test_a_mirror_is_switched_on_and_off(run, kafka, name):
    kafka.create_topic(name, 2)
    log = kafka.log(name)
    run("queues", "create", name, "--log", log, "--mirror", "--rebalance-delay", "0")
    run("publish", name, "-q", stdin="a\tx\nb\tx\nc\tx\n")
    run("consume", name, "-n", "3", "-q")
    positions = {
        one["partition"]: int(one["position"])
        for one in document(run, "positions", "show", name)["partitions"]
        if one["position"] is not None
    }
    eventually(lambda: mirrored(kafka, f"counterpoise.{name}", name) == positions)
    group = f"{name}-other"
    run("queues", "change", name, "--mirror-group", group)
    eventually(lambda: mirrored(kafka, group, name) == positions)
    assert f'"mirror_group": "{group}"' in run("queues", "show", name, "--json").stdout
    run("queues", "change", name, "--no-mirror")
    assert '"mirror_group": null' in run("queues", "show", name, "--json").stdout
    wrong = ("queues", "change", name, "--no-mirror", "--mirror-group", "g")
    assert "give either" in run(*wrong, code=2).output
    assert "topic of Kafka" in run("queues", "create", "b", "-p", "1", "--mirror", code=1).output


@pytest.mark.long
def test_a_group_with_offsets_of_as_many_partitions_as_may_be_is_taken_over(
    run, service, monkeypatch
):
    """What is read of the group is made up, and so is that the log is in Kafka."""
    service.wait_for_the_database()
    count = 4096
    begins = [Begin(number, "5", f"{10**18 + number}", 0) for number in range(count)]
    monkeypatch.setattr(address, "kind_of", lambda _: "kafka")
    made_up = Transfer("etl", begins)
    monkeypatch.setattr(consumer_groups, "offsets_of_group", lambda *_, **__: made_up)
    group = ("--log", "other://a", "--from-group", "etl")
    run("queues", "create", "a", "-p", f"{count}", *group, "--json")
    with Client(service.url) as client:
        assert client.queue("a").partition_count == count
        [first] = client.partitions("a", max_items=1)
    assert first.position == begins[0].begin


def mirrored(kafka, group, topic):
    """The offsets of a group in the two partitions of a topic. The mock answers to named ones."""
    places = [TopicPartition(topic, number) for number in range(2)]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        return {
            one.partition: one.offset for one in consumer.committed(places, 20) if one.offset >= 0
        }
    finally:
        consumer.close()


@pytest.fixture
def name():
    """A name of a topic, a queue and a group."""
    return uuid.uuid4().hex


@pytest.fixture
def member(apache_kafka, name):
    """`member(protocol)`: a consumer of the group on the topic; all are closed at the end."""
    members = []

    def join(protocol="classic"):
        members.append(
            Consumer(
                {
                    "bootstrap.servers": apache_kafka.bootstrap,
                    "group.id": name,
                    "group.protocol": protocol,
                    "client.id": "etl-1",
                    "auto.offset.reset": "latest",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                }
            )
        )
        members[-1].subscribe([name])
        return members[-1]

    yield join
    for one in members:
        one.close()


def publish(apache_kafka, topic, values, partition_count):
    producer = Producer({"bootstrap.servers": apache_kafka.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partition_count)
    assert producer.flush(30) == 0


def taken(member, count):
    """The next messages of the group, as text; each is committed."""
    found = []

    def take():
        message = member.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
            member.commit(message, asynchronous=False)
        return len(found) == count

    eventually(take)
    return found


def document(run, *arguments):
    return json.loads(run(*arguments, "--json").stdout)


class TestOnApacheKafka:
    pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

    @pytest.mark.matrix("protocol")
    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_moving_in_and_out_loses_and_repeats_nothing(
        self, run, apache_kafka, member, name, protocol
    ):
        apache_kafka.create_topic(name, 2)
        values = [f"m{number}" for number in range(12)]
        publish(apache_kafka, name, values, 2)
        # A consumer looks for the end of the log some time after it has the partition. So the
        # group is told where it begins.
        commit(apache_kafka, name, [(0, 0), (1, 0)])
        first = member(protocol)
        seen = taken(first, 5)
        create = ("queues", "create", name, "--log", apache_kafka.log(name), "--from-group", name)

        said = run(*create, code=1).output
        assert "1 active member (etl-1 at 127.0.0.1); stop these consumers first" in said
        dry = document(run, *create, "--dry-run")
        assert "1 active member" in dry["refused"][0]
        assert sum(one["lag"] for one in dry["partitions"]) == 7
        assert document(run, "queues", "list") == []

        first.close()
        assert "refused" not in run(*create, "--dry-run").output
        assert f"{name} created: 2 partitions" in run(*create, "--rebalance-delay", "0").output
        seen += run("consume", name, "-n", "4", "-q").stdout.split()
        positions = document(run, "positions", "show", name)["partitions"]
        assert sum(one["lag"] for one in positions) == 3

        export = ("positions", "export", name, "--to-group", name)
        dry = document(run, *export, "--dry-run")
        assert [one["begin"] for one in dry["partitions"]] == [one["position"] for one in positions]
        assert "2 offsets stored" in run(*export).output
        seen += taken(member(protocol), 3)
        assert Counter(seen) == Counter(values)

        said = run(*export, code=1).output
        assert "1 active member" in said
        assert "refused now" in run(*export, "--dry-run").output

    def test_what_is_not_passed_on_as_it_is_is_told(self, run, apache_kafka, name):
        apache_kafka.create_topic(name, 3)
        publish(apache_kafka, name, "abcdef", 3)
        log = apache_kafka.log(name)
        create = ("queues", "create", name, "--log", log, "--from-group", name)
        assert f"group '{name}' has no offset in topic" in run(*create, code=1).output
        commit(apache_kafka, name, [(0, 1), (1, 1)])
        apache_kafka.delete_records(name, 1, 2)

        said = run(*create, "--start", "latest", "--dry-run").output
        assert "1 partition (2) without offset: latest" in said
        assert "1 partition (1) whose offset is before the first message: at most 1 message" in said
        run(*create, "--start", "latest")
        shown = document(run, "positions", "show", name)["partitions"]
        assert [one["position"] for one in shown] == ["1", "2", "2"]

        other = f"{name}-other"
        run("queues", "create", other, "--log", log)
        dry = document(run, "positions", "export", other, "--to-group", name, "--dry-run")
        assert [(one["given"], one["begin"]) for one in dry["partitions"]] == [
            (None, "0"),
            (None, "2"),
            (None, "0"),
        ]

        apache_kafka.delete_topic(name)
        apache_kafka.create_topic(name, 3)
        said = run("positions", "export", name, "--to-group", name, code=1).output
        assert "ends at 0, and the position 1 is beyond that" in said

    def test_what_the_queue_has_not_yet_of_a_grown_topic_is_exported(self, run, apache_kafka, name):
        """A group without an offset there might begin at the end."""
        apache_kafka.create_topic(name, 1)
        run("queues", "create", name, "--log", apache_kafka.log(name))
        apache_kafka.grow_topic(name, 2)
        publish(apache_kafka, name, "ab", 2)
        run("positions", "export", name, "--to-group", name)
        assert committed(apache_kafka, name) == [("0", "0"), ("1", "0")]

    def test_an_export_with_bound_consumers_is_refused(self, run, start, apache_kafka, name):
        apache_kafka.create_topic(name, 1)
        publish(apache_kafka, name, "a", 1)
        run("queues", "create", name, "--log", apache_kafka.log(name), "--rebalance-delay", "0")
        consumer = start("consume", name)
        assert consumer.stdout.readline() == "a\n"
        export = ("positions", "export", name, "--to-group", name)
        assert "1 bound consumer; stop them first" in run(*export, code=1).output
        assert "refused now" in run(*export, "--dry-run").output

    def test_kafkas_own_tool_shows_the_lag_of_a_mirrored_queue(
        self, run, apache_kafka, member, name
    ):
        apache_kafka.create_topic(name, 2)
        publish(apache_kafka, name, [f"m{number}" for number in range(12)], 2)
        log = apache_kafka.log(name)
        create = ("queues", "create", name, "--log", log, "--mirror-group", name)
        run(*create, "--rebalance-delay", "0")

        def described():
            """(offset, lag) of each partition, as Kafka's tool shows them."""
            lines = apache_kafka.tool(TOOL, "--describe", "--group", name).splitlines()
            rows = [line.split() for line in lines if f" {name} " in line]
            return sorted((row[2], row[3], row[5]) for row in rows)

        def shown():
            return sorted(
                (str(one["partition"]), one["position"], str(one["lag"]))
                for one in document(run, "positions", "show", name)["partitions"]
                if one["position"] is not None
            )

        for count in (4, 5):
            run("consume", name, "-n", str(count), "-q")
            # The tool starts a JVM each time: it is asked once the offsets are there.
            eventually(lambda: committed(apache_kafka, name) == [one[:2] for one in shown()])
            assert described() == shown()
        assert sum(int(lag) for _, _, lag in shown()) == 3
        offsets = {int(partition): int(offset) for partition, offset, _ in shown()}
        eventually(lambda: stored(apache_kafka, name) == offsets)
        run("positions", "set", "--yes", name, "earliest")
        eventually(lambda: committed(apache_kafka, name) == [("0", "0"), ("1", "0")])
        assert described() == [("0", "0", "6"), ("1", "0", "6")]

        # A member of the group makes it Kafka's, until it is gone.
        intruder = member()
        eventually(lambda: intruder.poll(0.1) is None and len(intruder.assignment()) == 2)
        run("positions", "set", "--yes", name, "latest")
        said = "mirror failed at the service"
        eventually(lambda: said in run("lag", name).output)
        assert f"the consumer group '{name}' has active members" in run("lag", name).output
        assert "1 mirror failed" in run("queues", "list").output
        intruder.close()
        eventually(lambda: committed(apache_kafka, name) == [("0", "6"), ("1", "6")])
        assert described() == [("0", "6", "0"), ("1", "6", "0")]
        eventually(lambda: said not in run("lag", name).output)

    def test_a_user_without_rights_on_the_group_is_told_so(self, run, apache_kafka, name):
        apache_kafka.create_topic(name, 1)
        publish(apache_kafka, name, "a", 1)
        only = AclBinding(
            ResourceType.GROUP, name, ResourcePatternType.LITERAL,
            "User:somebody", "*", AclOperation.ALL, AclPermissionType.ALLOW,
        )  # fmt: skip
        (made,) = apache_kafka.admin.create_acls([only]).values()
        made.result(240)
        log = apache_kafka.log(name, "SCRAM")
        access = f"kafka://{USER}:{quote(PASSWORD, safe='')}@{apache_kafka.servers('SCRAM')}"
        access += "?sasl.mechanisms=SCRAM-SHA-512&security.protocol=SASL_PLAINTEXT"
        create = ("queues", "create", name, "--log", log, "--from-group", name)
        said = run(*create, code=1, environment={"COUNTERPOISE_LOG_URL": access}).output
        assert "needs Describe and Read of the group" in said


def committed(apache_kafka, group):
    """(partition, offset) of both partitions of the topic named like the group."""
    asking = Consumer({"bootstrap.servers": apache_kafka.bootstrap, "group.id": group})
    found = asking.committed([TopicPartition(group, number) for number in range(2)], timeout=60)
    asking.close()
    return [(str(one.partition), str(one.offset)) for one in found if one.offset >= 0]


def stored(apache_kafka, group):
    """The offset of each partition in Kafka's own topic of offsets, which Burrow and some exporters
    read."""
    formatter = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
    options = ("--formatter", formatter, "--from-beginning", "--timeout-ms", "15000")
    said = apache_kafka.tool(READER, "--topic", "__consumer_offsets", *options)
    offsets = {}
    # One after the other, and what the tool says of itself after them.
    while said.startswith("{"):
        record, end = json.JSONDecoder().raw_decode(said)
        said = said[end:].lstrip()
        of = record["key"]["data"]
        if of["group"] == group:
            offsets[of["partition"]] = record["value"]["data"]["offset"]
    return offsets


def commit(apache_kafka, name, places):
    """Commit an offset for each (partition, offset) of the topic; the group has no members."""
    nobody = Consumer({"bootstrap.servers": apache_kafka.bootstrap, "group.id": name})
    try:
        offsets = [TopicPartition(name, *place) for place in places]
        nobody.commit(offsets=offsets, asynchronous=False)
    finally:
        nobody.close()
