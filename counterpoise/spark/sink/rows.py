"""The rows of a task: which of them belong to the micro-batch, and which are still to be written.

Every target uses it, on the executors. Rows are compared by position and never counted, so it does
not matter which task they come to, or whether the user has filtered some.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs import InvalidPosition
from counterpoise.logs.columns import integers, scalar, strings
from counterpoise.spark.errors import InvalidRows, InvalidSink
from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.fence import number

_FALSE = scalar(False, pa.bool_())
# Columns of the source that concern warm-up and say nothing about the message.
_BOOKKEEPING = frozenset({"replay", "tenure"})


class Remainder:
    """What is still to be written of each range: its rows from `begin` on; None: nothing."""

    def __init__(self, begins: Iterable[tuple[Slice, str | None]]) -> None:
        self._ranges = [
            (one.partition, number(one.start), number(begin or one.end), number(one.end))
            for one, begin in begins
        ]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows still to be written: usually all. Raises InvalidRows, InvalidPosition."""
        partitions, starts, begins, ends = (
            integers(one[at] for one in self._ranges) for at in range(4)
        )
        at = pc.index_in(rows.column("partition").cast(pa.int64()), value_set=partitions)
        positions = _numbers(rows)
        inside = pc.and_(
            pc.greater_equal(positions, pc.take(starts, at)), pc.less(positions, pc.take(ends, at))
        )
        if not _all(inside):
            self._refuse(rows.filter(pc.invert(pc.fill_null(inside, _FALSE))))
        fresh = pc.greater_equal(positions, pc.take(begins, at))
        return rows if _all(fresh) else rows.filter(fresh)

    def _refuse(self, foreign: pa.Table) -> None:
        partition = foreign.column("partition")[0].as_py()
        read = {one: (start, end) for one, start, _, end in self._ranges}
        if partition not in read:
            raise no_such_range(partition)
        own = pc.equal(foreign.column("partition"), foreign.column("partition")[0])
        positions = _numbers(foreign.filter(own))
        least, most = (pc.min_max(positions)[end].as_py() for end in ("min", "max"))
        start, end = read[partition]
        raise InvalidRows(
            f"there are rows of partition {partition} with positions from {least} to {most}"
            f"{' and null' if positions.null_count else ''}, and the micro-batch has read "
            f"{start} up to {end}: each row carries the position of the one message it is "
            "made of. Rows made of several messages (aggregates) or of none (timers) cannot be "
            "fenced: aggregate within the sink's write function"
        )


def no_such_range(partition: int) -> InvalidRows:
    """The error for rows of a partition of which nothing was read."""
    return InvalidRows(
        f"there are rows of partition {partition}, of which this micro-batch has read "
        "nothing (or its rows do not come together): pass the source's columns "
        "partition and position through unchanged, and add no rows of other origin"
    )


def messages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches without a warm-up's replayed rows. Raises InvalidRows."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if "replay" in rows.column_names:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column("replay"), _FALSE)))
        if rows.column("partition").null_count:
            raise InvalidRows("there are rows whose partition is null: pass it through unchanged")
        yield rows


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The messages as tables of one partition each, in their order."""
    for rows in messages(batches):
        partitions = rows.column("partition")
        begin = 0
        while begin < rows.num_rows:
            partition = partitions[begin]
            same = pc.equal(partitions.slice(begin), partition)
            other = pc.index(same, _FALSE).as_py()
            count = rows.num_rows - begin if other < 0 else other
            yield partition.as_py(), rows.slice(begin, count)
            begin += count


def chosen(names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns to write. None: all but those that concern warm-up. Raises InvalidSink."""
    if columns is None:
        return [name for name in names if name not in _BOOKKEEPING]
    unknown = set(columns) - set(names)
    if unknown:
        raise InvalidSink(f"the rows have no column {', '.join(sorted(unknown))}")
    return list(columns)


def json_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Maps, structs and lists as JSON, a map as an object. Raises InvalidSink."""
    kind = column.type
    try:
        return strings(
            [
                None if value is None else json.dumps(_as_json(value, kind))
                for value in column.to_pylist()
            ]
        )
    except TypeError as error:
        raise InvalidSink(
            f"{kind} has values that JSON lacks ({error}): make a text of the column with to_json, "
            "or write its fields as columns of their own"
        ) from None


def _as_json(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _as_json(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {one.name: _as_json(value[one.name], one.type) for one in kind}
    return [_as_json(one, kind.value_type) for one in value]


def _numbers(rows: pa.Table) -> pa.ChunkedArray:
    """The positions as numbers. Raises InvalidPosition."""
    try:
        return pc.cast(rows.column("position"), pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidPosition(f"a row's position is not one of the log's: {error}") from None


def _all(values: Any) -> bool:
    """Whether all are true; null is not."""
    return not values.null_count and bool(pc.all(values).as_py() is not False)
