"""The tests' application of a chain: from queue to queue, in two stages, each a query.

`flights` leads to `middle`: of each third number nothing, of the others two rows. `middle` leads to
`results`, one row of each. In the first stage a row whose number is in the file `hold` waits on its
executor while the file exists: then rows of the same task before it may have been appended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

from tests.counterpoise.spark.application import Application
from tests.counterpoise.spark.sink.application import wait_if
from tests.counterpoise.spark.starting import started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.counterpoise.spark.jobs.program import Control


class ChainApplication(Application):
    """An application with both stages."""

    module = "tests.counterpoise.spark.writer.application"

    def hold_at(self, number: int) -> None:
        """Let the task that has the row of this number wait there."""
        self.hold(str(number))

    def stop_its_sources(self) -> None:
        """SIGSTOP to the processes of its sources, which then tell the service nothing."""
        self._signal(signal.SIGSTOP)

    def let_its_sources_go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in (self.home / "sources").read_text().split():
            os.kill(int(process), number)


def made_of(number: int) -> list[str]:
    """The values that the message `number` leads to in the end."""
    return [] if number % 3 == 0 else [f"{number}.0", f"{number}.1"]


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from tests.counterpoise.spark.jobs.program import source_processes

    home = Path(settings["home"])
    # So that a task that waits at a row has written those of its partitions before.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    others = source_processes()
    queries = [
        start(spark, settings, "flights", "middle", _doubled(home)),
        start(spark, settings, "middle", "results", lambda rows: rows),
    ]
    (home / "sources").write_text(" ".join(map(str, source_processes() - others)))
    control.run(*queries)


def start(
    spark: SparkSession,
    settings: Mapping[str, Any],
    source: str,
    target: str,
    shape: Callable[[DataFrame], DataFrame],
) -> StreamingQuery:
    options = {**settings["options"], "queue": source}
    rows = shape(spark.readStream.format("counterpoise").options(**options).load())
    writer = rows.writeStream.format("counterpoise").options(queue=target, url=options["url"])
    checkpoint = Path(settings["home"]) / f"checkpoint-{source}"
    return started(writer.option("checkpointLocation", str(checkpoint)))


def _doubled(home: Path) -> Callable[[DataFrame], DataFrame]:
    @functions.udf("string")
    def passed(value: bytes) -> str:
        wait_if(home, value.decode())
        return value.decode()

    def shape(rows: DataFrame) -> DataFrame:
        number = functions.col("number")
        twice = [functions.concat(number, functions.lit(end)) for end in (".0", ".1")]
        return (
            rows.withColumn("number", passed("value"))
            .where("number % 3 != 0")
            .select(
                "partition",
                "position",
                "key",
                functions.explode(functions.array(*twice)).alias("value"),
            )
        )

    return shape
