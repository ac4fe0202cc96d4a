"""The data source `counterpoise` and its registration in Spark.

Before a query runs, Spark checks the options in a separate process. So nothing here loads Arrow, or
the readers, before a reader is created.
"""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark import __version__ as version
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from counterpoise.spark.channel.channel import FORMAT, driver_home, is_of_connect
from counterpoise.spark.driver.driver import DoneListener, finish_batches, listen
from counterpoise.spark.driver.environment import ensure_java, installed_pyspark
from counterpoise.spark.driver.plain_errors import QUERIES, SOURCES, silence, use_own_words
from counterpoise.spark.driver.stateful import refuse_at_start
from counterpoise.spark.errors import CannotStart, InvalidOption
from counterpoise.spark.options import read_options
from counterpoise.spark.version import has_read_limits
from counterpoise.spark.writer.options import is_for_writing, write_options

if TYPE_CHECKING:
    from counterpoise.spark.options import SourceOptions
    from counterpoise.spark.source.reader import CounterpoiseBatchReader, CounterpoiseStreamReader
    from counterpoise.spark.writer.writers import BatchWriter, StreamWriter

logger = logging.getLogger("counterpoise.spark")

SCHEMA = (
    "partition int, position string, epoch long, key string, value binary, "
    "headers map<string,string>, published_at timestamp, tenure long, replay boolean"
)


class CounterpoiseDataSource(DataSource):
    """`spark.readStream.format("counterpoise").option("queue", ...)`, and `spark.read` likewise;
    `writeStream` and `write` of a DataFrame (docs, *Writing*).

    Spark does not say what an object is for before it asks for a reader or a writer. Wrong options
    of a read are refused on load; options of the other kind of read, and a schema, when Spark
    creates the reader; options of a write when it creates the writer.

    `cores` is the limit of tasks that read, unless an option names one; `register` sets it to the
    session's cores. `home` is the directory of the `channel` between a query's source and the
    driver; None without `register`.
    """

    cores: int | None = None
    home: str | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))
        if not is_for_writing(options):
            self._read_options()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        self._read_options()
        return SCHEMA

    def streamReader(self, schema: StructType) -> CounterpoiseStreamReader:  # noqa: N802
        check_schema(schema)
        options = self._read_options().for_stream()
        return stream_reader()(options, self._most_tasks(options), self.home)

    def reader(self, schema: StructType) -> CounterpoiseBatchReader:
        from counterpoise.spark.source.reader import CounterpoiseBatchReader

        check_schema(schema)
        options = self._read_options()
        return CounterpoiseBatchReader(options, self._most_tasks(options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from counterpoise.spark.driver.chains import chains_in
        from counterpoise.spark.writer.writers import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite, chains_in(self.home))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from counterpoise.spark.writer.writers import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite)

    def _read_options(self) -> SourceOptions:
        return read_options(self.options)

    def _most_tasks(self, options: SourceOptions) -> int:
        return options.max_input_partitions or self.cores or os.cpu_count() or 1


def stream_reader() -> type[CounterpoiseStreamReader]:
    """The reader of streams for this version of PySpark."""
    if has_read_limits(version):
        from counterpoise.spark.source.with_limits import StreamReaderWithLimits

        return StreamReaderWithLimits
    from counterpoise.spark.source.without_limits import StreamReaderWithoutLimits

    return StreamReaderWithoutLimits


def check_schema(schema: StructType) -> None:
    """Raises InvalidOption if the user gave a schema other than the source's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from counterpoise.spark.source.log_partition import ARROW_SCHEMA

    if schema != from_arrow_schema(ARROW_SCHEMA):
        raise InvalidOption(
            f"the source always has the columns ({SCHEMA}): leave .schema(...) out, and choose and "
            f"convert columns of what is loaded. The schema given is {schema.simpleString()}"
        )


def register(spark: SparkSession) -> None:
    """Register `format("counterpoise")` in the session.

    Also where Spark finds the source by itself (`pyspark_counterpoise`): only then can the source
    talk with this driver. Over Spark Connect it cannot, and a warning says what is missing.
    """
    if is_of_connect(spark):
        from counterpoise.spark.driver.connect import refuse_at_start as refuse_over_connect

        spark.dataSource.register(CounterpoiseDataSource)
        use_own_words(connect=True)
        refuse_over_connect()
        logger.warning(
            "counterpoise: over Spark Connect, drain, QueueListener and FencedSink do not work; "
            "positions are committed when Spark asks for the next offset, and a query that an "
            "administrator drains ends with an error"
        )
        return
    cores = max(1, spark.sparkContext.defaultParallelism)
    members = {"cores": cores, "home": driver_home()}
    silence(spark, SOURCES)
    source = type("SessionDataSource", (CounterpoiseDataSource,), members)
    spark.dataSource.register(source)
    listen(spark, driver_home())
    use_own_words()
    finish_batches()
    refuse_at_start(spark)


def session(app_name: str = "counterpoise", **config: str) -> SparkSession:
    """A Spark session with the source registered, even if no Java is installed.

    `config` are Spark settings with `__` for dots (`spark__sql__shuffle__partitions="2"`). Without
    spark-submit the master is `local[*]` unless set. With `SPARK_REMOTE` or `spark__remote` the
    session is one of Spark Connect, and needs no Java. An existing session is used unchanged.
    Raises CannotStart if there is no Java.
    """
    settings = {key.replace("__", "."): value for key, value in config.items()}
    remote = settings.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if (remote is None or remote.startswith("local")) and ensure_java() is None:
        raise CannotStart(
            "Spark needs Java 17 or newer: pip install 'counterpoise[spark]' brings one"
        )
    builder = SparkSession.builder.appName(app_name)
    # spark-submit has chosen the master, and a server has its own.
    if remote is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings.setdefault("spark.master", "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with installed_pyspark(settings.get("spark.master")):
        spark = builder.getOrCreate()
    register(spark)
    _log_own_words(spark)
    return spark


def _log_own_words(spark: SparkSession) -> None:
    """Log errors that end queries in one line, without Spark's stacks."""
    listener: DoneListener | None = getattr(spark, "_counterpoise_listener", None)
    if listener is not None:
        listener.logs_failures = silence(spark, QUERIES)
