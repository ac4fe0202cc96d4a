"""Rows of a log as record batches of Arrow: the only module of reading that needs pyarrow.

It shows the same as `Rows.columns`, which has the rules. What is strange shows in whole columns,
and only then single rows are looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs.columns import (
    MESSAGE_SCHEMA,
    binaries,
    counting,
    integers,
    mappings,
    packed,
    repeated,
    scalar,
    strings,
)
from counterpoise.logs.rows import (
    FIRST_SHOWN,
    LAST_SHOWN,
    Columns,
    Packed,
    Rows,
    flagged_rows,
    nearest_shown,
    text_of,
)

_HEADERS = MESSAGE_SCHEMA.field("headers").type
_TIME = MESSAGE_SCHEMA.field("published_at").type


def record_batch(rows: Rows) -> pa.RecordBatch:
    """They as a batch of MESSAGE_SCHEMA. One is made for all parts of the same columns."""
    columns, begin, stop = rows.part
    if not columns.made:
        columns.made.append(_whole(columns))
    return columns.made[0].slice(begin, stop - begin)


def _whole(columns: Columns) -> pa.RecordBatch:
    count = len(columns.positions)
    times, strange = _shown_times(columns.times, columns.since)
    values, missing = _values(columns.values)
    headers = columns.headers
    if strange or missing:
        headers = flagged_rows(headers, strange, missing)
    return pa.RecordBatch.from_arrays(
        [
            repeated(columns.partition, count, pa.int32()),
            _positions(columns.positions).cast(pa.string()),
            _keys(columns.keys, count),
            values,
            mappings(_HEADERS, [one or None for one in headers])
            if any(headers)
            else pa.nulls(count, _HEADERS),
            times.view(_TIME),
        ],
        schema=MESSAGE_SCHEMA,
    )


def texts(raw: Sequence[bytes | None]) -> pa.Array:
    """A column of texts, by `text_of`."""
    column = binaries(raw)
    if not pc.any(pc.match_substring(column, "\0")).as_py():
        try:
            # Arrow checks that they are UTF-8, all at once.
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    return strings([None if one is None else text_of(one) for one in raw])


def _positions(numbers: Sequence[int]) -> pa.Int64Array:
    if isinstance(numbers, range):
        return counting(numbers.start, len(numbers))
    return integers(numbers)


def _keys(keys: Packed | Sequence[bytes | None] | None, count: int) -> pa.Array:
    if keys is None:
        return pa.nulls(count, pa.string())
    return packed(keys.sizes, keys.data, pa.string()) if isinstance(keys, Packed) else texts(keys)


def _values(values: Packed | Sequence[bytes | None]) -> tuple[pa.BinaryArray, list[int]]:
    """The column of values, and the places where one is missing, which is shown as an empty one."""
    if isinstance(values, Packed):
        return packed(values.sizes, values.data), []
    if None not in values:
        return binaries(values), []
    missing = [place for place, value in enumerate(values) if value is None]
    return binaries([value or b"" for value in values]), missing


def _shown_times(times: Sequence[int | None], since: int) -> tuple[pa.Array, list[int]]:
    """The column of times that can be shown, and the places where it differs from `times`."""
    column = _numbers(times, since)
    if column is not None:
        found = pc.min_max(column)
        if not len(column) or (
            found["min"].as_py() >= FIRST_SHOWN and found["max"].as_py() <= LAST_SHOWN
        ):
            return column, []
    shown, strange = nearest_shown(times, since)
    return integers(shown), strange


def _numbers(times: Sequence[int | None], since: int) -> pa.Array | None:
    """None if there is one that is None or beyond 64 bits."""
    if not isinstance(times, array) and None in times:
        return None
    try:
        column = integers(cast("Sequence[int]", times))
        return pc.add_checked(column, scalar(since, pa.int64())) if since else column
    except (OverflowError, pa.ArrowInvalid):
        return None
