"""The columns of messages: their Arrow schema, and columns of Python values, made without pandas.

They are apart from the port: a process that only looks at a log needs no Arrow.

Each call of `pyarrow.array` or `pyarrow.scalar` (also inside functions of `pyarrow.compute` that
get a number) asks whether its argument is an object of pandas, and so loads pandas wherever it is
installed; a time's `as_py` does so too. That is a second of processor time and 40 MB for each
consumer and each Python worker of Spark, which have no use for it. These functions lay out the
buffers of a column themselves (Arrow's columnar format), and read times as numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

MESSAGE_SCHEMA: pa.Schema = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("published_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of the batches of `Log.read`. Only `key` and `headers` may be null."""

Pairs = Sequence[tuple[str, str]]

_BINARY = pa.binary()
_TIMES = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def integers(values: Iterable[int]) -> pa.Int64Array:
    """A column of 64-bit integers. Raises OverflowError for a number beyond 64 bits."""
    return _numbers(pa.int64(), array("q", values))


def counting(start: int, count: int) -> pa.Int64Array:
    """A column of so many 64-bit integers in a row."""
    if count > len(_COUNTING):
        return integers(range(start, start + count))
    return pc.add_checked(_COUNTING.slice(0, count), scalar(start, pa.int64()))


def repeated(value: int, count: int, kind: pa.DataType) -> pa.Array:
    """A column of `count` equal numbers; `kind` is `int32`, `int64` or `bool_`."""
    if pa.types.is_boolean(kind):
        return _numbers(pa.uint8(), array("B", [value]) * count).cast(kind)
    return _numbers(kind, array("q" if kind.bit_width == 64 else "i", [value]) * count)


def scalar(value: int, kind: pa.DataType) -> pa.Scalar:
    """One number of a column; the kinds are those of `repeated`."""
    return repeated(value, 1, kind)[0]


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """A column of byte strings."""
    there = [value or b"" for value in values]
    return _of_sizes(pa.binary(), map(len, there), b"".join(there), len(there), _validity(values))


def strings(values: Sequence[str | None]) -> pa.StringArray:
    """A column of texts. Raises UnicodeEncodeError for half a character (a lone surrogate)."""
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.string())
    there = [value or "" for value in values] if None in values else cast("Sequence[str]", values)
    data = "".join(there).encode()
    sizes = [*map(len, there)]
    if len(data) > sum(sizes):  # not ASCII only
        sizes = [len(value.encode()) for value in there]
    return _of_sizes(pa.string(), sizes, data, len(there), _validity(values))


def mappings(kind: pa.MapType, values: Sequence[Pairs | None]) -> pa.MapArray:
    """A column of maps from text to text."""
    pairs = [pair for value in values for pair in value or ()]
    entries = pa.StructArray.from_arrays(
        [strings([key for key, _ in pairs]), strings([item for _, item in pairs])],
        fields=[kind.key_field, kind.item_field],
    )
    buffers = [_validity(values), _offsets(len(value or ()) for value in values)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[entries])


def times(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column of times: datetimes in UTC, or None."""
    return [None if value is None else time_at(value) for value in microseconds_of(column)]


def microseconds_of(column: pa.Array | pa.ChunkedArray) -> list[int | None]:
    """The values of a column of times, as microseconds since 1970 in UTC, or None.

    Times without a time zone are taken as UTC.
    """
    found: list[int | None] = column.cast(_TIMES).cast(pa.int64()).to_pylist()
    return found


def time_at(microseconds: int) -> datetime:
    """The time so long after 1970, in UTC. Raises OverflowError for a time that no calendar has."""
    return _EPOCH + timedelta(microseconds=microseconds)


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column. Those of times with a time zone are in UTC, also within structs,
    lists and maps, so equal times are equal texts whichever zone they have.
    """
    if getattr(column.type, "tz", None) is not None:
        return times(column)
    kind = _in_utc(column.type)
    found: list[Any] = (column if kind == column.type else column.cast(kind)).to_pylist()
    return found


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(one) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field))
    return kind


def _field_in_utc(one: pa.Field) -> pa.Field:
    return one.with_type(_in_utc(one.type))


def _numbers(kind: pa.DataType, numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def packed(sizes: array[int], data: bytes, kind: pa.DataType = _BINARY) -> pa.Array:
    """A column of values that lie one behind the other in `data`, of these sizes.

    `kind` is `binary`, or `string`: then `data` is UTF-8, and a size of -1 means null. Raises
    ArrowInvalid beyond 2 GiB.
    """
    validity = None
    if kind != _BINARY and -1 in sizes:
        validity = _bits(size != -1 for size in sizes)
        sizes = array("i", [max(0, size) for size in sizes])
    ends = pc.cumulative_sum_checked(_numbers(pa.int32(), array("i", [0]) + sizes))
    buffers = [validity, ends.buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def _of_sizes(
    kind: pa.DataType, sizes: Iterable[int], data: bytes, count: int, validity: pa.Buffer | None
) -> pa.Array:
    """A column of values of any size, which lie one behind the other in `data`."""
    return pa.Array.from_buffers(kind, count, [validity, _offsets(sizes), pa.py_buffer(data)])


def _offsets(sizes: Iterable[int]) -> pa.Buffer:
    """Where each value begins, and where the last one ends. Raises OverflowError beyond 2 GiB."""
    return pa.py_buffer(array("i", accumulate(sizes, initial=0)))


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    """A bit for each value, whether it is there; None if all are."""
    if None not in values:
        return None
    return _bits(value is not None for value in values)


def _bits(values: Iterable[bool]) -> pa.Buffer:
    return _numbers(pa.uint8(), array("B", values)).cast(pa.bool_()).buffers()[1]


_COUNTING = integers(range(8192))
