"""Kafka for the tests: librdkafka's mock for the short ones, Apache Kafka for the long ones.

* `kafka` (session): the mock cluster, one for the whole run. It has many faults on demand.
* `apache_kafka` (session): a real broker (`make kafka`). Tests that use it are long, and of the
  group "kafka", so that one worker starts it for all.

Make topics under names of your own. Tests of lost brokers start an `ApacheKafka` of several nodes.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from broker.demo.mock_kafka import MockKafka
from tests.eventual import eventually
from tests.service import free_port

# Kafka's API keys of the requests for records to store and for start and end offsets, for
# `MockKafka.refuse`.
PRODUCE, LIST_OFFSETS = 0, 2

# What `make kafka` has installed.
PROGRAM = Path(sys.prefix, "kafka")
ARCHIVE = PROGRAM / "classes.jsa"
CERTIFICATE = Path(__file__).parent / "certificates/first.pem"
CLUSTER_ID = "counterpoise-tests-0001"
START_SECONDS = 240.0
ANSWER_SECONDS = 150.0
# A user of the listeners that ask for one; a password that URLs have to encode.
USER, PASSWORD = "alice", "se:cret/@"

JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

# Each listener of a node. LOST advertises an address where nothing listens, as a broker behind a
# tunnel or in a container often does.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SCRAM": "SASL_PLAINTEXT",
    "TLS": "SASL_SSL",
    "LOST": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
}

SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    # Groups may ask for shorter intervals than by default, see `configure_group`.
    **{
        f"group.{kind}.min.{interval}.ms": 1
        for kind in ("consumer", "share")
        for interval in ("heartbeat.interval", "session.timeout")
    },
    # A broker that was killed is noticed in seconds.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "replica.lag.time.max.ms": 3000,
    # Retention and compaction act soon, in topics that ask for them: retention goes by the times of
    # messages, and the tests publish old ones.
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 500,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    "log.initial.task.delay.ms": 500,
    "quota.window.num": 2,
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    **{
        f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
        for listener in ("scram", "tls")
    },
    "ssl.keystore.type": "PEM",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}


class Node:
    """One process of Kafka, broker and controller; its ports and data stay over restarts."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.directory = directory
        self.ports = {listener: free_port() for listener in LISTENERS}
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def configure(self, voters: str, replicas: int) -> subprocess.Popen[bytes]:
        """Write the configuration; returns the process that prepares the directory."""
        self.directory.mkdir()
        keystore = self.directory / "keystore.pem"
        key = CERTIFICATE.with_name("first-key.pem")
        keystore.write_text(key.read_text() + CERTIFICATE.read_text())
        bound = {name: f"{name}://{self.address(name)}" for name in LISTENERS}
        advertised = {**bound, "LOST": "LOST://127.0.0.1:1"}
        del advertised["CONTROLLER"]
        settings = {
            **SETTINGS,
            "node.id": self.number,
            "log.dirs": self.directory / "data",
            "controller.quorum.voters": voters,
            "listeners": ",".join(bound.values()),
            "advertised.listeners": ",".join(advertised.values()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in LISTENERS.items()
            ),
            "ssl.keystore.location": keystore,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min(2, replicas),
            "min.insync.replicas": min(2, replicas),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min(2, replicas),
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._settings.write_text("".join(lines))
        tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings))
        return self._java(*tool)

    def start(self, *options: str) -> None:
        """Start it, with options of the JVM; it answers somewhat later."""
        self._process = self._java(*options, "kafka.Kafka", str(self._settings))

    def stop(self) -> None:
        """End it in order. None is running afterwards."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it at once, as a crash would. None is running afterwards."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(START_SECONDS)

    @property
    def is_running(self) -> bool:
        """False after `kill`. Fails with the end of its log if it has ended by itself."""
        assert self._process is None or self._process.poll() is None, self.said()
        return self._process is not None

    def listens(self) -> bool:
        """Whether it accepts connections of clients."""
        with socket.socket() as connection:
            return self.is_running and not connection.connect_ex(
                ("127.0.0.1", self.ports["PLAINTEXT"])
            )

    def said(self) -> str:
        return (self.directory / "kafka.log").read_text()[-4000:]

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "kafka.log").open("ab") as output:
            return subprocess.Popen(java(*command), stdout=output, stderr=output)


def java(*command: str) -> list[str]:
    """The command line that runs a class of Kafka with these arguments; options of the JVM may
    stand before the class.
    """
    from counterpoise.spark.driver.environment import ensure_java

    assert PROGRAM.exists(), "Apache Kafka is missing; `make kafka` installs it"
    home = ensure_java()
    assert home is not None, "there is no Java"
    options = [*JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    if ARCHIVE.exists():
        options.append(f"-XX:SharedArchiveFile={ARCHIVE}")
    return [str(home / "bin/java"), *options, "-cp", f"{PROGRAM}/*", *command]


class ApacheKafka:
    """A cluster of real brokers on 127.0.0.1, running from construction until `close`."""

    def __init__(self, directory: Path, nodes: int = 1) -> None:
        """It answers when this returns. Each partition has a replica on every node."""
        self.nodes = [Node(1 + place, directory / f"node-{1 + place}") for place in range(nodes)]
        voters = ",".join(f"{one.number}@{one.address('CONTROLLER')}" for one in self.nodes)
        for one, preparing in [(one, one.configure(voters, nodes)) for one in self.nodes]:
            assert preparing.wait(START_SECONDS) == 0, one.said()
        self.admin = AdminClient(
            {
                "bootstrap.servers": self.servers(),
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                # Answers about a topic that was just made come from the cluster, not from before.
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        try:
            for one in self.nodes:
                one.start()
            self.until_complete()
            self._make_user()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        return self.servers()

    def servers(self, listener: str = "PLAINTEXT") -> str:
        """`host:port,…` of all nodes, for a listener of `LISTENERS`."""
        return ",".join(one.address(listener) for one in self.nodes)

    def log(self, topic: str, listener: str = "PLAINTEXT") -> str:
        """The address of the topic as a queue's `log`."""
        return f"kafka://{self.servers(listener)}/{topic}"

    def create_topic(self, topic: str, partition_count: int, **config: object) -> None:
        """Make a topic, empty; `config` are its settings, with `_` for each dot."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        made = self.admin.create_topics([NewTopic(topic, partition_count, config=settings)])
        made[topic].result(ANSWER_SECONDS)
        # The controller has it; brokers learn of it a moment later.
        eventually(lambda: self._count(topic) == partition_count)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages."""
        self.admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)
        eventually(lambda: self._count(topic) is None)

    def grow_topic(self, topic: str, partition_count: int) -> None:
        """Add partitions up to this count; messages stay."""
        added = self.admin.create_partitions([NewPartitions(topic, partition_count)])
        added[topic].result(ANSWER_SECONDS)
        eventually(lambda: self._count(topic) == partition_count)

    def delete_records(self, topic: str, partition: int, below: int) -> None:
        """Delete the messages below an offset, as retention would."""
        place = TopicPartition(topic, partition, below)
        self.admin.delete_records([place])[place].result(ANSWER_SECONDS)

    def configure_group(self, group: str, settings: Mapping[str, object]) -> None:
        """Set these settings of a group, which may not exist yet."""
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        if entries:
            one = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
            self.admin.incremental_alter_configs([one])[one].result(ANSWER_SECONDS)

    def leader(self, topic: str, partition: int) -> Node:
        """The node that leads a partition."""
        described = self.admin.list_topics(topic, ANSWER_SECONDS).topics[topic]
        number = described.partitions[partition].leader
        (node,) = (one for one in self.nodes if one.number == number)
        return node

    def until_complete(self) -> None:
        """Wait until all nodes that should run are in the cluster."""
        running = [one for one in self.nodes if one.is_running]
        eventually(lambda: all(one.listens() for one in running), START_SECONDS)
        eventually(lambda: self._brokers() == [one.number for one in running], START_SECONDS)

    def tool(self, name: str, *arguments: str) -> str:
        """What a command-line tool of Kafka prints, given by its class."""
        command = [*java(name), "--bootstrap-server", self.bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        """End the cluster; its data may be deleted afterwards."""
        for one in self.nodes:
            one.kill()

    def _brokers(self) -> list[int]:
        try:
            found = self.admin.describe_cluster(request_timeout=1).result(ANSWER_SECONDS)
        except KafkaException:
            return []
        return sorted(one.id for one in found.nodes)

    def _count(self, topic: str) -> int | None:
        described = self.admin.list_topics(topic, ANSWER_SECONDS).topics[topic]
        return None if described.error else len(described.partitions)

    def _make_user(self) -> None:
        hashing = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, hashing, PASSWORD.encode())
        self.admin.alter_user_scram_credentials([user])[USER].result(ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster
