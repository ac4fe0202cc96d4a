"""Windows within real queries: two applications on one queue, and every way to hand over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterpoise.publisher import Publisher
from counterpoise.spark import Count, FencedAggregate, Windows, drain
from counterpoise.spark.aggregates import tables
from counterpoise.spark.aggregates.tables import AggregateKey, Group
from counterpoise.spark.aggregates.windows import FOREVER
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.database import Database, TransactionLimits
from tests.counterpoise.spark.queries import QueryStage
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")

KEYS = [f"k{n}" for n in range(8)]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENING = NOON + timedelta(hours=8)


class Stage(QueryStage):
    """A queue of four partitions, and applications that count its keys in each hour."""

    def __init__(self, spark: SparkSession, service: Service, url: str, home: Path) -> None:
        super().__init__(spark, service, home)
        self.url = url
        times = {"rebalance_delay": 0, "max_handoff_time": 600}
        self.client.create_queue("flights", 4, ordered_resize=False, **times)
        self.expected: Counter[tuple[datetime, str]] = Counter()
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE hourly (window_start timestamptz, window_end timestamptz, key text,"
                " n bigint)"
            )

    def publish(self, count: int, at: datetime = NOON, keys: list[str] = KEYS) -> None:
        """So many messages of each key."""
        with Publisher("flights", url=self.service.url) as publisher:
            for _ in range(count):
                for key in keys:
                    publisher.publish(b"", key=key, published_at=at)
                    self.expected[at.replace(minute=0), key] += 1
                    self.published += 1

    def aggregate(self, **changes: Any) -> FencedAggregate:
        given = {"values": {"n": Count()}, "windows": Windows("published_at", 3600), **changes}
        return FencedAggregate(self.url, "hourly", **given)

    def start(
        self, name: str, sink: Callable[[DataFrame, int], None] | None = None, **options: Any
    ) -> StreamingQuery:
        stream = self.messages(clientName=name, **options)
        writer = stream.select("partition", "position", "key", "published_at").writeStream
        return self.started(writer.foreachBatch(sink or self.aggregate()), name)

    def until_counted(self) -> None:
        """Close the windows of the day, and compare."""
        self.publish(1, EVENING)
        until(self.all_committed, "everything is committed")
        wanted = sorted((*of, n) for of, n in self.expected.items() if of[0] < EVENING)
        until(lambda: len(self.rows()) >= len(wanted), "all windows are closed")
        assert self.rows() == wanted

    def rows(self) -> list[tuple[datetime, str, int]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT window_start, key, n FROM hourly ORDER BY 1, 2, 3"
            ).fetchall()


@pytest.fixture
def stage(
    spark: SparkSession, service: Service, database_url: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(spark, service, database_url, tmp_path)
    yield stage
    stage.end()


@pytest.mark.matrix(of="aggregates in handoffs")
@pytest.mark.long
def test_a_backlog_goes_to_an_application_at_a_later_time(stage: Stage) -> None:
    """Spark's own aggregation counts 400 of 800: its watermark has passed the backlog."""
    go_on = threading.Event()
    go_on.set()
    counting = stage.aggregate()

    def behind(batch: DataFrame, batch_id: int) -> None:
        go_on.wait(240)
        counting(batch, batch_id)

    one = stage.start("one", behind, maxMessagesPerTrigger=20)
    stage.start("two")
    until(lambda: stage.shares() == {"one": 2, "two": 2}, "they share")
    go_on.clear()
    for hour in range(5):
        stage.publish(20, NOON + timedelta(hours=hour, minutes=30))
    until(
        lambda: sum(one.lag == 0 for one in stage.client.partitions("flights")) == 2,
        "the other application is four hours ahead",
    )
    assert stage.rows() == []
    go_on.set()
    drain(one)
    stage.until_counted()
    assert sum(n for *_, n in stage.rows()) == 800


@pytest.mark.matrix(of="aggregates in handoffs")
@pytest.mark.long
def test_a_quiet_partition_is_passed_in_between_micro_batches(stage: Stage) -> None:
    counting = stage.aggregate(idle_seconds=1.0)
    stage.start("one", counting)
    # One key: three of four partitions get nothing.
    stage.publish(10, keys=KEYS[:1])
    stage.publish(1, EVENING, keys=KEYS[:1])
    until(lambda: stage.rows() == [(NOON, KEYS[0], 10)], "the window is closed")
    assert counting.dropped() == 0
    counting.close()
    counting.forget("flights")
    assert counting.close_windows() == 0


@pytest.mark.matrix(of="aggregates in handoffs")
@pytest.mark.long
def test_resizes_in_both_directions_within_a_window(stage: Stage) -> None:
    stage.start("one")
    stage.publish(10)
    stage.client.change_queue("flights", partition_count=7)
    stage.publish(10)
    stage.client.change_queue("flights", partition_count=2)
    stage.publish(10)
    until(
        lambda: [one.partition for one in stage.client.partitions("flights")] == [0, 1],
        "the others have ended",
    )
    stage.publish(10)
    stage.publish(1, EVENING)
    wanted = sorted((*of, n) for of, n in stage.expected.items() if of[0] < EVENING)
    until(lambda: len(stage.rows()) >= len(wanted), "all windows are closed")
    assert stage.rows() == wanted


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"values": {}}, "needs values"),
        ({"values": {"key": Count()}}, "different names"),
        ({"values": {"window_end": Count()}}, "different names"),
        ({"late": "keep"}, "drop, side, merge"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"values": {"n": Count()}, **wrong}
    with pytest.raises(InvalidSink, match=says):
        FencedAggregate("postgresql://localhost/none", "hourly", **given)


def test_its_database_is_shown_nowhere() -> None:
    one = FencedAggregate("postgresql://me:secret@localhost/none", "n", values={"n": Count()})
    assert repr(one) == "FencedAggregate(name='n')"


@pytest.mark.long
def test_results_without_windows_need_no_service(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor other limits than the user's."""
    limits = []
    begin = Database.transaction

    def transaction(database: Database, given: TransactionLimits) -> Any:
        limits.append(given)
        return begin(database, given)

    monkeypatch.setattr(Database, "transaction", transaction)
    values = {"n": Count()}
    counting = FencedAggregate(database_url, "totals", values=values, retry_seconds=5)
    counting.forget("flights")
    key = AggregateKey("totals", "q-1", "flights")
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE totals (key text, n bigint)")
    with counting._database.transaction(counting._limits) as writer:
        tables.put_partials(writer, key, 0, {Group(FOREVER, 0, '["a"]'): '{"n":2}'})
    counting._counted = {"flights": (key, "http://127.0.0.1:9")}
    assert counting.close_windows() == 1
    assert counting.dropped() == 0
    assert {one.retry_seconds for one in limits} == {5}
    counting._database.engine().dispose()
