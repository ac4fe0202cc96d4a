"""Starting a query on a machine that may stall, in any session.

In one that was registered `start` does this by itself (`counterpoise.spark.driver.launch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterpoise.spark.driver.launch import connected

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def started(writer: DataStreamWriter) -> StreamingQuery:
    """The query, started and initialised, or ended by another error than that one."""
    return connected(writer.start)
