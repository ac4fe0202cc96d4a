"""Several queues in one stream: each keeps its own positions, and all leave together."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError
from counterpoise.publisher import Publisher
from counterpoise.spark import (
    Count,
    FencedAggregate,
    FencedSink,
    QueueListener,
    QueueSink,
    Windows,
    drain,
    read_queues,
)
from counterpoise.spark.errors import InvalidOffset, InvalidOption
from counterpoise.spark.queues import SOURCES_BY_NAME, chosen
from tests.counterpoise.spark.queries import QueryStage, committed, publish
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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


def lag(client: Client, queue: str) -> int:
    """How many messages of a queue are not committed."""
    return sum(one.lag or 0 for one in client.partitions(queue))


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

    def sink(self, batch: Any, _: int) -> None:
        rows = batch.select("queue", "partition", "position").collect()
        if self.fails and rows:
            raise OSError("the sink is full")
        self.seen.update(tuple(row) for row in rows)

    def refuses_others(self) -> None:
        """The checkpoint of both queues is refused to other lists, before a flow is bound."""
        before = [self.client.rebalances(name) for name in self.names]
        for queues in (["orders-*"], ["orders-eu"], ["orders-eu", "orders-jp"]):
            with pytest.raises(InvalidOffset, match="query on the queues orders-eu, orders-us"):
                self.consume(*queues)
        assert [self.client.rebalances(name) for name in self.names] == before

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
    # Another number of queues does.
    stage.client.create_queue("orders-jp", 1)
    stage.refuses_others()
    # With another checkpoint it goes on at the positions of the queues.
    stage.publish(20)
    query = stage.consume("orders-*", checkpoint="other", ends=True)
    until(lambda: not query.isActive, "everything is read")
    assert query.exception() is None
    assert stage.all_committed()
    stage.check()


@pytest.fixture
def by_number(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark's second format of its log of offsets, which has them by the number of their source."""
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    yield spark
    spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")


@pytest.fixture
def by_name(by_number: SparkSession) -> Iterator[SparkSession]:
    """The same format, by the name of their source."""
    by_number.conf.set(SOURCES_BY_NAME, "true")
    yield by_number
    by_number.conf.unset(SOURCES_BY_NAME)


def logged(checkpoint: Path) -> list[str]:
    """How the newest entry of a checkpoint names its sources; it is of the second format."""
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    version, _, *offsets = newest.read_text().splitlines()
    assert version == "v2"
    return sorted(line.partition(":")[0] for line in offsets)


@marked
def test_another_list_is_refused_with_sparks_second_format_too(
    by_number: SparkSession, stage: Queues
) -> None:
    """Spark itself would begin with what it does not find, and leave out the rest."""
    for count in (20, 40):
        stage.publish(20)
        query = stage.consume(*stage.names)
        until(stage.all_committed, f"{count} are committed")
        drain(query, 60)
        assert logged(stage.home / "checkpoint") == ["0", "1"]
    stage.client.create_queue("orders-jp", 1)
    stage.refuses_others()
    # Names come too late for this checkpoint: Spark keeps to the numbers.
    by_number.conf.set(SOURCES_BY_NAME, "true")
    try:
        stage.refuses_others()
    finally:
        by_number.conf.unset(SOURCES_BY_NAME)
    stage.check()


@marked
@pytest.mark.usefixtures("by_name")
def test_the_list_may_change_where_spark_knows_sources_by_name(stage: Queues) -> None:
    for others, names in (
        ([], ["orders_2deu", "orders_2dus"]),
        (["returns"], ["orders_2deu", "orders_2dus", "returns"]),
        (["trips"], ["orders_2deu", "orders_2dus", "trips"]),
        ([], ["orders_2deu", "orders_2dus"]),
    ):
        for name in others:
            stage.client.create_queue(name, 2, rebalance_delay=0)
            publish(stage.service, name, 10)
        stage.publish(20)
        query = stage.consume("orders-*", *others)
        until(
            lambda: (
                stage.all_committed() and all(lag(stage.client, one) == 0 for one in others)  # noqa: B023
            ),
            "all is committed",
        )
        drain(query, 60)
        assert logged(stage.home / "checkpoint") == names
    counts = Counter(queue for queue, _, _ in stage.seen)
    assert counts == {"orders-eu": 80, "orders-us": 80, "returns": 10, "trips": 10}
    assert set(stage.seen.values()) == {1}


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
def test_a_batch_read_has_the_rows_of_all_queues(stage: Queues, client: Client) -> None:
    stage.publish(20)
    rows = stage.rows(*stage.names, streaming=False)
    counts = {row["queue"]: row["count"] for row in rows.groupBy("queue").count().collect()}
    assert counts == dict.fromkeys(stage.names, 20)
    assert not any(client.flows(name) for name in stage.names)


@marked
def test_rows_that_do_not_tell_their_queue_are_refused_by_every_sink(
    stage: Queues, database_url: str
) -> None:
    """Both queues have rows of one partition and position. Where rows tell their queue, they are
    told apart in every situation: `test_situations.py`.
    """
    stage.client.create_queue("out", 3)
    columns = ["queue", "partition", "position"]
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE events (queue text, partition int, position text)")
    fenced = FencedSink.to_table(database_url, "events", columns=columns)
    chained = QueueSink("out", url=stage.service.url)
    windows = Windows("published_at", 3600)
    counted = FencedAggregate(
        database_url, "hourly", values={"n": Count()}, by=["key"], windows=windows
    )
    attempts: list[tuple[Any, Callable[[DataFrame], DataFrame], str]] = [
        (fenced, lambda rows: rows.drop("queue"), "pass its column queue through"),
        (
            fenced,
            lambda rows: rows.drop("queue").selectExpr("*", "'x' AS queue"),
            "there are rows whose queue is 'x', and the micro-batch has read orders-",
        ),
        (chained, lambda rows: rows.drop("queue"), "pass its column queue through"),
        (counted, lambda rows: rows, "each has results of its own: name the column queue in by"),
    ]
    refused: list[str] = []

    def attempt(batch: DataFrame, batch_id: int) -> None:
        for sink, shape, _ in attempts:
            try:
                sink(shape(batch), batch_id)
                refused.append("nothing")
            except CounterpoiseError as error:
                refused.append(str(error))

    stage.publish(20)
    writer = stage.rows(*stage.names).writeStream.foreachBatch(attempt)
    query = stage.started(writer.trigger(availableNow=True))
    until(lambda: not query.isActive, "everything is read")
    assert query.exception() is None
    for (_, _, said), found in zip(attempts, refused, strict=True):
        assert said in found
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT * FROM events").fetchall() == []
    assert lag(stage.client, "out") == 0


LATER = datetime(2013, 1, 1, 8, tzinfo=UTC)


def publish_later(service: Service, queue: str) -> None:
    """Messages in each partition of the queue, at a time when the windows before are over."""
    with Publisher(queue, url=service.url) as publisher:
        for number in range(17):
            publisher.publish(b"", key=f"k{number}", published_at=LATER)


@marked
def test_windows_are_counted_and_closed_for_each_queue_by_itself(
    stage: Queues, database_url: str
) -> None:
    """Both have the same keys in the same partitions."""

    def aggregate() -> FencedAggregate:
        windows = Windows("published_at", 3600)
        return FencedAggregate(
            database_url, "hourly", values={"n": Count()}, by=["queue", "key"], windows=windows
        )

    def results() -> Counter[str]:
        with psycopg.connect(database_url) as connection:
            found = connection.execute("SELECT queue, key, n, window_end FROM hourly").fetchall()
        assert len({(queue, key) for queue, key, _, _ in found}) == len(found)
        counts: Counter[str] = Counter()
        for queue, _, n, _ in found:
            counts[queue] += n
        return counts

    stage.publish(40)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE hourly (window_start timestamptz, window_end timestamptz, queue text,"
            " key text, n bigint)"
        )
    rows = stage.rows(*stage.names)
    counting = aggregate()
    query = stage.started(rows.writeStream.foreachBatch(counting))
    until(stage.all_committed, "all is committed")
    for count, name in enumerate(stage.names, 1):
        publish_later(stage.service, name)
        closed = dict.fromkeys(stage.names[:count], 40)
        until(lambda: results() == closed, f"the windows of {name} are closed")  # noqa: B023
    assert counting.dropped() == 0
    # Late rows, of one queue.
    publish(stage.service, "orders-us", 3)
    until(lambda: counting.dropped() == 3, "late rows are counted")
    assert results() == closed
    # After a restart each queue is known from the first micro-batch on, whatever it has read.
    drain(query, 60)
    publish_later(stage.service, "orders-eu")
    again = aggregate()
    stage.started(rows.writeStream.foreachBatch(again))
    until(lambda: again.dropped() == 3, "both queues are known")
