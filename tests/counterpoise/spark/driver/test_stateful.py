"""Queries whose state a handoff would lose: refused before they start, each with the way out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import window
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from counterpoise.client import Client
from counterpoise.errors import StateKept
from counterpoise.spark.data_source import CounterpoiseDataSource
from counterpoise.spark.driver import stateful
from counterpoise.spark.errors import CannotStart, StateLost, Unsupported
from tests.counterpoise.spark.queries import publish
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.state.counts import ROCKSDB, STATE_STORE, KeyCounts
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")

Shape = Callable[[DataFrame], DataFrame]


def refuse_lost_state(frame: Any) -> None:
    stateful.refuse_lost_state(frame.sparkSession, frame._jdf.queryExecution().analyzed())


class Own(StatefulProcessor):
    """Its state stays behind."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(key=key[1], n=len(list(rows)))


class OwnTenured(Own):
    """It uses `fresh`."""

    tenured = True


def processed(processor: StatefulProcessor, time_mode: str = "None") -> Shape:
    def shape(rows: DataFrame) -> DataFrame:
        if time_mode == "EventTime":
            rows = rows.withWatermark("published_at", "1 minute")
        return rows.groupBy("partition", "key").transformWithState(
            processor, "key string, n long", "Update", time_mode
        )

    return shape


def in_windows(rows: DataFrame) -> DataFrame:
    late = rows.withWatermark("published_at", "1 minute")
    return late.groupBy(window("published_at", "1 minute"), "key").count()


def by_pandas(rows: DataFrame) -> DataFrame:
    def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import pandas

        before = state.get[0] if state.exists else 0
        state.update((before + sum(map(len, frames)),))
        yield pandas.DataFrame({"key": [key[0]], "n": [state.get[0]]})

    return rows.groupBy("key").applyInPandasWithState(
        count, "key string, n long", "n long", "update", GroupStateTimeout.NoTimeout
    )


def joined(rows: DataFrame) -> DataFrame:
    other = rows.sparkSession.readStream.format("rate").load()
    return rows.join(other, rows.position == other.value)


def in_sql(select: str) -> Shape:
    """`with t` are the rows."""

    def shape(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rows")
        return rows.sparkSession.sql(f"with t as (select * from rows) {select}")

    return shape


def without(rows: DataFrame) -> DataFrame:
    return rows.select("key").subtract(rows.sparkSession.createDataFrame([("k1",)], "key string"))


LOSES: dict[str, tuple[Shape, str, str]] = {
    "windows": (in_windows, "append", "groupBy.*FencedAggregate"),
    "windows, update": (in_windows, "update", "groupBy.*FencedAggregate"),
    "windows, complete": (in_windows, "complete", "groupBy.*FencedAggregate"),
    "keys, complete": (lambda rows: rows.groupBy("key").count(), "complete", "groupBy"),
    "dropDuplicates": (lambda rows: rows.dropDuplicates(["key"]), "append", "an id that comes"),
    "dropDuplicatesWithinWatermark": (
        lambda rows: rows.withWatermark("published_at", "1 minute").dropDuplicatesWithinWatermark(),
        "append",
        "dropDuplicatesWithinWatermark.*an id that comes",
    ),
    "distinct": (lambda rows: rows.select("key").distinct(), "append", "an id that comes"),
    "limit": (lambda rows: rows.limit(5), "append", "each application passes as many"),
    "subtract": (without, "append", "subtract.*one that comes again"),
    "with": (in_sql("select key, count(*) from t group by key"), "update", "groupBy"),
    "with, twice": (
        in_sql("select * from t join t u using (key)"),
        "append",
        "a join of two streams",
    ),
    # Spark makes it a join with the keys of the stream.
    "correlated subquery": (
        in_sql("select *, (select count(*) from values ('k1') s(k) where k < key) n from t"),
        "append",
        "the query keeps state",
    ),
    "join": (joined, "append", "a join of two streams.*pairs are missing"),
    "applyInPandasWithState": (by_pandas, "update", "applyInPandasWithState.*TenuredProcessor"),
    "transformWithState": (processed(Own()), "update", "transformWithState.*TenuredProcessor"),
}


@pytest.fixture
def messages(spark: SparkSession, service: Service, client: Client) -> Callable[..., DataFrame]:
    client.create_queue("flights", 2, rebalance_delay=0)

    def load(**options: str) -> DataFrame:
        given = {"url": service.url, "queue": "flights", **options}
        return spark.readStream.format("counterpoise").options(**given).load()

    return load


@pytest.mark.matrix("name")
@pytest.mark.long
@pytest.mark.parametrize("name", LOSES)
def test_it_is_refused_before_anything_is_bound_and_allowed_by_name(
    name: str, messages: Callable[..., DataFrame], client: Client, tmp_path: Path
) -> None:
    shape, mode, says = LOSES[name]
    writer = shape(messages()).writeStream.outputMode(mode).format("noop")
    with pytest.raises(StateLost, match=says) as refused:
        writer.start()
    assert "queue 'flights'" in str(refused.value)
    assert ".option('stateOnHandoff', 'lose')" in str(refused.value)
    with pytest.raises(StateLost, match=says):
        writer.toTable("never")
    assert client.queue("flights").flow_count == 0
    refuse_lost_state(shape(messages(stateOnHandoff="lose")))


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
@pytest.mark.parametrize("warmup", ["false", "true"])
def test_a_join_of_aligned_queues_is_refused_also_with_their_history(
    warmup: str, spark: SparkSession, service: Service, client: Client
) -> None:
    client.create_queue("orders", 2)
    client.create_queue("payments", 2)
    client.create_queue("matching", log="builtin:orders", align_with="payments")

    def rows(queue: str) -> DataFrame:
        given = {"url": service.url, "queue": queue, "warmup": warmup}
        loaded = spark.readStream.format("counterpoise").options(**given).load()
        return loaded.selectExpr("partition", "key", "value")

    orders, payments = rows("orders"), rows("payments")
    with pytest.raises(StateLost, match=r"a join of two streams.*queue 'orders'.*align_with"):
        orders.join(payments, "key").writeStream.format("noop").start()
    sides = [rows("matching").where(f"partition % 2 = {side}") for side in (0, 1)]
    with pytest.raises(StateLost, match=r"a join of two streams.*queue 'matching'.*JoinByKey"):
        sides[0].join(sides[1], "key").writeStream.format("noop").start()
    assert client.queue("matching").flow_count == 0


@pytest.mark.long
@pytest.mark.matrix("name")
@pytest.mark.parametrize(
    "name",
    [
        "windows",
        "keys, complete",
        "dropDuplicates",
        "join",
        "applyInPandasWithState",
        "transformWithState",
    ],
)
def test_with_the_option_it_runs(
    name: str,
    messages: Callable[..., DataFrame],
    service: Service,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    shape, mode, _ = LOSES[name]
    publish(service, "flights", 20)
    spark.conf.set(STATE_STORE, ROCKSDB)
    frame = shape(messages(stateOnHandoff="lose"))
    writer = frame.writeStream.outputMode(mode).format("noop")
    query = started(writer.option("checkpointLocation", str(tmp_path)))
    try:
        until(lambda: query.exception() or query.lastProgress, "a micro-batch")
        assert query.exception() is None
    finally:
        query.stop()
        spark.conf.unset(STATE_STORE)


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
def test_what_keeps_no_state_in_spark_is_allowed(
    messages: Callable[..., DataFrame], spark: SparkSession
) -> None:
    rows = messages().withWatermark("published_at", "1 minute").where("key is not null")
    names = spark.createDataFrame([("k1", 1), ("k1", 2)], "key string, n int")
    refuse_lost_state(rows.join(names.groupBy("key").count(), "key"))
    # Sources other than ours may keep state as they like.
    rate = spark.readStream.format("rate").load().dropDuplicates(["value"])
    refuse_lost_state(rate)
    refuse_lost_state(rows.select("epoch").union(rate.select("value")))
    # Spark optimizes these for the examination.
    rows.createOrReplaceTempView("rows")
    names.createOrReplaceTempView("names")
    for query in (
        "with a as (select key from rows where epoch > 1) select * from a union all table a",
        (
            "with n as (select key, count(*) as n from names group by key) "
            "select rows.key, n from rows join n on rows.key = n.key"
        ),
        "select * from rows where key in (select key from names)",
        "select * from rows where exists (select 1 from names where names.key = rows.key)",
    ):
        refuse_lost_state(spark.sql(query))


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
@pytest.mark.parametrize("processor", [KeyCounts(), OwnTenured()])
def test_a_processor_whose_state_is_handed_over_is_allowed_with_its_history(
    messages: Callable[..., DataFrame], processor: StatefulProcessor
) -> None:
    shape = processed(processor)
    refuse_lost_state(shape(messages(warmup="true")))
    refuse_lost_state(shape(messages(warmup="true", warmupFrom="2h")))
    for options in ({}, {"warmup": "true", "warmupFrom": "snapshot"}):
        with pytest.raises(StateLost, match="warmup=true"):
            refuse_lost_state(shape(messages(**options)))
    # The rows of the history are older than the watermark.
    with pytest.raises(StateLost, match=r'as late \(SPARK-51758\).*one for all.*timeMode="None"'):
        refuse_lost_state(processed(processor, "EventTime")(messages(warmup="true")))
    watermarked = messages(warmup="true").withWatermark("published_at", "1 minute")
    refuse_lost_state(shape(watermarked))


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
def test_the_watermark_of_one_partition_drops_the_rows_of_another_only_in_event_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Why a processor with timeMode EventTime is refused: this is so in Spark, with any source."""

    def dropped(time_mode: str) -> int:
        home = tmp_path / time_mode
        files = home / "files"
        files.mkdir(parents=True)
        schema = "partition int, key string, published_at timestamp"
        frame = processed(Own(), time_mode)(spark.readStream.schema(schema).json(str(files)))
        writer = frame.writeStream.outputMode("update").format("noop")
        query = started(writer.option("checkpointLocation", str(home / "checkpoint")))
        try:
            for partition, hour in enumerate((20, 12)):
                at = f"2026-01-01T{hour}:00:00Z"
                row = {"partition": partition, "key": "k", "published_at": at}
                (home / "row").write_text(json.dumps(row))
                (home / "row").rename(files / f"{partition}.json")  # whole from the first moment
                query.processAllAvailable()
            return sum(
                state["numRowsDroppedByWatermark"]
                for progress in query.recentProgress
                for state in progress["stateOperators"]
            )
        finally:
            query.stop()

    spark.conf.set(STATE_STORE, ROCKSDB)
    try:
        assert dropped("None") == 0
        assert dropped("EventTime") == 1
    finally:
        spark.conf.unset(STATE_STORE)


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
def test_one_owner_of_all_partitions_keeps_its_state(
    messages: Callable[..., DataFrame], client: Client
) -> None:
    counts = messages().groupBy("key").count()
    with pytest.raises(StateLost):
        refuse_lost_state(counts)
    client.change_queue("flights", access_type="exclusive")
    refuse_lost_state(counts)


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
def test_a_query_with_state_has_an_exclusive_queue_to_itself_while_it_runs(
    messages: Callable[..., DataFrame], client: Client, service: Service, tmp_path: Path
) -> None:
    """Else half of its counts went to another application, with an empty state, and no word."""
    client.change_queue("flights", access_type="exclusive")
    publish(service, "flights", 20)
    counts: dict[str, int] = {}

    def write(batch: DataFrame, _: int) -> None:
        counts.update((row["key"], row["count"]) for row in batch.collect())

    def query(checkpoint: str) -> StreamingQuery:
        writer = messages().groupBy("key").count().writeStream.outputMode("update")
        path = str(tmp_path / checkpoint)
        return started(writer.foreachBatch(write).option("checkpointLocation", path))

    owner = query("owner")
    standby = None
    try:
        until(lambda: sum(counts.values()) == 20, "all are counted")
        with pytest.raises(StateKept, match="stop this consumer first"):
            client.change_queue("flights", access_type="non_exclusive")
        standby = query("standby")
        until(lambda: not standby.isActive, "the standby is refused")
        assert "StateLost" in str(standby.exception())
        assert "keeping a standby" in str(standby.exception())
        publish(service, "flights", 20)
        until(lambda: sum(counts.values()) == 40, "all are counted in one state")
        # From its own checkpoint it goes on.
        owner.stop()
        owner = query("owner")
        publish(service, "flights", 20)
        until(lambda: sum(counts.values()) == 60, "all are counted in one state")
    finally:
        owner.stop()
        if standby is not None:
            standby.stop()
    until(lambda: not client.flows("flights"), "its source has left")
    client.change_queue("flights", access_type="non_exclusive")


def test_where_the_queue_would_not_stay_exclusive_a_query_with_state_is_refused(
    messages: Callable[..., DataFrame], spark: SparkSession, service: Service, client: Client
) -> None:
    client.change_queue("flights", access_type="exclusive")
    # Of the same JVM; only the other session was registered.
    other = spark.newSession()
    other.dataSource.register(CounterpoiseDataSource)
    rows = other.readStream.format("counterpoise").options(url=service.url, queue="flights").load()
    refuse_lost_state(rows)
    with pytest.raises(Unsupported, match=r"counterpoise\.spark\.register for this session"):
        refuse_lost_state(rows.groupBy("key").count())


def test_a_service_that_is_away_is_said_so(messages: Callable[..., DataFrame]) -> None:
    away = messages(url="http://127.0.0.1:9", startTimeoutSeconds="0")
    with pytest.raises(CannotStart):
        refuse_lost_state(away.groupBy("key").count())


@pytest.mark.matrix(of="queries with state")
@pytest.mark.long
def test_a_query_without_state_is_examined_in_less_than_a_start_takes(
    messages: Callable[..., DataFrame], tmp_path: Path
) -> None:
    rows = messages().where("key is not null")
    refuse_lost_state(rows)
    begun = time.perf_counter()
    refuse_lost_state(rows)
    examined = time.perf_counter() - begun
    begun = time.perf_counter()
    query = started(rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)))
    query.stop()
    assert examined < (time.perf_counter() - begun) / 5
