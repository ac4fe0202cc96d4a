"""The reader that is not told where the query is, driven as PySpark 4.0 and 4.1 drive it, on a real
service.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.spark import data_source
from counterpoise.spark.offsets import Json, Slice
from counterpoise.spark.options import read_options
from counterpoise.spark.source.log_partition import LogPartition
from counterpoise.spark.source.without_limits import StreamReaderWithoutLimits
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service

CORES = 2


@pytest.fixture(autouse=True)
def _this_process_keeps_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.spark.source.reader.ignore_signals", lambda: None)


class Query:
    """A checkpoint, and the reader of each of its lives. `read`: what each micro-batch has read."""

    def __init__(self, service: Service, stack: ExitStack) -> None:
        self._service, self._stack = service, stack
        self.ends: list[Json] = []
        self.committed = 0
        self.read: list[Slice] = []
        self.reader: StreamReaderWithoutLimits

    def start(self, **options: str) -> None:
        """A new process of the source. What is planned and not committed is planned again."""
        given = read_options({"queue": "flights", "url": self._service.url, **options})
        self.reader = StreamReaderWithoutLimits(given, CORES)
        self._stack.callback(self.reader.stop)
        if self.ends:
            self.reader.partitions(self.ends[-1], self.ends[-1])
        if self.committed < len(self.ends):
            self.run()

    def ask(self) -> bool:
        """Ask for the next offset, which goes into Spark's log; False: nothing to read."""
        found = self.reader.latestOffset()
        if self.ends and found == self.ends[-1]:
            return False
        self.ends.append(found)
        return True

    def plan(self) -> list[Slice]:
        """The slices of the last micro-batch."""
        start = self.ends[-2] if len(self.ends) > 1 else self.reader.initialOffset()
        groups: Any = self.reader.partitions(start, self.ends[-1])
        assert all(isinstance(one, LogPartition) for one in groups)
        return [one for group in groups for one in group.slices]

    def run(self) -> None:
        self.read += self.plan()
        self.committed = len(self.ends)

    def has_read(self, count: int) -> bool:
        """Run a micro-batch if there is one. Whether each message up to so many was read, once."""
        if self.ask():
            self.run()
        read: dict[int, int] = {}
        for one in self.read:
            assert int(one.start) == read.get(one.partition, 0), self.read
            read[one.partition] = int(one.end)
        return sum(read.values()) == count


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
        yield client


@pytest.fixture
def query(service: Service, client: Client) -> Iterator[Query]:
    with ExitStack() as stack:
        yield Query(service, stack)


@pytest.mark.long
def test_a_new_query_is_ready_before_it_binds(
    query: Query, client: Client, service: Service
) -> None:
    with Flow("flights", url=service.url) as owner:
        until(lambda: len(owner.partitions) == 4, "the owner has all")
        query.start()
        assert query.ask()
        assert query.ends[0]["prepared"] == 1
        assert len(client.flows("flights")) == 1, "a bind takes partitions from their owner"
        assert query.plan() == []
        assert not query.ask()
        assert len(client.flows("flights")) == 2


def test_each_message_is_read_once_over_clean_restarts(
    query: Query, client: Client, service: Service
) -> None:
    for life in range(1, 4):
        publish(service, "flights", 40, first=40 * (life - 1))
        query.start()
        until(partial(query.has_read, 40 * life), "all is read")
        # Only the next question says that the sink has it.
        assert not query.ask()
        query.reader.stop()
        assert committed(client) == 40 * life


@pytest.mark.long
def test_what_the_service_was_not_told_is_not_read_again(
    query: Query, client: Client, service: Service
) -> None:
    """The process dies when Spark has the micro-batch in its commit log, and nobody was told."""
    publish(service, "flights", 40)
    query.start()
    until(lambda: query.has_read(40), "all is read")
    assert committed(client) == 0
    publish(service, "flights", 40, first=40)
    query.start()
    until(lambda: query.has_read(80), "the rest is read")
    assert len(client.flows("flights")) == 1, "the checkpoint names its instance"


@pytest.mark.long
def test_a_planned_micro_batch_is_planned_again_as_it_was(
    query: Query, client: Client, service: Service
) -> None:
    publish(service, "flights", 40)
    query.start()
    until(query.ask, "there is something to read")
    planned = query.plan()
    query.start()
    # Under the epochs of the new bind, for the same states.
    assert query.read == [replace(one, epoch=one.epoch + 1, tenure=one.epoch) for one in planned]
    assert query.has_read(40)


def test_its_limit_is_the_option(query: Query, client: Client, service: Service) -> None:
    publish(service, "flights", 40)
    query.start(maxMessagesPerTrigger="10")
    until(query.ask, "there is something to read")
    assert sum(int(one.end) - int(one.start) for one in query.plan()) == 10


@pytest.mark.parametrize(("version", "with_limits"), [("4.1.4", False), ("4.2.1", True)])
def test_the_version_decides_which_reader_it_is(
    monkeypatch: pytest.MonkeyPatch, version: str, with_limits: bool
) -> None:
    monkeypatch.setattr(data_source, "version", version)
    found = data_source.stream_reader()
    assert (found is not StreamReaderWithoutLimits) == with_limits


def committed(client: Client) -> int:
    return sum(int(one.position or 0) for one in client.partitions("flights"))
