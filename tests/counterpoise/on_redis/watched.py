"""An application with Spark's pages, its event log and its log at INFO, which has many failures.

It reads a queue in Redis into a fenced sink, reads it and another queue as batches, and fails near
secrets: a task whose log refuses the password, a query whose sink is unreachable. It explains its
plans. Then it waits for the order to end, so that a test can read its pages.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from counterpoise.spark import FencedSink
from tests.counterpoise.spark.application import Application
from tests.counterpoise.spark.jobs.drivers import Setup
from tests.counterpoise.spark.small import SMALL_JAVA
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until

if TYPE_CHECKING:
    from tests.counterpoise.spark.jobs.program import Control

LOGGING = """
rootLogger.level = info
logger.spark.name = org.apache.spark
logger.spark.level = info
logger.often.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecutionContext
logger.often.level = warn
rootLogger.appenderRef.all.ref = all
appender.all.type = Console
appender.all.name = all
appender.all.target = SYSTEM_ERR
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %p %c: %m%n%ex
"""
WATCHED = {
    "spark__ui__enabled": "true",
    "spark__ui__port": "0",
    "spark__eventLog__enabled": "true",
    "spark__eventLog__compress": "false",
    "spark__sql__maxMetadataStringLength": "10000",
    "spark__sql__streaming__metricsEnabled": "true",
}
COLUMNS = ("partition", "position", "value")


class WatchedApplication(Application):
    """`_sink`: the sink's database. `_away`: the same, with an address where no server listens."""

    module = "tests.counterpoise.on_redis.watched"
    patience_seconds = 300.0  # it starts after everything else

    def setup(self) -> Setup:
        events = self.home / "events"
        events.mkdir(exist_ok=True)  # it may be asked for twice
        log4j = self.home / "log4j2.properties"
        log4j.write_text(LOGGING)
        java = f"{SMALL_JAVA} -Dlog4j2.configurationFile={log4j}"
        at_start = {
            "spark__eventLog__dir": events.as_uri(),
            "spark__driver__extraJavaOptions": java,
        }
        # Its pages must show the application alone.
        return Setup(config={**WATCHED, **at_start}, first_query=False)

    def page(self) -> str:
        """The address of its pages, once everything is done."""
        return (self.home / "page").read_text()


def explained(frame: DataFrame) -> DataFrame:
    for mode in ("extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    return frame


def failed(exception: BaseException | None, with_text: str) -> None:
    """Show the failure like programs do; it must be the intended one."""
    assert exception is not None, f"nothing has failed with {with_text}"
    traceback.print_exception(exception)
    assert with_text in str(exception)


@contextlib.contextmanager
def another_password(access: str) -> Any:
    """Redis gets another password than that of `access`, and accepts no old connection."""
    with redis.Redis.from_url(access) as admin:
        before = admin.config_get("requirepass")["requirepass"]
        admin.config_set("requirepass", "another")
        try:
            admin.client_kill_filter(_type="normal", skipme=True)
            yield
        finally:
            admin.config_set("requirepass", before)


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    home = Path(settings["home"])
    options = dict(settings["options"])
    sink_url, away_url = options.pop("_sink"), options.pop("_away")

    def stream(name: str, sink: FencedSink) -> StreamingQuery:
        messages = spark.readStream.format("counterpoise").options(**options, instanceId=name)
        return started(
            messages.load()
            .writeStream.foreachBatch(sink)
            .queryName(name)
            .option("checkpointLocation", str(home / "checkpoints" / name))
        )

    spark.sparkContext.setLogLevel("INFO")
    fails = stream("fails", FencedSink.to_table(away_url, "elsewhere", retry_seconds=0.2))
    until(lambda: not fails.isActive, "a stream has failed")
    failed(fails.exception(), "onnection")
    query = stream("works", FencedSink.to_table(sink_url, "events", columns=COLUMNS))
    until(lambda: query.recentProgress or query.exception(), "another has worked")
    query.processAllAvailable()
    query.explain(extended=True)
    read_as_batches(spark, options)
    (home / "page").write_text(spark.sparkContext.uiWebUrl or "")
    control.run(query)


def read_as_batches(spark: SparkSession, options: Mapping[str, str]) -> None:
    reader = spark.read.format("counterpoise")
    where = {name: options[name] for name in ("url", "queue", "logUrl")}
    explained(reader.options(**where).load()).collect()
    # In the built-in log, with what the service gives for it.
    explained(reader.options(url=options["url"], queue="inside", logUrl="").load()).collect()
    messages = reader.options(**where, readTimeoutSeconds="2").load()
    assert messages.rdd.getNumPartitions()  # planned
    with another_password(options["logUrl"]):
        try:
            messages.collect()
        except Exception as error:
            failed(error, "LogAccessRefused")
        else:
            failed(None, "LogAccessRefused")
