"""Ready processors in real queries: an application leaves while windows, ids and pairs are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.sql.functions import col

from counterpoise.keys import partition_of
from counterpoise.publisher import Publisher
from counterpoise.spark import Avg, Count, FencedSink, Windows, drain
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.processors import DuplicateFilter, JoinByKey, WindowAggregate
from tests.counterpoise.spark.queries import QueryStage
from tests.counterpoise.spark.state.counts import ROCKSDB, STATE_STORE
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark")]

ALIGNED = Path(__file__).parents[4] / "docs" / "aligned.md"
KEYS = [f"k{n}" for n in range(6)]
MOVED = {key for key in KEYS if partition_of(key, 2) != partition_of(key, 3)}
"""By a resize from two partitions to three."""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Stage(QueryStage):
    """Applications that share a queue, and the table that they write."""

    def __init__(self, spark: SparkSession, service: Service, url: str, home: Path) -> None:
        super().__init__(spark, service, home)
        self.url = url
        spark.conf.set(STATE_STORE, ROCKSDB)

    def open(self, queue: str, partitions: int | None, **settings: Any) -> None:
        self.queue = queue
        given = {"rebalance_delay": 0, "max_handoff_time": 600, **settings}
        self.client.create_queue(queue, partitions, **given)

    def open_with_history(self) -> None:
        """A queue, and the one that keeps its history, made as docs/warmup.md says."""
        self.open("flights", 2)
        self.client.create_queue("flights-history", log="builtin:flights", ordered_resize=False)

    def table(self, columns: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(f"CREATE TABLE result ({columns})")

    def publish(
        self, queue: str, at: datetime, values: Sequence[str], keys: Sequence[str] = KEYS
    ) -> None:
        """Each value for each key."""
        with Publisher(queue, url=self.service.url) as publisher:
            for value in values:
                for key in keys:
                    publisher.publish(value.encode(), key=key, published_at=at)
                    self.published += 1

    def start(self, name: str, made: DataFrame, sink: Any) -> StreamingQuery:
        return self.started(made.writeStream.foreachBatch(sink), name)

    def until_owned(self, **owned: int) -> None:
        until(lambda: self.shares() == owned, f"the owners are {owned}")

    def until_done(self) -> None:
        until(lambda: self.all_committed() or self.failed(), "everything is committed")
        assert not self.failed()

    def resize(self, queue: str, count: int) -> None:
        self.client.change_queue(queue, partition_count=count)

    def until_rows(self, columns: int, wanted: Sequence[tuple[Any, ...]]) -> None:
        """Wait until all is processed and the first columns of the rows are these."""

        def done() -> bool:
            return self.rows(columns) == sorted(wanted) and all(
                one.lag == 0 for one in self.client.partitions(self.queue)
            )

        until(lambda: done() or self.failed(), "the rows are there")
        assert self.rows(columns) == sorted(wanted)

    def failed(self) -> list[Any]:
        return [one.exception() for one in self.queries if one.exception() is not None]

    def rows(self, columns: int | None = None) -> list[tuple[Any, ...]]:
        """In order; the first columns of each."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT * FROM result ORDER BY 1, 2, 3").fetchall()
        return [row[:columns] for row in rows]

    def end(self) -> None:
        super().end()
        self.spark.conf.unset(STATE_STORE)


@pytest.fixture
def stage(
    spark: SparkSession, service: Service, database_url: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(spark, service, database_url, tmp_path)
    yield stage
    stage.end()


class Applications:
    """Queries of one kind: `made` gives the rows of the application of this name."""

    def __init__(self, stage: Stage, made: Callable[[str], DataFrame], sink: Any) -> None:
        self._stage = stage
        self._made = made
        self._sink = sink
        self._most: int | None = None

    def start(self, name: str) -> StreamingQuery:
        return self._stage.start(name, self._made(name), self._write)

    def share(self, each: int = 1) -> StreamingQuery:
        """Two, with so many partitions each; returns the first one."""
        first = self.start("first")
        self._stage.until_owned(first=2 * each)
        self.start("second")
        self._stage.until_owned(first=each, second=each)
        return first

    def fail_when_written(self) -> None:
        """The next one that writes something fails before Spark has noted it. So its micro-batch
        comes again elsewhere.
        """
        self._most = len(self._stage.rows())

    def take_over(self) -> None:
        """When one has failed, another one begins with a checkpoint of its own."""
        until(self._stage.failed, "an application has failed")
        (failed,) = [one for one in self._stage.queries if one.exception() is not None]
        assert "the application dies" in str(failed.exception())
        self._stage.queries.remove(failed)
        self.start("third")

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        self._sink(batch, batch_id)
        if self._most is not None and len(self._stage.rows()) > self._most:
            self._most = None
            raise RuntimeError("the application dies")


def windows(stage: Stage) -> Applications:
    """Counts and means of an hour."""
    stage.open_with_history()
    stage.table("key text, window_start timestamptz, n bigint, mean float, position text")
    values = {"n": Count(), "mean": Avg("number")}

    def made(name: str) -> DataFrame:
        rows = stage.messages(clientName=name, warmup="true").selectExpr(
            "*", "try_cast(cast(value as string) as int) as number", "value = 'beat' as beat"
        )
        return WindowAggregate(
            "n long, mean double", values, Windows("published_at", 3600), heartbeat="beat"
        ).over(rows)

    columns = ["key", "window_start", "n", "mean", "position"]
    return Applications(stage, made, FencedSink.to_table(stage.url, "result", columns=columns))


def ids(stage: Stage) -> Applications:
    """Each value of a key once within an hour."""
    stage.open_with_history()
    stage.table("key text, value text, published_at timestamptz, headers text")

    def made(name: str) -> DataFrame:
        return (
            DuplicateFilter(["key", "value"], horizon_seconds=3600)
            .over(stage.messages(clientName=name, warmup="true"))
            .withColumn("value", col("value").cast("string"))
        )

    columns = ["key", "value", "published_at", "headers"]
    return Applications(stage, made, FencedSink.to_table(stage.url, "result", columns=columns))


def pairs(stage: Stage) -> Applications:
    """Values of one log that begin with o, each with all of its key that begin with p."""
    stage.open_with_history()
    stage.table("key text, left_value text, right_value text")

    def made(name: str) -> DataFrame:
        rows = stage.messages(clientName=name, warmup="true")
        rows = rows.withColumn("value", col("value").cast("string"))
        join = JoinByKey("kind", ("o", "p"), ["value"], within_seconds=3600)
        return join.over(rows.selectExpr("*", "left(value, 1) as kind"))

    columns = ["key", "left_value", "right_value"]
    return Applications(stage, made, FencedSink.to_table(stage.url, "result", columns=columns))


def pairs_of_two_logs(stage: Stage) -> Applications:
    """One queue reads both logs side by side. The programs are those of the page."""
    for queue in ("orders", "payments"):
        stage.client.create_queue(queue, 2)
    stage.open("matching", None, log="builtin:orders", align_with="payments")
    sides = ("left", "right")
    columns = (f"{side}_{name}" for side in sides for name in ("partition int", "position text"))
    of_pair = ", ".join(f"{side}_partition, {side}_position" for side in sides)
    values = (f"{side}_value bytea" for side in sides)
    stage.table(f"key text, {', '.join(sorted([*columns, *values]))}, UNIQUE ({of_pair})")
    section = ALIGNED.read_text("utf-8").partition("## A join in Spark")[2]
    join, write = (block.partition("```")[0] for block in section.split("```python\n")[1:])

    def made(name: str) -> DataFrame:
        options = f'url="{stage.service.url}", clientName="{name}", queue="matching"'
        names: dict[str, Any] = {"spark": stage.spark}
        exec(join.replace('queue="matching"', options), names)
        found: DataFrame = names["pairs"]
        return found

    names: dict[str, Any] = {"psycopg": psycopg}
    write = write.replace("postgresql://…", stage.url).replace("INTO pairs", "INTO result")
    exec(write, names)
    return Applications(stage, made, names["write"])


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_a_window_is_written_once_and_whole(stage: Stage) -> None:
    applications = windows(stage)
    stage.publish("flights", NOON, ["1", "2"])
    first = applications.share()
    stage.publish("flights", NOON + timedelta(minutes=20), ["3"])
    stage.until_done()
    drain(first)
    stage.publish("flights", NOON + timedelta(minutes=40), ["6"])
    assert stage.rows() == []
    # One message to each partition closes the windows of all its keys.
    stage.publish("flights", NOON + timedelta(hours=1), ["beat"], one_key_of_each(2))
    stage.until_done()
    assert [row[:4] for row in stage.rows()] == [(key, NOON, 4, 3.0) for key in KEYS]
    # Each carries the position that closed it: the last of its partition.
    assert Counter(row[4] for row in stage.rows()).keys() <= {
        str(int(one.position or 0) - 1) for one in stage.client.partitions("flights")
    }


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_an_id_that_comes_again_after_a_drain(stage: Stage) -> None:
    applications = ids(stage)
    stage.publish("flights", NOON, ["a", "b"])
    first = applications.share()
    stage.until_done()
    drain(first)
    stage.publish("flights", NOON + timedelta(hours=1), ["a", "b", "c"])
    stage.publish("flights", NOON + timedelta(hours=2), ["a"])
    stage.until_done()
    wanted = Counter({(key, value): 1 for key in KEYS for value in "abc"})
    # An hour and more after it has passed, an id passes again.
    wanted.update((key, "a") for key in KEYS)
    assert Counter(row[:2] for row in stage.rows()) == wanted


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_pairs_of_two_logs_whose_first_message_came_before_a_drain(stage: Stage) -> None:
    applications = pairs_of_two_logs(stage)
    stage.publish("orders", NOON, ["o1", "o2"])
    stage.publish("payments", NOON, ["p1"])
    first = applications.share(each=2)
    stage.until_done()
    drain(first)
    stage.publish("payments", NOON + timedelta(minutes=1), ["p2"])
    stage.publish("orders", NOON + timedelta(minutes=1), ["o3"])
    stage.until_done()
    orders, payments = ("o1", "o2", "o3"), ("p1", "p2")
    assert found_pairs(stage) == [(key, o, p) for key in KEYS for o in orders for p in payments]


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_windows_in_a_crash_and_resizes(stage: Stage) -> None:
    applications = windows(stage)
    hour = timedelta(hours=1)
    applications.start("first")
    applications.fail_when_written()
    stage.publish("flights", NOON, ["1", "2"])
    stage.publish("flights", NOON + hour, ["beat"], one_key_of_each(2))
    applications.take_over()
    stage.publish("flights", NOON + hour, ["3"])
    stage.until_done()
    wanted = [(key, NOON, 2) for key in KEYS]
    assert [row[:3] for row in stage.rows()] == wanted
    # The open window of a key that moves comes in two parts.
    stage.resize("flights", 3)
    stage.publish("flights", NOON + hour, ["4"])
    stage.publish("flights", NOON + 2 * hour, ["beat"], one_key_of_each(3))
    for key in KEYS:
        wanted += [(key, NOON + hour, 1)] * 2 if key in MOVED else [(key, NOON + hour, 2)]
    stage.until_rows(3, wanted)
    # What is open in a partition that is retired is not written.
    stage.publish("flights", NOON + 2 * hour, ["5"])
    stage.resize("flights", 2)
    stage.publish("flights", NOON + 3 * hour, ["beat"], one_key_of_each(2))
    wanted += [(key, NOON + 2 * hour, 1) for key in KEYS if partition_of(key, 3) < 2]
    stage.until_rows(3, wanted)


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_ids_in_a_crash_and_a_resize(stage: Stage) -> None:
    applications = ids(stage)
    applications.start("first")
    applications.fail_when_written()
    stage.publish("flights", NOON, ["a", "b"])
    applications.take_over()
    stage.publish("flights", NOON, ["a", "c"])
    stage.until_done()
    wanted = [(key, value) for key in KEYS for value in "abc"]
    assert [row[:2] for row in stage.rows()] == wanted
    stage.resize("flights", 3)
    stage.publish("flights", NOON, ["a"])
    stage.until_rows(2, wanted + [(key, "a") for key in MOVED])


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_pairs_in_a_drain_a_crash_and_a_resize(stage: Stage) -> None:
    applications = pairs(stage)
    stage.publish("flights", NOON, ["o1"])
    drained = applications.share()
    stage.until_done()
    drain(drained)
    stage.publish("flights", NOON, ["p1"])
    stage.until_done()
    wanted = [(key, "o1", "p1") for key in KEYS]
    assert stage.rows() == wanted
    applications.fail_when_written()
    stage.publish("flights", NOON, ["p2"])
    applications.take_over()
    stage.until_done()
    wanted = [(key, "o1", value) for key in KEYS for value in ("p1", "p2")]
    assert stage.rows() == wanted
    stage.resize("flights", 3)
    stage.publish("flights", NOON, ["p3"])
    stage.until_rows(3, wanted + [(key, "o1", "p3") for key in KEYS if key not in MOVED])


@pytest.mark.matrix(of="processors in handoffs")
@pytest.mark.long
def test_pairs_of_two_logs_in_a_crash_and_a_resize(stage: Stage) -> None:
    applications = pairs_of_two_logs(stage)
    applications.start("first")
    applications.fail_when_written()
    stage.publish("orders", NOON, ["o1"])
    stage.publish("payments", NOON, ["p1"])
    applications.take_over()
    stage.publish("payments", NOON, ["p2"])
    stage.until_done()
    wanted = [(key, "o1", value) for key in KEYS for value in ("p1", "p2")]
    assert found_pairs(stage) == wanted
    stage.resize("orders", 3)
    stage.resize("payments", 3)
    stage.publish("payments", NOON, ["p3"])
    wanted += [(key, "o1", "p3") for key in KEYS if key not in MOVED]
    until(lambda: found_pairs(stage) == sorted(wanted), "the pairs of keys that stay")


def found_pairs(stage: Stage) -> list[tuple[str, str, str]]:
    return sorted((row[0], row[3].decode(), row[6].decode()) for row in stage.rows())


def one_key_of_each(count: int) -> list[str]:
    """A key of each of so many partitions."""
    return [next(key for key in KEYS if partition_of(key, count) == one) for one in range(count)]


def test_a_missing_column_is_named(stage: Stage) -> None:
    stage.open("flights", 2)
    rows = stage.messages(clientName="one", warmup="true").drop("replay", "key")
    with pytest.raises(InvalidOption, match="key, replay"):
        WindowAggregate("n long", {"n": Count()}, Windows("published_at", 60)).over(rows)
