"""The reader that does not know where the query is, driven as PySpark 4.0 and 4.1 drive it, on a
real service. It lives in any PySpark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.spark import data_source
from counterpoise.spark.channel.channel import DriverEnd
from counterpoise.spark.errors import CannotStart, Unsupported
from counterpoise.spark.offsets import Json, Slice
from counterpoise.spark.options import read_options
from counterpoise.spark.source.tasks import LogPartition
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

    def __init__(self, service: Service, stack: ExitStack, home: Path) -> None:
        self._service, self._stack, self._home = service, stack, home
        self.ends: list[Json] = []
        self.committed = 0
        self.read: list[Slice] = []
        self.reader: StreamReaderWithoutLimits

    def start(self, **options: str) -> None:
        """A new process of the source. What is planned and not committed is planned again."""
        given = read_options({"queue": "flights", "url": self._service.url, **options})
        self.reader = StreamReaderWithoutLimits(given, CORES, str(self._home))
        self._stack.callback(self.reader.stop)
        if self.committed < len(self.ends):
            end = self.ends[-1]
            self.reader.partitions(end, end)
            self._run(end)

    def ask(self) -> Json | None:
        """The next offset, in Spark's log; None: nothing to read."""
        found = self.reader.latestOffset()
        if self.ends and found == self.ends[-1]:
            return None
        self.ends.append(found)
        return found

    def plan(self, end: Json) -> list[Slice]:
        start = self.ends[-2] if len(self.ends) > 1 else self.reader.initialOffset()
        groups: Any = self.reader.partitions(start, end)
        assert all(isinstance(one, LogPartition) for one in groups)
        return [one for group in groups for one in group.slices]

    def _run(self, end: Json) -> None:
        self.read += self.plan(end)
        self.committed = len(self.ends)

    def step(self) -> bool:
        """A micro-batch, if there is one."""
        end = self.ask()
        if end is not None:
            self._run(end)
        return end is not None

    def positions(self) -> dict[int, list[tuple[int, int]]]:
        """What was read of each partition, in order."""
        read: dict[int, list[tuple[int, int]]] = {}
        for one in self.read:
            read.setdefault(one.partition, []).append((int(one.start), int(one.end)))
        return read

    def has_read(self, count: int) -> bool:
        """Each message once, up to so many."""
        self.step()
        read = self.positions()
        for ranges in read.values():
            assert ranges[0][0] == 0
            assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges)), read
        return sum(ranges[-1][1] for ranges in read.values()) == count


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
        yield client


@pytest.fixture
def query(service: Service, client: Client, tmp_path: Path) -> Iterator[Query]:
    with ExitStack() as stack:
        yield Query(service, stack, tmp_path)


def test_the_first_answer_takes_nothing_and_says_so(query: Query, client: Client) -> None:
    query.start()
    begun = query.ask()
    assert begun is not None
    assert begun["partitions"] == {}
    assert begun["began"]
    assert not client.flows("flights")
    assert query.plan(begun) == []
    # A sink that needs the plan of each micro-batch has this one, too.
    plan = DriverEnd(str(query.reader._home), begun["instance"]).get("plan")
    assert plan is not None
    assert plan["end"] == begun


def test_a_new_query_is_ready_before_it_binds(
    query: Query, client: Client, service: Service
) -> None:
    with Flow("flights", url=service.url) as owner:
        until(lambda: len(owner.partitions) == 4, "the owner has all")
        query.start()
        begun = query.ask()
        assert begun is not None
        assert len(query.reader.partitions(query.reader.initialOffset(), begun)) == CORES
        assert len(client.flows("flights")) == 1, "a bind takes partitions from their owner"
        assert query.ask() is None
        assert len(client.flows("flights")) == 2


def test_each_message_is_read_once_over_clean_restarts(
    query: Query, client: Client, service: Service
) -> None:
    for life in range(1, 4):
        publish(service, "flights", 40, first=40 * (life - 1))
        query.start()
        read_and_committed(query, client, 40 * life)
        query.reader.stop()
    assert sum("began" in end for end in query.ends) == 3


def test_what_the_service_did_not_get_is_not_read_again(
    query: Query, client: Client, service: Service
) -> None:
    """The process dies when Spark has the micro-batch in its commit log, and nobody was told."""
    publish(service, "flights", 40)
    query.start(instanceId="app")
    until(lambda: query.has_read(40), "all is read")
    assert _committed(client) == 0
    publish(service, "flights", 40, first=40)
    query.start(instanceId="app")
    query.step()
    # Were it killed here, the next one would know nothing but this.
    assert query.ends[-1]["partitions"] == {}
    assert _committed(client) == 40
    until(lambda: query.has_read(80), "the rest is read")
    # A partition that has nothing new is still known, for the next life.
    assert len(query.ends[-1]["partitions"]) == 4


def test_a_planned_micro_batch_is_planned_again_as_it_was(
    query: Query, client: Client, service: Service
) -> None:
    publish(service, "flights", 40)
    query.start(instanceId="app")
    until(lambda: query.has_read(40), "all is read")
    publish(service, "flights", 40, first=40)
    query.start(instanceId="app")
    # Killed within the micro-batch of the first answer, and within the first that reads.
    begun = query.ask()
    assert begun is not None
    query.start(instanceId="app")
    assert query.committed == len(query.ends)
    until(lambda: query.ask() is not None, "there is something to read")
    planned = query.plan(query.ends[-1])
    query.start(instanceId="app")
    # Under the epochs of the new bind, for the same states.
    again = [replace(one, epoch=one.epoch + 1) for one in planned]
    assert query.read[-len(planned) :] == again
    until(lambda: query.has_read(80), "each is read once")


def test_it_does_not_go_on_while_the_service_does_not_take_its_positions(
    query: Query, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(service, "flights", 40)
    query.start(instanceId="app")
    until(lambda: query.has_read(40), "all is read")
    query.start(instanceId="app", startTimeoutSeconds="1")
    begun = query.ask()
    assert begun is not None
    monkeypatch.setattr("counterpoise.flow.blocking.Flow.commit", lambda *_, **__: {})
    with pytest.raises(CannotStart, match="does not take what this query has read before"):
        query.plan(begun)


@pytest.mark.parametrize(("version", "with_limits"), [("4.1.4", False), ("4.2.1", True)])
def test_the_version_decides_which_reader_it_is(
    monkeypatch: pytest.MonkeyPatch, version: str, with_limits: bool
) -> None:
    monkeypatch.setattr(data_source, "version", version)
    plain, warm = (read_options({"queue": "flights", **more}) for more in ({}, {"warmup": "true"}))
    found = data_source.stream_reader(plain)
    assert (found is not StreamReaderWithoutLimits) == with_limits
    if with_limits:
        assert data_source.stream_reader(warm) is found
        return
    with pytest.raises(Unsupported, match=r"warmup needs PySpark 4\.2 or later, and this is 4\.1"):
        data_source.stream_reader(warm)


def read_and_committed(query: Query, client: Client, count: int) -> None:
    until(lambda: query.has_read(count), "all is read")
    until(lambda: query.step() or _committed(client) == count, "all is committed")


def _committed(client: Client) -> int:
    return sum(int(one.position or 0) for one in client.partitions("flights"))
