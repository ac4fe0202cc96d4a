"""Queries that stop, drain and come back, in a real Spark on a real service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.spark import DrainTimedOut, drain
from tests.counterpoise.spark.application import until
from tests.counterpoise.spark.test_source import Collected, committed, publish
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HOUR = "1 hour"


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


class Held(Collected):
    """A sink that waits when told to, after it has the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.batches = 0

    def __call__(self, batch: Any, number: int) -> None:
        self.rows.extend(batch.select("partition", "position", "epoch", "value").collect())
        self.batches += 1
        assert self.go_on.wait(60)


@pytest.fixture
def start(
    spark: SparkSession, service: Service, tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """Start a query on the queue `flights`; whatever still runs is stopped in the end."""
    queries: list[StreamingQuery] = []

    def start(
        sink: Callable[..., None],
        trigger: str = "0 seconds",
        name: str = "checkpoint",
        **options: str | int,
    ) -> StreamingQuery:
        stream = spark.readStream.format("counterpoise")
        stream = stream.options(url=service.url, queue="flights", **options)
        writer = stream.load().writeStream.foreachBatch(sink).trigger(processingTime=trigger)
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def all_committed(client: Client, count: int) -> bool:
    return sum(int(at or 0) for at in committed(client, "flights").values()) == count


def test_what_is_in_the_commit_log_is_committed_without_waiting_for_the_trigger(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=60)
    publish(service, "flights", 20)
    sink = Held()
    query = start(sink, HOUR)
    until(lambda: all_committed(client, 20), "the commit, an hour before Spark asks")
    # Somebody joins: his share is released now, not in an hour.
    with Flow("flights", url=service.url) as other:
        until(lambda: len(other.partitions) == 1, "the release", 10)
        (held,) = other.partitions.values()
        assert held.handed_over == "graceful"
        assert int(held.position or 0) > 0
    query.stop()
    until(lambda: not client.flows("flights"), "the flow unbinds")
    assert sink.batches == 1


def test_a_stopped_query_leaves_nothing_behind_and_a_drained_one_hands_over(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=60)
    publish(service, "flights", 20)
    sink = Held()
    query = start(sink, instanceId="me")
    until(lambda: len(sink.rows) == 20, "the first messages")
    sink.go_on.clear()
    publish(service, "flights", 20, first=20)
    until(lambda: len(sink.rows) > 20, "a micro-batch in flight")
    threading.Timer(0.5, sink.go_on.set).start()
    started = time.monotonic()
    drain(query, 30)
    print(f"drained in {time.monotonic() - started:.2f} s")
    assert not query.isActive
    assert not client.flows("flights")
    seen = len(sink.rows)
    assert all_committed(client, seen)
    # Left without an owner, at its position: the next grant is graceful.
    assert {one.owner for one in client.partitions("flights")} == {None}
    again = start(sink, instanceId="me")
    until(lambda: len(sink.rows) == 40, "the rest")
    drain(again, 30)
    assert sorted(int(row.value[1:]) for row in sink.rows) == list(range(40))
    drain(again, 30)  # over already


def test_a_drain_that_times_out_says_what_is_left_and_stops(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 1, rebalance_delay=0)
    publish(service, "flights", 5)
    sink = Held()
    sink.go_on.clear()
    query = start(sink)
    until(lambda: sink.rows, "a micro-batch in flight")
    threading.Timer(2.0, sink.go_on.set).start()
    with pytest.raises(DrainTimedOut, match=r"partition 0 of .flights. \(in a mic") as told:
        drain(query, 1.0)
    assert told.value.held == {"flights": {0: "owned"}}
    until(lambda: not query.isActive, "the query stops")
    until(lambda: not client.flows("flights"), "the flow unbinds")
    assert committed(client, "flights") == {0: None}, "Spark did not get to note that it is done"
