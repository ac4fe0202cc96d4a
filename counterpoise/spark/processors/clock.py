"""The time of a partition, as state that follows the partition (docs, *Processors*).

The *partition time* of a row is the largest event time of its partition, up to and including this
row. Like all state it is a function of the log. So it never goes back, it does not depend on
micro-batches and owners, and the rows of the history restore it exactly. For this one key must hold
all state of a partition: rows are grouped by `partition` alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.functions import col, unix_micros
from pyspark.sql.types import StructType

from counterpoise.spark.errors import InvalidSchema
from counterpoise.spark.state.processor import TenuredProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TIME = "counterpoise_time"
"""The column of the event time in microseconds since 1970, which `timed` adds."""

Timed = Sequence[tuple[Row, int | None]]
"""Rows, each with the partition time in microseconds; None before the first row with a time."""


def timed(rows: DataFrame, time: str, needed: Iterable[str]) -> DataFrame:
    """The rows with the column `TIME`. Raises InvalidSchema if a column is missing."""
    missing = sorted({"partition", "position", "tenure", "replay", time, *needed} - {*rows.columns})
    if missing:
        raise InvalidSchema(f"the processor needs the column {', '.join(missing)} of its rows")
    return rows.withColumn(TIME, unix_micros(col(time)))


def later(one: int | None, other: int | None) -> int | None:
    """The later of two times, of which None is none."""
    return max((time for time in (one, other) if time is not None), default=None)


class PartitionProcessor(TenuredProcessor):
    """A processor of the rows of one partition, in order, each with its partition time.

    `time`: a column of timestamps. `heartbeat`: a boolean column; rows where it is true move the
    partition time and are nothing else.
    """

    def __init__(self, time: str, heartbeat: str | None = None) -> None:
        self._time = time
        self._heartbeat = heartbeat

    def over(self, rows: DataFrame) -> DataFrame:
        """What the processor makes of the rows of a source with `warmup=true`.

        The query needs RocksDB as its state store. Raises InvalidSchema.
        """
        needed = [*self.needed(), *([] if self._heartbeat is None else [self._heartbeat])]
        grouped = timed(rows, self._time, needed).groupBy("partition")
        return grouped.transformWithState(self, self.result(rows.schema), "Append", "None")

    def open(self, handle: Any) -> None:
        self._clock = handle.getValueState("counterpoise_clock", "latest long")

    def clear(self) -> None:
        self._clock.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        known = self._clock.get()
        latest: int | None = None if known is None else known[0]
        found = []
        for row in rows:
            latest = later(latest, row[TIME])
            found.append((row, latest))
        if latest is not None:
            self._clock.update((latest,))
        yield from self.on_timed_rows(found)

    def is_heartbeat(self, row: Row) -> bool:
        """Whether the row only moves the partition time."""
        return self._heartbeat is not None and bool(row[self._heartbeat])

    # ------------------------------------------------------------------ overridden

    def needed(self) -> Iterable[str]:
        """The columns that the rows must have, besides those of the source and the time."""
        return ()

    @abstractmethod
    def result(self, schema: StructType) -> StructType:
        """The schema of the output, for rows of this schema."""

    @abstractmethod
    def on_timed_rows(self, rows: Timed) -> Iterator[Row]:
        """Change the state of the partition by rows of one tenure; yields the output."""
