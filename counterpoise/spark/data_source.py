"""The data source `counterpoise` and its registration in Spark.

Before a query runs, Spark checks the options in a separate process. So nothing here loads Arrow, or
the readers, before a reader is created.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from counterpoise.spark.channel import FORMAT, driver_home
from counterpoise.spark.driver import finish_batches, listen
from counterpoise.spark.environment import ensure_java, installed_pyspark
from counterpoise.spark.errors import CannotStart, InvalidSchema
from counterpoise.spark.options import read_options

if TYPE_CHECKING:
    from counterpoise.spark.reader import CounterpoiseBatchReader, CounterpoiseStreamReader

SCHEMA = (
    "partition int, position string, epoch long, key string, value binary, "
    "headers map<string,string>, published_at timestamp, tenure long, replay boolean"
)


class CounterpoiseDataSource(DataSource):
    """`spark.readStream.format("counterpoise").option("queue", ...)`, and `spark.read` likewise.

    Wrong options are refused on load, before any query starts; options of the other kind of read,
    and a schema, when Spark creates the reader. `cores` is the limit of tasks that read a
    micro-batch; `register` sets it to the session's cores. `home` is the directory of the `channel`
    between a query's source and the driver; None without `register`.
    """

    cores: int | None = None
    home: str | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))
        self._checked = read_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> CounterpoiseStreamReader:  # noqa: N802
        from counterpoise.spark.reader import CounterpoiseStreamReader

        check_schema(schema)
        return CounterpoiseStreamReader(self._checked.for_stream(), self._most_tasks(), self.home)

    def reader(self, schema: StructType) -> CounterpoiseBatchReader:
        from counterpoise.spark.reader import CounterpoiseBatchReader

        check_schema(schema)
        return CounterpoiseBatchReader(self._checked, self._most_tasks())

    def _most_tasks(self) -> int:
        return self.cores or os.cpu_count() or 1


def check_schema(schema: StructType) -> None:
    """Raises InvalidSchema if the user gave a schema other than the source's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from counterpoise.spark.tasks import ARROW_SCHEMA

    if schema != from_arrow_schema(ARROW_SCHEMA):
        raise InvalidSchema(
            f"the source always has the columns ({SCHEMA}): leave .schema(...) out, and choose and "
            f"convert columns of what is loaded. The schema given is {schema.simpleString()}"
        )


def register(spark: SparkSession) -> None:
    """Register `format("counterpoise")` in the session."""
    cores = max(1, spark.sparkContext.defaultParallelism)
    members = {"cores": cores, "home": driver_home()}
    source = type("SessionDataSource", (CounterpoiseDataSource,), members)
    spark.dataSource.register(source)
    listen(spark, driver_home())
    finish_batches()


def session(app_name: str = "counterpoise", **config: str) -> SparkSession:
    """A Spark session with the source registered, even if no Java is installed.

    `config` are Spark settings with `__` for dots (`spark__sql__shuffle__partitions="2"`). Without
    spark-submit the master is `local[*]` unless set. An existing session is used unchanged. Raises
    CannotStart if there is no Java.
    """
    if ensure_java() is None:
        raise CannotStart(
            "Spark needs Java 17 or newer: pip install 'counterpoise[spark]' brings one"
        )
    builder = SparkSession.builder.appName(app_name)
    settings = {key.replace("__", "."): value for key, value in config.items()}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has chosen the master
        settings.setdefault("spark.master", "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with installed_pyspark(settings.get("spark.master")):
        spark = builder.getOrCreate()
    register(spark)
    return spark
