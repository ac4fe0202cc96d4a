"""The tests' application with every sink, on all queues `orders-*` in one stream.

Before its query it tries what must not start, and writes down how that is refused. And it writes
messages to a queue that come from none, by a batch and by a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from counterpoise.client import Client
from counterpoise.spark.version import has_read_limits
from tests.counterpoise.spark.application import Sink, text
from tests.counterpoise.spark.sink.application import FencedApplication, started_at
from tests.counterpoise.spark.stage import KEYS
from tests.counterpoise.spark.starting import started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.counterpoise.spark.jobs.program import Control

AGAIN = 6 * KEYS
"""Ids are new after so many messages, and come again until then."""
HAS_PROCESSORS = not pyspark.__version__.startswith("4.0.")


class EverySink(FencedApplication):
    """`results`: a database, a queue, and a queue for others."""

    module = "tests.counterpoise.spark.situations"

    def settings(self) -> dict[str, Any]:
        """`ends_driver`: by `spark.stop()`, while its query runs."""
        return super().settings() | {"ends_driver": self.ends_driver}

    def held(self) -> bool:
        return (self.home / "held").exists()

    def refused(self) -> dict[str, str]:
        """What was refused, and why."""
        found: dict[str, str] = json.loads((self.home / "refused").read_text())
        return found


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from counterpoise.spark import (
        Count,
        Deduplicate,
        FencedAggregate,
        FencedSink,
        QueueSink,
        Sum,
        Windows,
        read_queues,
    )
    from counterpoise.spark.sink.insert import Insert

    home = Path(settings["home"])
    database, url = settings["results"]["database"], settings["options"]["url"]
    options = {name: value for name, value in settings["options"].items() if name != "queue"}
    rows = read_queues(spark, "orders-*", **options)
    (home / "refused").write_text(json.dumps(dict(refusals(spark, rows))))
    write_others(spark, home, {"queue": settings["results"]["others"], "url": url})
    numbers = rows.selectExpr(
        *("queue", "partition", "position", "epoch", "key", "published_at", "value"),
        "cast(cast(value as string) as bigint) as x",
        "concat_ws('/', queue, cast(value as string)) as name",
        f"concat_ws('/', key, cast(value as string) div {AGAIN}) as id",
    )
    everything = Insert("events", ("queue", "x"))
    unique = Deduplicate(Insert("ids", ("queue", "id")), ["id"], horizon_seconds=10**8)

    def insert(*of: Any) -> None:
        everything(*of)
        unique(*of)

    fenced = FencedSink(database, insert, name="events", confirm_seconds=240)
    counted = FencedAggregate(
        database,
        "hourly",
        values={"n": Count(), "total": Sum("x")},
        by=("queue", "key"),
        windows=Windows("published_at", 3600),
        confirm_seconds=240,
    )
    chained = QueueSink(settings["results"]["queue"], url=url)
    plain = Sink(home)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            fenced(batch, batch_id)
            if text(home / "hold") == "amid" and not batch.isEmpty():
                plain.wait_if("amid")
            counted(batch, batch_id)
            chained(
                batch.selectExpr("queue", "partition", "position", "cast(name as binary) value"),
                batch_id,
            )
            plain(batch.withColumn("value", batch["name"].cast("binary")), batch_id)
        finally:
            batch.unpersist()

    query = started_at(home, numbers.writeStream.foreachBatch(write), queues=2)
    if not settings["ends_driver"]:
        control.run(query)
        return
    control.wait(query)
    spark.stop()
    with Client(url) as client:
        queues = [one.name for one in client.queues() if one.name.startswith("orders-")]
        bound = {flow.client_name for name in queues for flow in client.flows(name)}
    assert settings["name"] not in bound, "it leaves its queues before stop returns"


def others(names: Iterable[str]) -> list[str]:
    """What applications of these names write, however often they start."""
    return [*map(str, range(9)), *names]


def write_others(spark: SparkSession, home: Path, target: Mapping[str, str]) -> None:
    """A batch that all applications have, and a stream of the application's own file."""
    target = {**target, "repeatable": "true"}
    rows = spark.range(9).selectExpr("cast(id as string) value").write.mode("append")
    rows.format("counterpoise").options(**target, name="others").save()
    (home / "others").mkdir(exist_ok=True)
    (home / "others" / "file").write_text(home.name)
    stream = spark.readStream.text(str(home / "others")).writeStream.trigger(availableNow=True)
    stream = stream.format("counterpoise").options(**target)
    started(stream.option("checkpointLocation", str(home / "written"))).awaitTermination()


def refusals(spark: SparkSession, rows: DataFrame) -> Iterator[tuple[str, str]]:
    """What is refused, and the error."""
    lost: dict[str, Callable[[DataFrame], DataFrame]] = {
        "groupBy": lambda rows: rows.groupBy("key").count(),
        "with": in_sql,
        "dropDuplicates": lambda rows: rows.dropDuplicates(["key"]),
        "distinct": lambda rows: rows.select("key").distinct(),
        "limit": lambda rows: rows.limit(5),
        "join": lambda rows: rows.join(spark.readStream.format("rate").load(), rows.key == "a"),
        "processor": with_processor,
    }
    for name, shape in lost.items():
        yield name, _refused(shape(rows).writeStream.format("noop").outputMode("update").start)
    if not HAS_PROCESSORS:
        yield "processors", _refused(lambda: __import__("counterpoise.spark.processors"))
    if not has_read_limits(pyspark.__version__):
        ends = rows.writeStream.format("noop").trigger(availableNow=True)
        yield "availableNow", _refused(ends.start)


def _refused(start: Callable[[], Any]) -> str:
    try:
        start()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "started"


def in_sql(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.sql("with t as (select * from rows) select distinct key from t")


def with_processor(rows: DataFrame) -> DataFrame:
    """State in a processor that knows nothing of tenures."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Own(StatefulProcessor):
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield from rows

    grouped = rows.groupBy("key")
    name = "transformWithState" if HAS_PROCESSORS else "transformWithStateInPandas"
    made: DataFrame = getattr(grouped, name)(Own(), "key string", "Update", "None")
    return made
