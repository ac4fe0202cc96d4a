"""Y7: the simplest Python data source. Its rows lie in memory as Arrow, in the source's schema.

What it takes is Spark's own: planning, tasks, the way of the rows from a Python worker into the
JVM, and into the sink. No Python data source can be faster. Without rows, it shows what Spark takes
for a micro-batch of nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks import floor as module
from counterpoise.spark.data_source import SCHEMA
from counterpoise.spark.source.log_partition import ARROW_SCHEMA

FORMAT = "counterpoise_yardstick"
# About a chunk of the log.
CHUNK_MESSAGES = 4000


class Rows(InputPartition):
    """So many chunks of rows of so many bytes."""

    def __init__(self, chunks: int, size: int) -> None:
        self.chunks = chunks
        self.size = size


class FloorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`batches` micro-batches of so many chunks each, in as many tasks as there are cores."""

    def __init__(self, batches: int, chunks: int, size: int, cores: int) -> None:
        self._batches = batches
        self._chunks = chunks
        self._size = size
        self._cores = cores

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        whole, rest = divmod(self._chunks, self._cores)
        return [Rows(whole + (task < rest), self._size) for task in range(self._cores)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        if not partition.chunks:
            return
        value = os.urandom(partition.size)
        columns = {
            "partition": [1] * CHUNK_MESSAGES,
            "position": [str(number) for number in range(CHUNK_MESSAGES)],
            "epoch": [1] * CHUNK_MESSAGES,
            "key": [f"key-{number}" for number in range(CHUNK_MESSAGES)],
            "value": [value] * CHUNK_MESSAGES,
            "headers": [None] * CHUNK_MESSAGES,
            "published_at": [0] * CHUNK_MESSAGES,
            "tenure": [1] * CHUNK_MESSAGES,
            "replay": [False] * CHUNK_MESSAGES,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)
        for _ in range(partition.chunks):
            yield batch


class FloorSource(DataSource):
    """`format(FORMAT)` with the options batches, chunks, size and cores."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> FloorReader:  # noqa: N802
        return FloorReader(*(int(self.options[n]) for n in ("batches", "chunks", "size", "cores")))


def register(spark: SparkSession) -> None:
    """Make it known to the session; its workers do not find this module by themselves."""
    cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(FloorSource)
