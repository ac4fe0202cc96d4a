"""What the driver plans for tasks: input partitions, and the schema of their rows.

An input partition carries what the task needs to reach the log. Its credentials are short-lived and
hidden wherever an object is shown: they travel inside the pickle and nowhere else.

This is a module of its own because the processes that plan need none of what reads (`tasks`):
Arrow's functions take as long to load as all else of the source's reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from counterpoise.spark.offsets import Slice
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.queue_log import Access, QueueLog

# Spark's form of the source's SCHEMA; a batch must match it exactly.
ARROW_SCHEMA: pa.Schema = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("epoch", pa.int64()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("published_at", pa.timestamp("us", tz="UTC")),
        # The state that a row belongs to, and whether the row is history (docs, Warm-up).
        ("tenure", pa.int64()),
        ("replay", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class LogSource:
    """The log of a task: its public name, and the access to it, which is a secret."""

    log: str
    access: Access = field(repr=False)
    on_trimmed: str = "fail"
    timeout_seconds: float = 120.0


class LogPartition(InputPartition):
    """Slices for one task, each a partition of the queue."""

    def __init__(self, source: LogSource, slices: tuple[Slice, ...]) -> None:
        self.source = source
        self.slices = slices

    def __repr__(self) -> str:
        return f"LogPartition({self.source.log}: {list(self.slices)})"


def log_partition(
    connection: QueueLog, options: SourceOptions, slices: Sequence[Slice]
) -> LogPartition:
    """The input partition of one task, as the driver plans it."""
    source = LogSource(
        connection.name, connection.access, options.on_trimmed, options.read_timeout_seconds
    )
    return LogPartition(source, tuple(slices))
