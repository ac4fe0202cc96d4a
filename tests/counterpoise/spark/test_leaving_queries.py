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
from counterpoise.spark import DrainTimedOut, QueueListener, drain
from counterpoise.spark.driver import draining
from counterpoise.spark.errors import Unsupported
from tests.counterpoise.spark.queries import Collected, committed, publish
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.matrix(of="queries that leave"),
]

HOUR = "1 hour"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


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
        assert self.go_on.wait(300)


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
        stream = spark.readStream.format("counterpoise").option("maxBatchSeconds", 2 * 3600)
        stream = stream.options(url=service.url, queue="flights", **options)
        writer = stream.load().writeStream.foreachBatch(sink).trigger(processingTime=trigger)
        queries.append(started(writer.option("checkpointLocation", str(tmp_path / name))))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def started_with_rows(sink: Collected, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query with long triggers whose first micro-batch has come.

    Where the log answers late Spark is told that there is nothing yet, and asks when its trigger is
    due again: then it is started once more.
    """
    for _ in range(10):
        query = start()
        until(lambda: sink.rows or _waits(query), "the first micro-batch, or a wait for the next")  # noqa: B023
        if sink.rows:
            return query
        query.stop()
    raise AssertionError("the query reads nothing")


def _waits(query: StreamingQuery) -> bool:
    """Whether it is over with a trigger, and waits until the next one is due."""
    return bool(query.status["message"] == "Waiting for next trigger")


def all_committed(client: Client, count: int) -> bool:
    return sum(int(at or 0) for at in committed(client, "flights").values()) == count


def _of(metrics: dict[str, float], name: str, label: str) -> float | None:
    found = [value for key, value in metrics.items() if f"_{name}{{" in key and label in key]
    return found[0] if found else None


def test_batches_in_the_commit_log_are_committed_without_waiting_for_the_trigger(
    spark: SparkSession, service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    sink = Held()
    reports: list[dict[str, Any]] = []
    listener = QueueListener(spark, reports.append)
    spark.streams.addListener(listener)
    query = started_with_rows(sink, lambda: start(sink, HOUR))
    until(lambda: all_committed(client, 20), "the commit, an hour before Spark asks")
    until(lambda: reports, "the report of the micro-batch")
    assert (reports[0]["owned"], reports[0]["batch"]) == (2, 0)
    # Somebody joins: his share is released now, not in an hour.
    with Flow("flights", url=service.url) as other:
        until(lambda: len(other.partitions) == 1, "the release")
        (held,) = other.partitions.values()
        assert held.handed_over == "graceful"
        assert int(held.position or 0) > 0
    released = 'outcome="graceful"'
    until(lambda: _of(listener.metrics(), "handoffs_total", released) == 1, "it is counted")
    assert _of(listener.metrics(), "handoffs_total", 'outcome="forced"') == 0
    spark.streams.removeListener(listener)
    drain(query, 150)  # nor does this wait for the trigger
    until(lambda: not client.flows("flights"), "the flow unbinds")
    assert sink.batches == 1


@pytest.fixture
def users_checkpoints(spark: SparkSession) -> Iterator[None]:
    """Checkpoints as they are unless a setting says otherwise; those of other tests are faster."""
    before = spark.conf.get(CHECKPOINTS)
    assert before is not None
    spark.conf.set(CHECKPOINTS, before.replace("FileSystemBased", "FileContextBased"))
    yield
    spark.conf.set(CHECKPOINTS, before)


@pytest.mark.usefixtures("users_checkpoints")
def test_what_a_function_finishes_while_its_query_is_stopped_does_not_come_again(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    """Neither to another owner nor to the query that is started again."""
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    sink = Held()
    query = start(sink, instanceId="me")
    until(lambda: sink.rows, "the first messages")
    until(lambda: all_committed(client, 20), "the first messages")
    sink.go_on.clear()
    publish(service, "flights", 20, first=20)
    until(lambda: len(sink.rows) > 20, "a micro-batch in flight")
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    until(lambda: not query.isActive, "Spark has begun to stop it")
    handed_out = len(sink.rows)
    sink.go_on.set()
    stopping.join(150)
    assert not stopping.is_alive()
    until(lambda: not client.flows("flights"), "the flow unbinds")
    assert all_committed(client, handed_out)
    again = Held()
    start(again, instanceId="me")
    publish(service, "flights", 1, first=40)
    until(lambda: all_committed(client, 41), "all of it is read")
    values = sorted(row.value for row in (*sink.rows, *again.rows))
    assert values == sorted(f"v{number}".encode() for number in range(41))


@pytest.mark.long
def test_a_stopped_query_leaves_nothing_behind_and_a_drained_one_hands_over(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    sink = Held()
    query = start(sink, instanceId="me")
    until(lambda: len(sink.rows) == 20, "the first messages")
    sink.go_on.clear()
    publish(service, "flights", 20, first=20)
    until(lambda: len(sink.rows) > 20, "a micro-batch in flight")
    threading.Timer(0.5, sink.go_on.set).start()
    started = time.monotonic()
    drain(query, 150)
    print(f"drained in {time.monotonic() - started:.2f} s")
    assert not query.isActive
    assert not client.flows("flights")
    seen = len(sink.rows)
    assert all_committed(client, seen)
    # Left without an owner, at its position: the next grant is graceful.
    assert {one.owner for one in client.partitions("flights")} == {None}
    again = start(sink, instanceId="me")
    until(lambda: len(sink.rows) == 40, "the rest")
    drain(again, 150)
    assert sorted(int(row.value[1:]) for row in sink.rows) == list(range(40))
    drain(again, 150)  # over already


@pytest.mark.long
def test_the_only_query_that_is_drained_from_outside_finishes_lets_go_and_ends(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    publish(service, "flights", 20)
    sink = Held()
    query = start(sink, instanceId="me")
    until(lambda: sink.rows, "the first messages")
    sink.go_on.clear()
    publish(service, "flights", 20, first=20)
    until(lambda: len(sink.rows) > 20, "a micro-batch in flight")
    client.drain("flights", client.flows("flights")[0].flow_id)
    threading.Timer(0.5, sink.go_on.set).start()
    assert query.awaitTermination(150)
    assert query.exception() is None
    assert client.flows("flights") == []
    assert all_committed(client, len(sink.rows))
    again = start(sink, instanceId="me")
    until(lambda: len(sink.rows) == 40, "the rest")
    drain(again, 150)
    assert sorted(int(row.value[1:]) for row in sink.rows) == list(range(40))
    outcomes = {move.outcome for one in client.rebalances("flights") for move in one.moves}
    assert outcomes == {"initial", "graceful"}


@pytest.mark.long
def test_a_drain_that_times_out_says_what_is_left_and_stops(
    service: Service,
    client: Client,
    start: Callable[..., StreamingQuery],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_queue("flights", 1, rebalance_delay=0)
    publish(service, "flights", 5)
    sink = Held()
    sink.go_on.clear()
    query = start(sink)
    until(lambda: sink.rows, "a micro-batch in flight")
    stop = draining.stop_all

    def stop_a_sink_that_returns(*arguments: Any) -> None:
        sink.go_on.set()
        stop(*arguments)

    monkeypatch.setattr(draining, "stop_all", stop_a_sink_that_returns)
    with pytest.raises(DrainTimedOut, match=r"partition 0 of .flights. \(in a mic") as told:
        drain(query, 1.0)
    assert told.value.held == {"flights": {0: "owned"}}
    until(lambda: not query.isActive, "the query stops")
    until(lambda: not client.flows("flights"), "the flow unbinds")
    # Spark has interrupted the micro-batch, or it came too late for that.
    done = (tmp_path / "checkpoint" / "commits" / "0").exists()
    assert committed(client, "flights")[0] in ((None, "5") if done else (None,))


@pytest.mark.long
def test_queries_of_other_sources_are_not_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    counting = spark.readStream.format("rate").load()
    idle = spark.readStream.text(str(tmp_path / "empty"))
    queries = [one.writeStream.format("noop").start() for one in (counting, idle)]
    try:
        until(lambda: all(query.lastProgress for query in queries), "both have looked for rows")
        draining._wait(queries, 0.0, lenient=True)  # as on SIGTERM: they are stopped plainly
        for query in queries:
            with pytest.raises(Unsupported, match=r"query\.stop"):
                drain(query, 60)
            assert query.isActive
    finally:
        for query in queries:
            query.stop()


@pytest.mark.long
def test_a_query_that_hangs_loses_its_partitions_and_its_commit_changes_nothing(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    sink = Held()
    publish(service, "flights", 10)
    start(sink, leaseSeconds=5, maxBatchSeconds=6)
    until(lambda: all_committed(client, 10), "the first messages")
    with Flow("flights", url=service.url, lease_seconds=120) as other:
        until(lambda: len(other.partitions) == 1, "shared")
        # The first micro-batch of a cold JVM may have taken too long, and have come again.
        before = len(sink.rows)
        sink.go_on.clear()
        publish(service, "flights", 40, first=10)
        until(lambda: len(sink.rows) > before, "a micro-batch in flight")
        (lost,) = {row.partition for row in sink.rows[before:]}
        until(lambda: len(other.partitions) == 2, "its lease expires")
        assert other.partitions[lost].handed_over == "orphaned"
        mine = str(int(other.partitions[lost].position or 0) + 1)
        assert other.commit({lost: mine}) == {lost: "ok"}
        sink.go_on.set()
        # It binds again by itself and is to get a partition back, which nobody lets go of yet.
        until(lambda: len(client.flows("flights")) == 2, "it binds again")
        until(lambda: client.rebalance_status("flights").handoffs, "its share is on its way")
        assert committed(client, "flights")[lost] == mine
        seen = len(sink.rows)
        other.drain()
        for number, held in other.partitions.items():
            assert other.release(number, epoch=held.epoch) == "ok"
    until(lambda: [row for row in sink.rows[seen:] if row.partition == lost], "it goes on")
    again = [int(row.position) for row in sink.rows[seen:] if row.partition == lost]
    assert again[0] == int(mine), "from where its successor was, not where itself had been"


@pytest.mark.long
def test_a_query_that_comes_back_within_the_holddown_has_its_partitions_at_once(
    service: Service, client: Client, start: Callable[..., StreamingQuery]
) -> None:
    client.create_queue("flights", 2, rebalance_delay=600)
    sink = Held()
    query = start(sink, instanceId="me")
    until(lambda: client.flows("flights"), "bound")
    client.rebalance_now("flights")
    publish(service, "flights", 20)
    until(lambda: all_committed(client, 20), "the first messages")
    query.stop()
    until(lambda: not client.flows("flights"), "it unbinds")
    assert client.rebalance_status("flights").status == "Holddown"
    publish(service, "flights", 20, first=20)
    start(sink, instanceId="me", name="another-checkpoint")
    until(lambda: len(sink.rows) == 40, "it has them back before the holddown is over", 150)
    assert sorted(int(row.value[1:]) for row in sink.rows) == list(range(40))
    assert {row.epoch for row in sink.rows} == {1, 2}
