"""Several queues in one stream: each keeps its own positions, and all leave together."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.spark import FencedSink, QueueListener, drain, read_queues
from counterpoise.spark.errors import InvalidOffset, InvalidOption
from counterpoise.spark.queues import chosen
from tests.counterpoise.spark.queries import QueryStage, committed, publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

KNOWN = {"orders-eu", "orders-us", "orders", "trips"}


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (["trips", "orders"], ["orders", "trips"]),
        (["orders-*"], ["orders-eu", "orders-us"]),
        (["orders-?s", "orders*"], ["orders", "orders-eu", "orders-us"]),
        (["orders-eu", "orders-*"], ["orders-eu", "orders-us"]),
    ],
)
def test_names_and_patterns_stand_for_queues_in_the_order_of_their_names(
    named: list[str], found: list[str]
) -> None:
    assert chosen(named, KNOWN) == found


@pytest.mark.parametrize(
    ("queues", "options", "said"),
    [
        ([], {}, "needs at least one name of a queue"),
        (["a", "b", "a"], {}, "the queue 'a' is named twice"),
        (["a", 7], {}, "names of queues are text, not 7"),
        (["a"], {"Queue": "b"}, "takes the queues as its second argument"),
        (["a", "b"], {"warmup": True}, "'warmup' restores state by partition"),
        (["a"], {"startingOffsets": "earliest"}, "an option of Spark's Kafka source"),
        (["a"], {"startingPositions": "earliest"}, "belongs to a batch read"),
        (
            ["a", "b"],
            {"streaming": False, "startingPositions": '{"0": "1"}'},
            "'startingPositions' names positions, which are of one queue",
        ),
    ],
)
def test_what_cannot_hold_for_several_queues_is_refused_before_anything_is_asked(
    queues: list[str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        read_queues(cast(Any, None), queues, **options)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("flights", "there is no queue 'flights': the service shows orders, orders-eu, orders-us"),
        ("flights-*", "no queue matches 'flights-\\*'"),
    ],
)
def test_a_queue_that_is_not_there_is_refused_with_those_that_are(named: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        chosen([named], KNOWN)


class Queues(QueryStage):
    """Two queues of two partitions each, and a sink that keeps what it has got."""

    names = ("orders-eu", "orders-us")

    def __init__(self, spark: SparkSession, service: Service, home: Path) -> None:
        super().__init__(spark, service, home)
        self.seen: Counter[tuple[str, int, str]] = Counter()
        self.fails = False
        for name in self.names:
            self.client.create_queue(name, 2, rebalance_delay=0, max_handoff_time=600)

    def rows(self, *queues: str, **options: Any) -> DataFrame:
        return read_queues(self.spark, queues, url=self.service.url, **options)

    def consume(
        self, *queues: str, checkpoint: str = "checkpoint", ends: bool = False, **options: Any
    ) -> StreamingQuery:
        writer = self.rows(*queues, **options).writeStream.foreachBatch(self.sink)
        return self.started(writer.trigger(availableNow=True) if ends else writer, checkpoint)

    def failed(self, writer: DataStreamWriter) -> str:
        """Start a query that fails, and return its error."""
        query = self.started(writer)
        until(lambda: not query.isActive, "it has failed")
        return str(query.exception())

    def sink(self, batch: Any, _: int) -> None:
        rows = batch.select("queue", "partition", "position").collect()
        if self.fails and rows:
            raise OSError("the sink is full")
        self.seen.update(tuple(row) for row in rows)

    def publish(self, count: int) -> None:
        for name in self.names:
            publish(self.service, name, count, first=self.published)
        self.published += count

    def all_committed(self) -> bool:
        return all(
            sum(int(at or 0) for at in committed(self.client, name).values()) == self.published
            for name in self.names
        )

    def bound(self) -> list[list[int]]:
        """By queue how many partitions each flow has."""
        return [[flow.partitions for flow in self.client.flows(name)] for name in self.names]

    def check(self) -> None:
        """Each message of both queues has come once."""
        assert Counter(queue for queue, _, _ in self.seen) == dict.fromkeys(
            self.names, self.published
        )
        assert set(self.seen.values()) == {1}


@pytest.fixture
def stage(spark: SparkSession, service: Service, tmp_path: Path) -> Iterator[Queues]:
    stage = Queues(spark, service, tmp_path)
    yield stage
    stage.end()


in_spark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="queues")]


def marked(test: Any) -> Any:
    for mark in in_spark:
        test = mark(test)
    return test


@marked
def test_each_message_of_each_queue_comes_once_over_drains_restarts_and_other_lists(
    stage: Queues,
) -> None:
    stage.publish(40)
    query = stage.consume("orders-*", instanceId="one")
    until(stage.all_committed, "all is committed")
    ids = [[flow.instance_id for flow in stage.client.flows(name)] for name in stage.names]
    assert ids == [["one/orders-eu"], ["one/orders-us"]]
    reports = {one["queue"]: one["lagTotal"] for one in QueueListener(stage.spark).reports()}
    assert reports.keys() == set(stage.names)
    drain(query, 60)
    assert stage.bound() == [[], []]
    stage.publish(20)
    # The order of the names does not matter to the checkpoint.
    query = stage.consume("orders-us", "orders-eu", instanceId="one")
    until(stage.all_committed, "all is committed")
    drain(query, 60)
    # Another number of queues does, and is refused before a flow is bound.
    before = [stage.client.rebalances(name) for name in stage.names]
    stage.client.create_queue("orders-jp", 1)
    for queues in (["orders-*"], ["orders-eu"], ["orders-eu", "orders-jp"]):
        with pytest.raises(InvalidOffset, match="is of a query on the queues orders-eu, orders-us"):
            stage.consume(*queues)
    assert [stage.client.rebalances(name) for name in stage.names] == before
    # With another checkpoint it goes on at the positions of the queues.
    stage.publish(20)
    query = stage.consume("orders-*", checkpoint="other", ends=True)
    until(lambda: not query.isActive, "everything is read")
    assert query.exception() is None
    assert stage.all_committed()
    stage.check()


@marked
def test_an_administrator_who_drains_it_from_one_queue_drains_it_from_all(stage: Queues) -> None:
    stage.publish(20)
    query = stage.consume(*stage.names)
    until(stage.all_committed, "all is committed")
    (flow,) = stage.client.flows("orders-us")
    stage.client.drain("orders-us", flow.flow_id)
    until(lambda: not query.isActive, "the query has ended")
    assert query.exception() is None
    assert stage.bound() == [[], []]
    stage.check()


@marked
def test_what_a_crash_interrupts_comes_again_of_both_queues(stage: Queues) -> None:
    stage.publish(20)
    stage.fails = True
    query = stage.consume(*stage.names)
    until(lambda: not query.isActive, "the sink has failed")
    stage.fails = False
    query = stage.consume(*stage.names)
    until(stage.all_committed, "all is committed")
    stage.check()
    # One of the two sources dies, and the query with it.
    (flow,) = stage.client.flows("orders-eu")
    os.kill(int(flow.client_name.rpartition(":")[2]), signal.SIGKILL)
    until(lambda: not query.isActive, "the query has failed")
    stage.publish(20)
    stage.consume(*stage.names)
    until(stage.all_committed, "all is committed")
    stage.check()


@marked
def test_a_second_application_shares_each_of_the_queues(stage: Queues) -> None:
    stage.publish(20)
    for name in ("first", "second"):
        stage.consume(*stage.names, checkpoint=name)
        until(lambda: all(stage.bound()), "it is bound")
    until(lambda: stage.bound() == [[1, 1], [1, 1]], "each has a partition of each queue")
    stage.publish(20)
    until(stage.all_committed, "all is committed")
    stage.check()


@marked
def test_a_batch_read_has_the_rows_of_all_queues(stage: Queues, client: Client) -> None:
    stage.publish(20)
    rows = stage.rows(*stage.names, streaming=False)
    counts = {row["queue"]: row["count"] for row in rows.groupBy("queue").count().collect()}
    assert counts == dict.fromkeys(stage.names, 20)
    assert not any(client.flows(name) for name in stage.names)


@marked
def test_the_fence_tells_the_queues_apart(stage: Queues, database_url: str) -> None:
    """Both have rows of one partition and position; the query fails after the sink, and again."""
    stage.publish(40)
    columns = "queue text, partition int, position text"
    with psycopg.connect(database_url) as connection:
        connection.execute(f"CREATE TABLE events (id bigserial, {columns})")
    sink = FencedSink.to_table(database_url, "events", columns=["queue", "partition", "position"])
    failures = 0

    def fail_twice(batch: DataFrame, batch_id: int) -> None:
        nonlocal failures
        sink(batch, batch_id)
        assert sink.last_report is not None
        if sink.last_report.written + sink.last_report.dropped and failures < 2:
            failures += 1
            raise OSError("after the sink")

    rows = stage.rows(*stage.names, maxMessagesPerTrigger=10)
    for _ in range(2):
        stage.failed(rows.writeStream.foreachBatch(fail_twice))
    query = stage.started(rows.writeStream.foreachBatch(fail_twice))
    until(stage.all_committed, "all is committed")
    with psycopg.connect(database_url) as connection:
        for row in connection.execute("SELECT queue, partition, position FROM events ORDER BY id"):
            stage.seen[row[0], row[1], row[2]] += 1
        marks = connection.execute(
            "SELECT queue, partition, next_position FROM counterpoise_high_water ORDER BY 1, 2"
        ).fetchall()
    stage.check()
    assert marks == [
        (name, partition, position)
        for name in stage.names
        for partition, position in sorted(committed(stage.client, name).items())
    ]
    query.stop()
    # Rows that cannot be told apart are refused, and nothing of them counts as done.
    stage.published += 1
    for name in stage.names:
        publish(stage.service, name, 1, first=40)
    for shape, said in (
        ("drop", "pass its column queue through"),
        ("rename", "there are rows whose queue is 'x', and the micro-batch has read orders-"),
    ):
        changed = rows.drop("queue")
        if shape == "rename":
            changed = changed.selectExpr("*", "'x' AS queue")
        assert said in stage.failed(changed.writeStream.foreachBatch(sink))
    assert not stage.all_committed()
