"""The time of a partition, as state that follows the partition (docs, *Processors*).

The *partition time* of a row is the largest event time of its partition, up to and including this
row. Like all state it is a function of the log. So it never goes back, it does not depend on
micro-batches and owners, and the rows of the history restore it exactly. For this one key must hold
all state of a partition: rows are grouped by `partition` alone.

One wrong time must not end a partition. No clock can tell which time is wrong: a later owner reads
the same row at another time, would decide otherwise, and so restore another state. The log can. A
time that is too far ahead of the partition time counts only when the next row *confirms* it, by a
time that is not as far before it. So the time also goes on after a silence, one row later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.functions import col, unix_micros
from pyspark.sql.types import StructType

from counterpoise.spark.aggregates.windows import AHEAD_SECONDS, ahead_of
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.state.processor import TenuredProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TIME = "counterpoise_time"
"""The column of the event time in microseconds since 1970, which `timed` adds."""

Timed = Sequence[tuple[Row, int | None]]
"""Rows, each with the partition time in microseconds; None before the first row with a time."""


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """The partition time after some rows, in microseconds.

    `confirmed`: None before rows agree. `last`: the time of the last row that has one.
    """

    confirmed: int | None = None
    last: int | None = None

    @property
    def now(self) -> int | None:
        """The partition time. Until rows agree it is that of the row alone, and may go back: what
        earlier rows have opened lies after it then.
        """
        return self.last if self.confirmed is None else self.confirmed

    def after(self, time: int | None, ahead: int) -> PartitionTime:
        """After one more row, which moves it by at most `ahead` unless rows agree."""
        if time is None:
            return self
        confirmed = self.confirmed
        if self.last is not None and self.last <= time + ahead:
            confirmed = later(confirmed, self.last)
        if confirmed is not None and time <= confirmed + ahead:
            confirmed = max(confirmed, time)
        return PartitionTime(confirmed, time)


def timed(rows: DataFrame, time: str, needed: Iterable[str]) -> DataFrame:
    """The rows with the column `TIME`. Raises InvalidOption if a column is missing."""
    missing = sorted({"partition", "position", "tenure", "replay", time, *needed} - {*rows.columns})
    if missing:
        raise InvalidOption(f"the processor needs the column {', '.join(missing)} of its rows")
    return rows.withColumn(TIME, unix_micros(col(time)))


def later(one: int | None, other: int | None) -> int | None:
    """The later of two times, of which None is none."""
    return max((time for time in (one, other) if time is not None), default=None)


def held(value: Any) -> Any:
    """A value of a row as the state holds it. Spark gives a map as pairs, and JSON would make lists
    of them, which Spark does not take back.
    """
    if isinstance(value, dict):
        return {key: held(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(type(one) is tuple and len(one) == 2 for one in value):
        return {key: held(one) for key, one in value}
    return [held(one) for one in value]


class PartitionProcessor(TenuredProcessor):
    """A processor of the rows of one partition, in order, each with its partition time.

    `time`: a column of timestamps. `heartbeat`: a boolean column; rows where it is true only move
    the partition time. `ahead_seconds`: how far one row alone may move it; None: without limit.
    """

    def __init__(
        self,
        time: str,
        heartbeat: str | None = None,
        ahead_seconds: float | None = AHEAD_SECONDS,
    ) -> None:
        """Raises ValueError."""
        self._time = time
        self._heartbeat = heartbeat
        self._ahead = ahead_of(ahead_seconds)

    def over(self, rows: DataFrame) -> DataFrame:
        """What the processor makes of the rows of a source with `warmup=true`.

        The query needs RocksDB as its state store. Raises InvalidOption.
        """
        needed = [*self.needed(), *([] if self._heartbeat is None else [self._heartbeat])]
        grouped = timed(rows, self._time, needed).groupBy("partition")
        return grouped.transformWithState(self, self.result(rows.schema), "Append", "None")

    def open(self, handle: Any) -> None:
        self._clock = handle.getValueState("counterpoise_clock", "confirmed long, last long")

    def clear(self) -> None:
        self._clock.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        known = self._clock.get()
        clock = PartitionTime(*known or ())
        found = []
        for row in rows:
            clock = clock.after(row[TIME], self._ahead)
            found.append((row, clock.now))
        self._clock.update((clock.confirmed, clock.last))
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
