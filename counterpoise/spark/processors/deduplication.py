"""Each id once, among the rows of one partition.

An id is remembered from the row that has passed until the partition time is more than the horizon
later (or earlier, after a first row with a wrong time). So whether a row passes depends on the rows
of its partition alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import StructType

from counterpoise.spark.aggregates.partials import to_text
from counterpoise.spark.aggregates.windows import AHEAD_SECONDS, MICROSECONDS
from counterpoise.spark.processors.clock import TIME, PartitionProcessor, Timed

# The first two concern the warm-up alone: a row that passes is no history.
_INNER = ("tenure", "replay", TIME)


class DuplicateFilter(PartitionProcessor):
    """The rows whose id did not pass within `horizon_seconds` of partition time, with their columns
    except `tenure` and `replay`.

    `by`: the columns of the id; a row in which all are null has no id and passes. Messages of one
    id need one key: ids are remembered per partition. `heartbeat`, `ahead_seconds`: as for
    `PartitionProcessor`.
    """

    def __init__(
        self,
        by: Sequence[str],
        *,
        time: str = "published_at",
        horizon_seconds: float = 86_400.0,
        heartbeat: str | None = None,
        ahead_seconds: float | None = AHEAD_SECONDS,
    ) -> None:
        """Raises ValueError."""
        super().__init__(time, heartbeat, ahead_seconds)
        self._by = tuple(by)
        self._horizon = round(horizon_seconds * MICROSECONDS)

    def needed(self) -> Iterable[str]:
        return self._by

    def result(self, schema: StructType) -> StructType:
        return StructType([schema[name] for name in schema.names if name not in _INNER])

    def open(self, handle: Any) -> None:
        super().open(handle)
        self._ids = handle.getMapState("ids", "id string", "passed_at long")
        self._swept = handle.getValueState("swept", "at long")

    def clear(self) -> None:
        super().clear()
        self._ids.clear()
        self._swept.clear()

    def on_timed_rows(self, rows: Timed) -> Iterator[Row]:
        passed: dict[str, int] = {}
        for row, now in rows:
            if self.is_heartbeat(row):
                continue
            values = [row[name] for name in self._by]
            if now is not None and any(value is not None for value in values):
                one = to_text(values)
                at = passed.get(one) if one in passed else self._passed_at(one)
                if at is not None and abs(now - at) <= self._horizon:
                    continue
                passed[one] = now
            yield Row(**{name: row[name] for name in row.__fields__ if name not in _INNER})
        for one, at in passed.items():
            self._ids.updateValue((one,), (at,))
        self._sweep(rows[-1][1])

    def _passed_at(self, one: str) -> int | None:
        known = self._ids.getValue((one,))
        return None if known is None else int(known[0])

    def _sweep(self, now: int | None) -> None:
        """Forget ids, but go through all of them only once per horizon."""
        known = self._swept.get()
        if now is None or (known is not None and abs(now - known[0]) <= self._horizon):
            return
        self._swept.update((now,))
        for key in [key for key, (at,) in self._ids.iterator() if abs(now - at) > self._horizon]:
            self._ids.removeKey(key)
