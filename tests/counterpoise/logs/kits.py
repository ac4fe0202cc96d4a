"""The service's side of each kind of log, for the contract suite.

A kit makes one log with the requested number of partitions. `lacks` names the promises that a kind
of log does not give; tests of these promises leave it out (`needs`):

* `idempotence`: a repeated append is dropped by (publisher, sequence)
* `atomicity`: a batch is appended as a whole or not at all
* `staleness`: an append with another partition count is refused in the log
* `shrinking`: the count can fall, and partitions outside of it can be discarded
* `trimming`: the service trims it
* `density`: positions have no holes, so that counts are exact
* `dropping`: the service can drop and make it again
* `memory`: another process can repeat an append or ask for sequences
* `microseconds`: times come back exactly, from any century
* `times`: positions are found by time
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet

from broker.demo.mock_kafka import MockKafka
from broker.logs.external import open_managed
from broker.logs.ports import LogOwner
from counterpoise.logs import Log, open_log
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.memory import MemoryLogs
from tests.kafka_server import ApacheKafka
from tests.log_support import with_logs
from tests.redis_server import RedisServer


class LogKit(Protocol):
    """One log that does not exist yet, and the service's actions on it."""

    lacks: frozenset[str]

    def open(self, timeout_seconds: float = 10) -> Log:
        """A new log object, which `close` closes; any number of them."""
        ...

    def close(self) -> None: ...

    def make(self, partition_count: int) -> None: ...

    def resize(self, partition_count: int, revision: int | None = None) -> bool: ...

    def discard(self, partitions: Sequence[int]) -> frozenset[int]: ...

    def trim(self, below: Mapping[int, str]) -> None: ...

    def position_at(self, time: float) -> Mapping[int, str]: ...

    def drop(self) -> None: ...


class _Opening:
    def __init__(self, opener: Callable[[float], Log]) -> None:
        self._opener = opener
        self._opened: list[Log] = []

    def open(self, timeout_seconds: float = 10) -> Log:
        log = self._opener(timeout_seconds)
        self._opened.append(log)
        return log

    def close(self) -> None:
        for log in self._opened:
            log.close()


class PostgresKit(_Opening):
    """The built-in log, in a database with the log's schema."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, url: str) -> None:
        super().__init__(lambda timeout: PostgresLog("flights", url, timeout_seconds=timeout))
        self._url = url

    def make(self, partition_count: int) -> None:
        owner = LogOwner("id", "flights", 1.0)
        with_logs(self._url, lambda logs: logs.ensure("builtin:flights", partition_count, owner))

    def resize(self, partition_count: int, revision: int | None = None) -> bool:
        return with_logs(
            self._url,
            lambda logs: logs.set_partition_count("builtin:flights", partition_count, revision),
        )

    def discard(self, partitions: Sequence[int]) -> frozenset[int]:
        return with_logs(self._url, lambda logs: logs.discard("builtin:flights", partitions))

    def trim(self, below: Mapping[int, str]) -> None:
        with_logs(self._url, lambda logs: logs.trim("builtin:flights", below))

    def position_at(self, time: float) -> Mapping[int, str]:
        return with_logs(self._url, lambda logs: logs.position_at("builtin:flights", time))

    def drop(self) -> None:
        with_logs(self._url, lambda logs: logs.drop("builtin:flights"))


class MemoryKit(_Opening):
    """The log in memory, for tests of consumers."""

    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._logs = MemoryLogs()
        super().__init__(
            lambda timeout: open_log("builtin:flights", self._logs.access, timeout_seconds=timeout)
        )

    def make(self, partition_count: int) -> None:
        self._logs.ensure("flights", partition_count, "id", 1.0)

    def resize(self, partition_count: int, revision: int | None = None) -> bool:
        return self._logs.set_partition_count("flights", partition_count, revision)

    def discard(self, partitions: Sequence[int]) -> frozenset[int]:
        return self._logs.discard("flights", partitions)

    def trim(self, below: Mapping[int, str]) -> None:
        self._logs.trim("flights", {number: int(at) for number, at in below.items()})

    def position_at(self, time: float) -> Mapping[int, str]:
        return self._logs.position_at("flights", time)

    def drop(self) -> None:
        self._logs.drop("flights")


class RedisKit(_Opening):
    """A log in Redis, under a unique name."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, server: RedisServer, name: str) -> None:
        self.url = server.log(name)
        super().__init__(lambda timeout: open_log(self.url, timeout_seconds=timeout))
        self._service = open_managed(self.url, None, timeout_seconds=10)
        self._opened.append(self._service)
        self.owner = LogOwner("id", "flights", 1.0)
        self._revision = 0

    def make(self, partition_count: int) -> None:
        self._service.ensure(partition_count, self.owner)

    def resize(self, partition_count: int, revision: int | None = None) -> bool:
        self._revision = self._revision + 1 if revision is None else revision
        return self._service.set_partition_count(partition_count, self._revision)

    def discard(self, partitions: Sequence[int]) -> frozenset[int]:
        return self._service.discard(partitions)

    def trim(self, below: Mapping[int, str]) -> None:
        self._service.trim(below)

    def position_at(self, time: float) -> Mapping[int, str]:
        return self._service.position_at(time)

    def drop(self) -> None:
        self._service.drop(self.owner)


class KafkaKit(_Opening):
    """A topic of Apache Kafka, under a unique name.

    Without transactions and compaction it has no holes, so promises about dense positions hold
    here too.
    """

    lacks = frozenset({"atomicity", "memory", "microseconds", "shrinking", "trimming"})

    def __init__(self, kafka: ApacheKafka | MockKafka, topic: str) -> None:
        url = kafka.log(topic)
        super().__init__(lambda timeout: open_log(url, timeout_seconds=timeout))
        self._kafka = kafka
        self._topic = topic
        self._service = open_managed(url, None, timeout_seconds=10)
        self._opened.append(self._service)

    def make(self, partition_count: int) -> None:
        if isinstance(self._kafka, MockKafka):
            self._kafka.create_topic(self._topic, partition_count)
        else:
            # By default a broker refuses times that are an hour ahead of its clock.
            any_time = {"message_timestamp_after_max_ms": 2**63 - 1}
            self._kafka.create_topic(self._topic, partition_count, **any_time)

    def resize(self, partition_count: int, revision: int | None = None) -> bool:
        raise NotImplementedError

    def discard(self, partitions: Sequence[int]) -> frozenset[int]:
        raise NotImplementedError

    def trim(self, below: Mapping[int, str]) -> None:
        raise NotImplementedError

    def position_at(self, time: float) -> Mapping[int, str]:
        return self._service.position_at(time)

    def drop(self) -> None:
        self._kafka.delete_topic(self._topic)


class MockKafkaKit(KafkaKit):
    """A topic of librdkafka's mock cluster, which finds no positions by time."""

    lacks = KafkaKit.lacks | {"times"}


KITS: Mapping[str, type[LogKit]] = {
    "builtin": PostgresKit,
    "memory": MemoryKit,
    "redis": RedisKit,
    "kafka": MockKafkaKit,
    "apache kafka": KafkaKit,
}
MARKS = {
    "apache kafka": (
        *(pytest.mark.long, pytest.mark.xdist_group("kafka")),
        pytest.mark.matrix(of="the contract of logs on Apache Kafka"),
    )
}


def kits(*promises: str) -> Iterator[ParameterSet]:
    """The kinds of log that give these promises, as parameters of a test."""
    for name, kind in KITS.items():
        if not kind.lacks.intersection(promises):
            yield pytest.param(name, marks=MARKS.get(name, ()), id=name)


def needs(*promises: str) -> pytest.MarkDecorator:
    """`@needs("trimming")`: the test runs on the kinds of log that give these promises."""
    return pytest.mark.parametrize("kit", list(kits(*promises)), indirect=True)
