"""What `StatefulForeachBatch` refuses; what it does is tested with applications."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from counterpoise.spark import Snapshots, StatefulForeachBatch
from counterpoise.spark.channel import NoChannel
from counterpoise.spark.errors import InvalidOption, InvalidSchema
from counterpoise.spark.executor import ARROW_SCHEMA, SCHEMA
from counterpoise.spark.warmup.handler import rows_of
from tests.counterpoise.spark.warmup.test_state import Letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'queue'"):
        StatefulForeachBatch(
            {"qeue": "q"}, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
        )


def test_it_is_called_by_foreach_batch_alone(spark: SparkSession, tmp_path: Path) -> None:
    handler = StatefulForeachBatch(
        {"queue": "q"}, Letters(), lambda *_: None, snapshots=Snapshots(tmp_path)
    )
    with pytest.raises(NoChannel, match="foreachBatch"):
        handler(spark.range(1), 0)
    handler.close()
    handler.close()


def test_the_rows_are_those_of_the_source(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(0, "5", 2, "k", b"v", {"h": "1"}, None, 2, False)], SCHEMA)
    table = rows_of(rows)
    assert table.schema.equals(ARROW_SCHEMA)
    assert table.num_rows == 1
    assert pa.types.is_map(table.schema.field("headers").type)
    with pytest.raises(InvalidSchema, match="select and filter within apply"):
        rows_of(rows.drop("headers"))
