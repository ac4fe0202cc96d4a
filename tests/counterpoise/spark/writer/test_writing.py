"""Writing to a queue in a real Spark, on a real service and log."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

from counterpoise.logs import open_log
from counterpoise.publisher import Publisher
from counterpoise.spark import QueueSink
from counterpoise.spark.errors import InvalidSink
from tests.counterpoise.spark.queries import QueryStage
from tests.counterpoise.spark.waiting import until
from tests.service import Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.matrix(of="queries that write")]

KEYS = 17


class Stage(QueryStage):
    """The queue `flights` with messages, the queue `out`, and queries from one to the other."""

    def __init__(self, spark: SparkSession, service: Service, home: Path) -> None:
        super().__init__(spark, service, home)
        self.client.create_queue("flights", 4, rebalance_delay=0)
        self.client.create_queue("out", 3, rebalance_delay=0)

    def publish(self, count: int) -> None:
        with Publisher("flights", url=self.service.url) as publisher:
            for number in range(self.published, self.published + count):
                publisher.publish(str(number).encode(), key=f"k{number % KEYS}")
        self.published += count

    def messages(self, **options: Any) -> DataFrame:
        return super().messages(maxMessagesPerTrigger=150, **options)

    def to_queue(self, rows: DataFrame, **options: Any) -> DataStreamWriter:
        writer = rows.writeStream.format("counterpoise")
        return writer.options(queue="out", url=self.service.url, **options)

    def run(self, writer: DataStreamWriter, checkpoint: str = "checkpoint") -> None:
        """Everything that is there. Raises what the query raises."""
        query = self.started(writer.trigger(availableNow=True), checkpoint)
        assert query.awaitTermination(240)
        until(lambda: not self.client.flows("flights"), "the flow unbinds")

    def written(self) -> list[list[str]]:
        """The values in each partition of `out`."""
        view = self.client.log_access("out", "read")
        log = open_log(view.log, view.access, timeout_seconds=150)
        try:
            bounds = log.bounds(range(9))
            return [
                [
                    value.decode()
                    for batch in log.read(number, "0", end, max_messages=10**6)
                    for value in batch["value"].to_pylist()
                ]
                for number, end in sorted(bounds.ends.items())
            ]
        finally:
            log.close()

    def counts(self) -> Counter[str]:
        return Counter(value for values in self.written() for value in values)


@pytest.fixture
def stage(spark: SparkSession, service: Service, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(spark, service, tmp_path)
    yield stage
    stage.end()


def doubled(rows: DataFrame) -> DataFrame:
    """Two rows of each even number, in one place after the other, and none of the odd ones."""
    number = functions.col("value").cast("string")
    twice = functions.array(number, functions.concat(number, functions.lit("b")))
    return rows.where(number % 2 == 0).select(
        "partition", "position", "key", functions.explode(twice).alias("value")
    )


def check(stage: Stage, expected: list[str]) -> None:
    """Each once, and those of each key in order."""
    assert stage.counts() == Counter(expected)
    for values in stage.written():
        for key in range(KEYS):
            own = [value for value in values if int(value.rstrip("b")) % KEYS == key]
            assert own == sorted(own, key=lambda value: (int(value.rstrip("b")), value))


def expected(count: int) -> list[str]:
    return [f"{n}{b}" for n in range(0, count, 2) for b in ("", "b")]


# ------------------------------------------------------------------ chains


@pytest.mark.long
def test_each_message_is_written_once_whatever_application_reads_it(stage: Stage) -> None:
    stage.publish(100)
    stage.run(stage.to_queue(doubled(stage.messages())))
    check(stage, expected(100))
    # Another application reads them all again, and some more.
    stage.client.set_positions("flights", "earliest")
    stage.publish(40)
    stage.run(stage.to_queue(doubled(stage.messages())), "other checkpoint")
    check(stage, expected(140))


@pytest.mark.long
def test_under_another_name_they_are_other_messages(stage: Stage) -> None:
    stage.publish(40)
    for name in ("one", "one", "two"):
        stage.run(stage.to_queue(doubled(stage.messages()), name=name), str(uuid.uuid4()))
        stage.client.set_positions("flights", "earliest")
    assert stage.counts() == Counter(2 * expected(40))


@pytest.mark.long
def test_repetitions_are_known_after_the_output_was_resized(stage: Stage) -> None:
    stage.publish(150)
    query = stage.started(stage.to_queue(doubled(stage.messages())))
    until(lambda: len(stage.counts()) == 150, "all rows")
    # The writer learns of the resize by its refusal.
    stage.client.change_queue("out", partition_count=5)
    stage.publish(50)
    until(lambda: query.exception() or len(stage.counts()) == 200, "the rows after the resize")
    query.stop()
    stage.client.set_positions("flights", "earliest")
    stage.run(stage.to_queue(doubled(stage.messages())), "other checkpoint")
    assert stage.counts() == Counter(expected(200))


# Spark makes joins of them, of which the analyzed plan shows nothing.
SUBQUERIES = {
    "in": "select * from doubled where key in (select key from keys)",
    "exists": "select * from doubled where exists (select 1 from keys where key = doubled.key)",
    "scalar": "select partition, position, key, value from (select *, "
    "(select max(key) from keys where key = doubled.key) found from doubled) where found = key",
}


@pytest.mark.long
@pytest.mark.parametrize("by", ["RepartitionByExpression", "minPartitions", *SUBQUERIES])
def test_a_query_that_may_mix_partitions_is_refused_and_the_sink_brings_them_together(
    stage: Stage, by: str
) -> None:
    stage.publish(100)
    if by == "minPartitions":
        mixed = doubled(stage.messages(minPartitions=16))
    elif by in SUBQUERIES:
        keys = stage.spark.range(KEYS).selectExpr("concat('k', id) as key")
        keys.createOrReplaceTempView("keys")
        doubled(stage.messages()).createOrReplaceTempView("doubled")
        mixed = stage.spark.sql(SUBQUERIES[by])
    else:
        mixed = doubled(stage.messages()).repartition(2, "key")
    said = "subquery" if by in SUBQUERIES else by
    with pytest.raises(StreamingQueryException, match=rf"{said}.*QueueSink"):
        stage.run(stage.to_queue(mixed))
    assert not stage.counts()
    sink = QueueSink("out", url=stage.service.url)
    for checkpoint in ("first", "second"):
        stage.run(mixed.writeStream.foreachBatch(sink), checkpoint)
        stage.client.set_positions("flights", "earliest")
    check(stage, expected(100))
    assert sink.last_report is not None
    assert (sink.last_report.written, sink.last_report.dropped > 0) == (0, True)


@pytest.mark.long
def test_the_sink_does_not_shuffle_what_is_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shuffled(*_: object) -> None:
        raise AssertionError("the rows were repartitioned")

    monkeypatch.setattr("counterpoise.spark.sink.batch.brought_together", shuffled)
    stage.publish(100)
    sink = QueueSink("out", url=stage.service.url)
    stage.run(doubled(stage.messages()).writeStream.foreachBatch(sink))
    check(stage, expected(100))


@pytest.mark.long
def test_two_sinks_of_one_name_are_refused(stage: Stage) -> None:
    stage.publish(10)

    def both(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            QueueSink("out", url=stage.service.url)(batch, batch_id)

    with pytest.raises(StreamingQueryException, match=InvalidSink.__name__):
        stage.run(doubled(stage.messages()).writeStream.foreachBatch(both))


# ------------------------------------------------------------------ other rows


def numbers(stage: Stage, count: int) -> DataFrame:
    return stage.spark.range(0, count, 1, 3).selectExpr(
        "cast(id as string) as value", f"concat('k', id % {KEYS}) as key"
    )


def save(rows: DataFrame, stage: Stage, mode: str = "append", **options: Any) -> None:
    writer = rows.write.format("counterpoise").mode(mode)
    writer.options(queue="out", url=stage.service.url, **options).save()


@pytest.mark.long
def test_a_batch_is_written_and_a_repeatable_job_that_is_repeated_is_not(stage: Stage) -> None:
    save(numbers(stage, 50), stage)
    assert stage.counts() == Counter(map(str, range(50)))
    for _ in range(2):
        save(numbers(stage, 50), stage, repeatable="true", name="job")
    assert stage.counts() == Counter([*map(str, range(50))] * 2)
    assert all(len(values) > 10 for values in stage.written()[:3])


@pytest.mark.long
def test_a_repeated_micro_batch_of_a_repeatable_stream_is_written_once(stage: Stage) -> None:
    (stage.home / "in").mkdir()
    for part in range(3):
        lines = "\n".join(str(10 * part + n) for n in range(10))
        (stage.home / "in" / f"{part}.txt").write_text(lines)

    def run() -> None:
        lines = stage.spark.readStream.option("maxFilesPerTrigger", 1).text(str(stage.home / "in"))
        stage.run(stage.to_queue(lines, repeatable="true"))

    run()
    assert stage.counts() == Counter(map(str, range(30)))
    # As after a crash between the append and Spark's commit log.
    for path in (stage.home / "checkpoint" / "commits").glob("*2*"):
        path.unlink()
    run()
    assert stage.counts() == Counter(map(str, range(30)))


@pytest.mark.long
def test_rows_without_positions_are_written_too(stage: Stage) -> None:
    stage.publish(20)
    stage.run(stage.to_queue(stage.messages().select("key", "value")))
    assert stage.counts() == Counter(map(str, range(20)))
