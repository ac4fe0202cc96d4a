"""Pairs of two kinds of messages with one key, in one partition or in a group of aligned logs.

Each row stays *open* until the partition time is more than the limit past its time. A row that
comes makes a pair with each row of the other kind that is open by the time of its own partition.
Of one partition that depends on its rows alone.

The partitions of a group have tenures, clocks and histories of their own, and are restored side by
side. The owner before has made the pairs of which both rows are history, so they are no output. A
pair with at least one new row is, also if its other row is history that comes later. So no pair is
missing. One can come twice: after a crash, or where one side still has rows of an earlier tenure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.functions import col, floor
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from counterpoise.spark.aggregates.partials import from_text, to_text
from counterpoise.spark.aggregates.windows import AHEAD_SECONDS, MICROSECONDS, ahead_of
from counterpoise.spark.processors.clock import TIME, PartitionTime, held, timed
from counterpoise.spark.state.processor import in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


GROUP = "counterpoise_group"
_PLACE = ("partition", "position")

Open = list[Any]
"""An open row as JSON holds it: its side, partition, position, time, whether it is history, and the
values of its columns."""


class JoinByKey(StatefulProcessor):
    """Pairs of rows of two kinds with the same key, whose times differ by at most `within_seconds`.

    `kind`: the column that has one of `kinds`, left and right; rows of other kinds only move the
    partition time. `columns`: those of both rows that a pair has, as `left_value`, `right_value`.
    It also has the key, `left_partition`, `left_position`, `right_partition` and `right_position`,
    and without `aligned` the partition and position of the later row, for the fenced sink.
    `aligned`: how many logs the queue reads side by side (docs, *Joins*). `ahead_seconds`: as for
    `PartitionProcessor`.
    """

    tenured = True

    def __init__(
        self,
        kind: str,
        kinds: tuple[Any, Any],
        columns: Sequence[str],
        *,
        within_seconds: float,
        time: str = "published_at",
        by: str = "key",
        aligned: int = 1,
        ahead_seconds: float | None = AHEAD_SECONDS,
    ) -> None:
        """Raises ValueError."""
        self._kind = kind
        self._kinds = kinds
        self._columns = tuple(columns)
        self._within = round(within_seconds * MICROSECONDS)
        self._time = time
        self._by = by
        self._aligned = aligned
        self._ahead = ahead_of(ahead_seconds)

    def over(self, rows: DataFrame) -> DataFrame:
        """The pairs of the rows of a source with `warmup=true`.

        The query needs RocksDB as its state store. Raises InvalidOption.
        """
        needed = (self._kind, self._by, *self._columns)
        group = floor(col("partition") / self._aligned)
        grouped = timed(rows, self._time, needed).withColumn(GROUP, group).groupBy(GROUP)
        return grouped.transformWithState(self, self._result(rows.schema), "Append", "None")

    def _result(self, schema: StructType) -> StructType:
        result = StructType([schema[name] for name in _PLACE] if self._aligned == 1 else [])
        result.add(schema[self._by])
        for side in ("left", "right"):
            for name in (*_PLACE, *self._columns):
                result.add(f"{side}_{name}", schema[name].dataType)
        return result

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._partitions = handle.getMapState(
            "partitions", "partition int", "tenure long, confirmed long, last long"
        )
        self._open = handle.getMapState("open", "key string", "rows string")
        self._swept = handle.getValueState("swept", "at long")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        by_partition = sorted(rows, key=lambda row: row["partition"])
        portions = {
            number: in_order(portion)
            for number, portion in groupby(by_partition, key=lambda row: row["partition"])
        }
        clocks = {
            number: self._begun(number, portion[0]["tenure"])
            for number, portion in portions.items()
        }
        opened: dict[str, list[Open]] = {}
        for number, portion in portions.items():
            clock = clocks[number]
            for row in portion:
                clock = clock.after(row[TIME], self._ahead)
                yield from self._pairs(row, clock.now, opened)
            known = (portion[0]["tenure"], clock.confirmed, clock.last)
            self._partitions.updateValue((number,), known)
        for one, kept in opened.items():
            self._open.updateValue((one,), (to_text(kept),))
        self._sweep()

    def _begun(self, number: int, tenure: int) -> PartitionTime:
        """The partition time; what the partition has left here in another tenure is dropped."""
        known = self._partitions.getValue((number,))
        if known is not None and known[0] == tenure:
            return PartitionTime(*known[1:])
        if known is not None:
            self._keep(lambda one: bool(one[1] != number))
        return PartitionTime()

    def _pairs(self, row: Row, now: int | None, opened: dict[str, list[Open]]) -> Iterator[Row]:
        key, time = row[self._by], row[TIME]
        if row[self._kind] not in self._kinds or key is None or time is None or now is None:
            return
        if key not in opened:
            known = self._open.getValue((key,))
            opened[key] = [] if known is None else from_text(known[0])
        side = self._kinds.index(row[self._kind])
        values = [held(row[name]) for name in self._columns]
        new: Open = [side, row["partition"], row["position"], time, bool(row["replay"]), values]
        for other in opened[key]:
            is_open = other[0] != side and now - other[3] <= self._within
            made_before = other[4] and new[4]
            if is_open and abs(other[3] - time) <= self._within and not made_before:
                left, right = (new, other) if side == 0 else (other, new)
                yield self._pair(key, left, right, row)
        opened[key].append(new)

    def _pair(self, key: str, left: Open, right: Open, later_row: Row) -> Row:
        pair: dict[str, Any] = {}
        if self._aligned == 1:
            pair |= {name: later_row[name] for name in _PLACE}
        pair[self._by] = key
        for name, (_, partition, position, _, _, values) in (("left", left), ("right", right)):
            pair |= {f"{name}_partition": partition, f"{name}_position": position}
            for column, value in zip(self._columns, values, strict=True):
                pair[f"{name}_{column}"] = value
        return Row(**pair)

    def _sweep(self) -> None:
        """Forget rows that can make no pair any more, but go through all only once in a while."""
        clocks = [confirmed for _, confirmed, _ in self._partitions.values()]
        if len(clocks) < self._aligned or None in clocks:
            return
        low, known = min(clocks), self._swept.get()
        if known is None or low - known[0] > self._within:
            self._swept.update((low,))
            self._keep(lambda one: bool(low - one[3] <= self._within))

    def _keep(self, wanted: Callable[[Open], bool]) -> None:
        for (key,), (text,) in list(self._open.iterator()):
            rows = from_text(text)
            kept = [one for one in rows if wanted(one)]
            if not kept:
                self._open.removeKey((key,))
            elif len(kept) < len(rows):
                self._open.updateValue((key,), (to_text(kept),))
