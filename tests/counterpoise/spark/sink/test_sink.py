"""The sink within a real query: the ranges that were read, and the rows of each transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException

from counterpoise.publisher import Publisher
from counterpoise.spark import FencedSink
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.channel.running_batch import (
    BatchPlan,
    PlanWriter,
    RunningBatch,
    planned_for,
    planned_of,
)
from counterpoise.spark.errors import InvalidRows, InvalidSink, SinkError, Unsupported
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink import batch as module
from counterpoise.spark.sink.database import Database
from tests.counterpoise.spark.queries import QueryStage, committed
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="queries that write")]

KEYS = 17


class Stage(QueryStage):
    """A queue of four partitions with messages, a database for results, and queries on them."""

    def __init__(self, spark: SparkSession, service: Service, url: str, home: Path) -> None:
        super().__init__(spark, service, home)
        self.url = url
        self.client.create_queue("flights", 4, rebalance_delay=0)
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE events (id bigserial PRIMARY KEY, partition int, position text,"
                " epoch bigint, key text, value bytea, headers jsonb, published_at timestamptz)"
            )

    def publish(self, count: int) -> None:
        with Publisher("flights", url=self.service.url) as publisher:
            for number in range(self.published, self.published + count):
                publisher.publish(
                    str(number).encode(), key=f"k{number % KEYS}", headers={"n": str(number)}
                )
        self.published += count

    def start(
        self,
        sink: Callable[[DataFrame, int], None],
        shape: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        mode: str = "append",
        **options: Any,
    ) -> StreamingQuery:
        stream = self.messages(maxMessagesPerTrigger=50, stateOnHandoff="lose", **options)
        return self.started(shape(stream).writeStream.outputMode(mode).foreachBatch(sink))

    def until_committed(self, query: StreamingQuery) -> dict[int, str | None]:
        """Wait until the service has the position of every message; returns the positions."""
        until(lambda: query.exception() or self.all_committed(), "everything is committed")
        assert query.exception() is None
        return committed(self.client, self.queue)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement).fetchall()

    def values(self) -> list[int]:
        return [
            int(bytes(value)) for (value,) in self.query("SELECT value FROM events ORDER BY id")
        ]

    def high_water(self) -> dict[int, str]:
        return dict(self.query("SELECT partition, next_position FROM counterpoise_high_water"))


@pytest.fixture
def stage(
    spark: SparkSession, service: Service, database_url: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(spark, service, database_url, tmp_path)
    yield stage
    stage.end()


def check_order(values: list[int]) -> None:
    for key in range(KEYS):
        own = [value for value in values if value % KEYS == key]
        assert own == sorted(own), f"key {key}"


@pytest.mark.long
def test_rows_go_into_a_table_in_the_tasks_that_read_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(a) too: the filter leaves nothing of most partitions in most micro-batches."""

    def shuffled(*_: object) -> None:
        raise AssertionError("the rows were repartitioned")

    monkeypatch.setattr(module, "brought_together", shuffled)
    sink = FencedSink.to_table(stage.url, "events")
    assert "postgresql" not in repr(sink)
    stage.publish(120)
    query = stage.start(
        lambda batch, batch_id: sink(batch.persist().where("key <> 'k4'"), batch_id),
        lambda rows: rows.where("key in ('k3', 'k4')"),
    )
    positions = stage.until_committed(query)
    assert stage.values() == [n for n in range(120) if n % KEYS == 3]
    assert stage.high_water() == positions
    ((headers, epoch, published_at),) = stage.query(
        "SELECT headers, epoch, published_at FROM events ORDER BY id LIMIT 1"
    )
    assert (headers, epoch) == ({"n": "3"}, 1)
    assert published_at.tzinfo is not None
    assert sink.last_report is not None
    assert sink.last_report.superseded == ()


@pytest.mark.long
def test_rows_that_were_shuffled_are_brought_together_again(stage: Stage) -> None:
    """Two branches, in the wrong order; and the high-water of partitions without a row moves."""
    from pyspark.sql import functions

    sink = FencedSink.to_table(stage.url, "events", columns=["partition", "key", "value"])

    def shape(rows: DataFrame) -> DataFrame:
        some = rows.where("key in ('k3', 'k5', 'k7')")
        odd, even = (some.where(f"cast(position as int) % 2 = {rest}") for rest in (1, 0))
        return odd.union(even).repartition(3)

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch.sortWithinPartitions(functions.desc("position")), batch_id)

    stage.publish(120)
    positions = stage.until_committed(stage.start(write, shape))
    values = stage.values()
    assert sorted(values) == [n for n in range(120) if n % KEYS in (3, 5, 7)]
    check_order(values)
    assert stage.high_water() == positions


@pytest.mark.long
def test_a_partition_that_is_read_by_several_tasks_is_written_in_order(stage: Stage) -> None:
    """maxRecordsPerPartition: each range moves its high-water once, as a whole."""
    sink = FencedSink.to_table(stage.url, "events")
    stage.publish(120)
    query = stage.start(sink, maxRecordsPerPartition=3)
    positions = stage.until_committed(query)
    assert sorted(stage.values()) == list(range(120))
    check_order(stage.values())
    assert stage.high_water() == positions


@pytest.mark.long
def test_a_repeated_message_is_dropped(stage: Stage) -> None:
    """The query fails after the sink, before Spark's commit log, and starts again."""
    sink = FencedSink.to_table(stage.url, "events")
    reports = []

    def fail_at_first(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        reports.append(sink.last_report)
        if len(reports) == 1:
            raise RuntimeError("after the sink")

    stage.publish(40)
    first = stage.start(fail_at_first)
    with pytest.raises(StreamingQueryException, match="after the sink"):
        first.awaitTermination(240)
    until(lambda: not stage.client.flows("flights"), "it unbinds")
    positions = stage.until_committed(stage.start(fail_at_first))
    assert sorted(stage.values()) == list(range(40))
    check_order(stage.values())
    assert stage.high_water() == positions
    # It was unbound when it failed, so the planned ranges are skipped at first (c): the sink moves
    # no high-water for them. Then the messages come again, under another epoch.
    outcomes = [(one.written, one.dropped) for one in reports if one is not None]
    assert outcomes == [(40, 0), (0, 0), (0, 40)]
    # And once more from the beginning, as when an administrator resets the positions.
    assert sink.forget("flights") == 4
    assert set(stage.high_water().values()) == {None}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_go_into_a_lake(stage: Stage, tmp_path: Path, kind: str) -> None:
    """Filtered and shuffled. The query fails after the sink at first, and starts again."""
    from tests.counterpoise.spark.sink.lakes import LAKES

    lake = LAKES[kind](tmp_path)
    sink = lake.sink("events")
    reports = []

    def shape(rows: DataFrame) -> DataFrame:
        some = rows.where("key in ('k3', 'k5', 'k7')")
        odd, even = (some.where(f"cast(position as int) % 2 = {rest}") for rest in (1, 0))
        return odd.union(even).repartition(3)

    def fail_at_first(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        reports.append(sink.last_report)
        if len(reports) == 1:
            raise RuntimeError("after the sink")

    stage.publish(40)
    first = stage.start(fail_at_first, shape)
    with pytest.raises(StreamingQueryException, match="after the sink"):
        first.awaitTermination(240)
    until(lambda: not stage.client.flows("flights"), "it unbinds")
    stage.publish(40)
    positions = stage.until_committed(stage.start(fail_at_first, shape))
    rows = sorted(lake.rows(), key=lambda one: int(one["value"]))
    assert [int(one["value"]) for one in rows] == [n for n in range(80) if n % KEYS in (3, 5, 7)]
    assert {name: at for name, (_, at) in lake.high_water("events").items()} == positions
    assert (rows[0]["key"], dict(rows[0]["headers"]), rows[0]["epoch"]) == ("k3", {"n": "3"}, 1)
    assert rows[0]["published_at"].tzinfo is not None
    assert sum(one.dropped for one in reports if one is not None) > 0


@pytest.mark.long
def test_aggregates_are_refused_with_what_to_do(stage: Stage) -> None:
    sink = FencedSink.to_table(stage.url, "events")
    stage.publish(5)
    query = stage.start(sink, lambda rows: rows.groupBy("key").count(), mode="update")
    with pytest.raises(StreamingQueryException, match="aggregate within the sink's write"):
        query.awaitTermination(240)


def test_pairs_of_aligned_logs_are_refused_with_what_to_do(spark: SparkSession) -> None:
    sides = [f"{side}_{name}" for side in ("left", "right") for name in ("partition", "position")]
    pairs = spark.createDataFrame([("k", 6, "1", 7, "1")], ["key", *sides])
    sink = FencedSink.to_table("postgresql://localhost/none", "pairs")
    with pytest.raises(InvalidRows, match=r"ON CONFLICT DO NOTHING.*join the tables.*aligned"):
        sink(pairs, 0)


@pytest.mark.long
def test_two_sinks_of_one_name_are_refused(stage: Stage) -> None:
    refused: list[str] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        FencedSink.to_table(stage.url, "events")(batch, batch_id)
        try:
            FencedSink.to_table(stage.url, "events")(batch, batch_id)
        except InvalidSink as error:
            refused.append(str(error))

    stage.publish(5)
    stage.until_committed(stage.start(write))
    assert refused
    assert len(stage.values()) == 5


@pytest.mark.long
def test_an_epoch_that_the_service_never_granted_fails_the_query(stage: Stage) -> None:
    """As after a restore of the service from a backup: dropping the rows would lose them."""
    sink = FencedSink.to_table(stage.url, "events", confirm_seconds=0.5)
    stage.publish(40)
    query = stage.start(sink)
    stage.until_committed(query)
    with psycopg.connect(stage.url) as connection:
        connection.execute("UPDATE counterpoise_high_water SET epoch = 99 WHERE partition = 2")
    stage.publish(40)
    with pytest.raises(StreamingQueryException, match=r"partition 2 \(epoch 1\)"):
        query.awaitTermination(240)
    positions = {one.partition: one.position for one in stage.client.partitions("flights")}
    assert positions[2] == stage.high_water()[2]


def test_a_superseded_range_waits_until_the_source_has_heard_of_it(tmp_path: Path) -> None:
    channel = Channel(tmp_path, "one")
    planned = BatchPlan({}, {"queue": "flights"}, "id-1", "log-1", (), ())
    running = RunningBatch(None, "run", planned, channel)

    def view(**states: tuple[int, str]) -> None:
        partitions = {
            name[1:]: {"epoch": epoch, "state": state} for name, (epoch, state) in states.items()
        }
        channel.put("view", {"partitions": partitions})

    clock = iter(range(100))

    def tick() -> float:
        now = next(clock)
        if now == 4:  # now the source learns of the second grant
            view(p1=(7, "owned"))
        return float(now)

    view(p1=(7, "owned"), p2=(3, "revoking"), p3=(9, "owned"), p4=(4, "warming"))
    superseded = [(1, 6), (2, 3), (3, 8), (4, 4), (5, 1)]
    assert running.still_held(superseded, 20, tick) == []
    assert 4 <= next(clock) < 10
    # And here it never does.
    assert running.still_held([(1, 7), (1, 6)], 20, tick) == [(1, 7)]


def test_only_the_plan_of_the_batch_that_runs_is_taken(tmp_path: Path) -> None:
    """After a restart, Spark asks for a plan from the end to the end before that of the batch."""
    channel = Channel(tmp_path, "one")
    plans = PlanWriter(channel, "id-1", "log-1", None)
    at = [{"queue": "flights", "partitions": {"0": number}} for number in range(3)]
    assert planned_for(channel, at[0], at[1]) is None
    plans.say(at[1], at[1], [], [])
    assert planned_for(channel, at[0], at[1]) is None
    assert planned_for(channel, None, at[1]) is None
    one = Slice(0, 1, "0", "9")
    plans.say(at[0], at[1], [(one,)], [])
    for start in (None, at[0]):
        planned = planned_for(channel, start, at[1])
        assert planned is not None
        assert planned.read == (one,)
    assert planned_for(channel, at[0], at[2]) is None
    assert planned_for(channel, at[2], at[1]) is None
    # A query's first batch can come before there is anything to read.
    nothing = {"queue": "flights", "partitions": {}}
    plans.say(nothing, nothing, [], [])
    planned = planned_for(channel, None, nothing)
    assert planned is not None
    assert planned.read == ()


@pytest.mark.long
def test_what_fails_in_a_task_is_said_in_a_line(stage: Stage) -> None:
    """As the error of the sink itself: Spark's own has a hundred lines, ours among them."""
    away = "postgresql://u:sEcReT@127.0.0.1:1/d"
    sinks = {
        "has no column": FencedSink.to_table(stage.url, "events", name="1", columns=["tenure"]),
        "has no table": FencedSink.to_table(stage.url, "nowhere", name="2"),
        "away": FencedSink.to_table(away, "events", name="3", retry_seconds=0),
    }
    said: dict[str, Exception] = {}

    def write(batch: DataFrame, batch_id: int) -> None:
        for name, sink in sinks.items():
            try:
                sink(batch.withColumn("tenure", batch.epoch), batch_id)
            except Exception as error:
                said[name] = error

    stage.publish(4)
    stage.until_committed(stage.start(write))
    assert {name: type(error) for name, error in said.items()} == {
        "has no column": InvalidSink,
        "has no table": InvalidSink,
        "away": SinkError,
    }
    assert not any("\n" in str(error) or "sEcReT" in str(error) for error in said.values())


@pytest.mark.long
def test_a_query_of_another_source_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = FencedSink.to_table("postgresql://u:sEcReT@127.0.0.1/d", "events")
    rows = spark.readStream.format("rate").load()
    shaped = rows.selectExpr("1 as partition", "'1' as position")
    query = (
        shaped.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="reads nothing from a counterpoise") as error:
        query.awaitTermination(240)
    assert "sEcReT" not in str(error.value)
    # A thread that does not know its query, such as one of a ThreadPoolExecutor.
    with pytest.raises(Unsupported, match=r"unless they are pyspark\.InheritableThread"):
        sink(spark.createDataFrame([(1, "1")], "partition int, position string"), 0)


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None: ...

    with pytest.raises(InvalidSink, match="name"):
        FencedSink("postgresql://h/d", write, name="")
    with pytest.raises(InvalidSink, match="on_gap"):
        FencedSink("postgresql://h/d", write, name="n", on_gap="maybe")  # type: ignore[arg-type]
    monkeypatch.delenv("COUNTERPOISE_SINK_URL", raising=False)
    with pytest.raises(InvalidSink, match="COUNTERPOISE_SINK_URL"):
        FencedSink(None, write, name="n")
    monkeypatch.setenv("COUNTERPOISE_SINK_URL", "postgresql://h/d\n")
    FencedSink(None, write, name="n")
    assert Database(None).key == Database("postgresql://h/d").key


def test_the_plan_is_known_before_the_batch_runs(tmp_path: Path) -> None:
    """(c): skipped ranges are not among the read ones; history is in neither."""
    channel = Channel(tmp_path, "one")
    start, end = {"queue": "flights"}, {"queue": "flights", "partitions": {}}
    history = Slice(7, 3, "0", "9", replay=True)
    tasks = [(Slice(3, 2, "10", "20"), history), (Slice(1, 5, "7", "8"),), (history,)]
    PlanWriter(channel, "id-1", "log-1", None).say(start, end, tasks, [Slice(2, 1, "0", "4")])
    document = channel.get("plan")
    assert document is not None
    planned = planned_of(json.loads(json.dumps(document)))
    assert planned.read == (Slice(1, 5, "7", "8"), Slice(3, 2, "10", "20"))
    assert planned.tasks == ((3,), (1,), ())
    assert (planned.queue, planned.queue_id, planned.log) == ("flights", "id-1", "log-1")
    assert document["skipped"] == [{"partition": 2, "epoch": 1, "from": "0", "to": "4"}]
