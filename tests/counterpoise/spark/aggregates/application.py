"""The tests' application with an aggregate; it holds before or after it has counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counterpoise.spark.sink.application import FencedApplication, wait_if
from tests.counterpoise.spark.starting import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control


class CountingApplication(FencedApplication):
    """Counts the keys of each hour, and sums and lists what their messages say."""

    module = "tests.counterpoise.spark.aggregates.application"


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from counterpoise.spark import Count, FencedAggregate, Last, Sum, Windows

    home = Path(settings["home"])
    sink = FencedAggregate(
        settings["results"]["database"],
        "hourly",
        values={"n": Count(), "total": Sum("x"), "last": Last("x")},
        windows=Windows("published_at", 3600),
        confirm_seconds=240,
    )

    def count(batch: Any, batch_id: int) -> None:
        wait_if(home, "before")
        sink(batch, batch_id)
        wait_if(home, "after")

    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    numbers = messages.selectExpr(
        *("partition", "position", "key", "published_at"),
        "cast(cast(value as string) as bigint) as x",
    )
    control.run(
        started(
            numbers.writeStream.foreachBatch(count).option(
                "checkpointLocation", str(home / "checkpoint")
            )
        )
    )
