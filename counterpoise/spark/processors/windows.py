"""Aggregates in windows of event time, of the rows of one partition.

A window is closed by the first row whose partition time is at least `delay_seconds` past the
window's end. The result has the position of this row. So it belongs to one range of the source, and
the fenced sink writes it once. Rows of windows that are closed are late and dropped. Which rows are
late, and which row closes a window, depend on the rows of the partition alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.functions import timestamp_micros
from pyspark.sql.types import StructType

from counterpoise.spark.aggregates.partials import (
    Mark,
    Values,
    from_text,
    merged,
    partial_of,
    results_of,
    to_text,
)
from counterpoise.spark.aggregates.windows import Windows
from counterpoise.spark.processors.clock import TIME, PartitionProcessor, Timed, held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Place = tuple[int, int, str]
"""A window and a group in it: its end and its start in microseconds, the group as text."""

_BOUNDS = ("window_start", "window_end")


class WindowAggregate(PartitionProcessor):
    """One row for each closed window and group: partition, position, window_start, window_end, the
    columns of `by`, and `values`.

    `schema`: the columns of the values (`"readings long, mean double"`). `values`: an `Aggregate`
    for each. A group has the same key, or is otherwise within one partition: else each partition
    has a row of it.
    """

    def __init__(
        self,
        schema: str,
        values: Values,
        windows: Windows,
        *,
        by: Sequence[str] = ("key",),
        heartbeat: str | None = None,
    ) -> None:
        super().__init__(windows.time, heartbeat, windows.ahead_seconds)
        self._schema = schema
        self._values = dict(values)
        self._windows = windows
        self._by = tuple(by)

    def over(self, rows: DataFrame) -> DataFrame:
        return super().over(rows).withColumns({one: timestamp_micros(one) for one in _BOUNDS})

    def needed(self) -> Iterable[str]:
        return {*self._by, *self._columns()}

    def result(self, schema: StructType) -> StructType:
        result = StructType([schema["partition"], schema["position"]])
        for bound in _BOUNDS:
            result.add(bound, "long")
        for name in self._by:
            result.add(schema[name])
        for value in _parsed(self._schema):
            result.add(value)
        return result

    def open(self, handle: Any) -> None:
        super().open(handle)
        self._partials = handle.getMapState(
            "partials", "window_end long, window_start long, of string", "partial string"
        )
        # The earliest end of an open window, so that most rows need not go through all windows.
        self._next = handle.getValueState("next", "window_end long")

    def clear(self) -> None:
        super().clear()
        self._partials.clear()
        self._next.clear()

    def on_timed_rows(self, rows: Timed) -> Iterator[Row]:
        known = self._next.get()
        earliest: int | None = None if known is None else known[0]
        new: dict[Place, list[Row]] = {}
        for row, now in rows:
            if now is None:
                continue
            bound = now - self._windows.delay
            if earliest is not None and earliest <= bound:
                self._add(new)
                new = {}
                earliest = yield from self._close(bound, row)
            if row[TIME] is None or self.is_heartbeat(row):
                continue
            group = to_text([row[name] for name in self._by])
            for start, end in self._windows.of(row[TIME]):
                if end > bound:
                    new.setdefault((end, start, group), []).append(row)
                    earliest = end if earliest is None else min(earliest, end)
        self._add(new)
        if earliest is None:
            self._next.clear()
        else:
            self._next.update((earliest,))

    def _add(self, new: Mapping[Place, Sequence[Row]]) -> None:
        for place, rows in new.items():
            columns = {name: [held(row[name]) for row in rows] for name in self._columns()}
            partial = partial_of(self._values, columns, [_mark(row) for row in rows])
            known = self._partials.getValue(place)
            if known is not None:
                partial = merged(self._values, from_text(known[0]), partial)
            self._partials.updateValue(place, (to_text(partial),))

    def _close(self, bound: int, by: Row) -> Generator[Row, None, int | None]:
        """The results of the windows that this row closes; returns the earliest end of the rest."""
        windows = [((*place,), *value) for place, value in self._partials.iterator()]
        for place, partial in sorted(one for one in windows if one[0][0] <= bound):
            self._partials.removeKey(place)
            end, start, group = place
            yield Row(
                partition=by["partition"],
                position=by["position"],
                window_start=start,
                window_end=end,
                **dict(zip(self._by, from_text(group), strict=True)),
                **results_of(self._values, from_text(partial)),
            )
        return min((place[0] for place, _ in windows if place[0] > bound), default=None)

    def _columns(self) -> set[str]:
        return {one.column for one in self._values.values() if one.column is not None}


def _parsed(schema: str) -> StructType:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


def _mark(row: Row) -> Mark:
    return row[TIME], row["partition"], int(row["position"])
