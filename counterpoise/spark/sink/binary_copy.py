"""Rows of Arrow in the binary format of PostgreSQL's COPY, without a Python object for each value.

The format: a header, the rows, a trailer. A row is the number of its fields (2 bytes) and, for each
field, its size (4 bytes; -1: null) and its value in the binary form of the *column's* type, numbers
in network order. Here each column becomes a column of such values, and Arrow joins them row by row.
The data of the joined column is what COPY sends.

The server does not convert in this format. So a column is only sent if its type in Arrow and in the
table are a pair that is known here. For other pairs there is COPY in text (`insert`), where the
server converts.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs.columns import binaries, scalar

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = struct.pack(">h", -1)

# The types of the table whose values are numbers: the same number in Arrow, and how `array` names
# a number of that size.
_NUMBERS = {
    "int2": (pa.int16(), "h"),
    "int4": (pa.int32(), "i"),
    "int8": (pa.int64(), "q"),
    "float4": (pa.float32(), "i"),
    "float8": (pa.float64(), "q"),
}
_TEXTS = frozenset({"text", "varchar", "bpchar", "json"})
# PostgreSQL counts from 2000, Arrow from 1970.
_DAYS = (date(2000, 1, 1) - date(1970, 1, 1)).days
_MICROSECONDS = _DAYS * 86_400 * 1_000_000

_BYTES = pa.large_binary()
_EMPTY = binaries([b""]).cast(_BYTES)[0]
_VERSION_OF_JSONB = binaries([b"\x01"]).cast(_BYTES)[0]


def binary_rows(rows: pa.Table, types: Mapping[str, str]) -> pa.Buffer | None:
    """The rows without header and trailer; None if a pair of types is not known, or a value does
    not fit.

    `types`: PostgreSQL's names of the types of the table's columns.
    """
    joined = [binaries([struct.pack(">h", rows.num_columns)]).cast(_BYTES)[0]]
    for name in rows.column_names:
        try:
            values = _values(rows.column(name).combine_chunks(), types.get(name, ""))
            if values is None:
                return None
            sizes = pc.fill_null(pc.binary_length(values).cast(pa.int32()), _NO_SIZE)
        except pa.ArrowInvalid:
            return None
        joined += [_in_network_order(sizes, "i"), pc.fill_null(values, _EMPTY)]
    whole = pc.binary_join_element_wise(*joined, _EMPTY)
    return whole.buffers()[2].slice(0, whole.total_values_length)


_NO_SIZE = scalar(-1, pa.int32())


def _values(column: pa.Array, wanted: str) -> pa.Array | None:
    """The column as binary values of the type `wanted`. Raises ArrowInvalid."""
    kind = column.type
    if wanted in _TEXTS and (_is_text(kind) or pa.types.is_integer(kind)):
        return column.cast(pa.large_string()).cast(_BYTES)
    if wanted == "bytea" and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return column.cast(_BYTES)
    if wanted == "jsonb" and _is_text(kind):
        return pc.binary_join_element_wise(_VERSION_OF_JSONB, column.cast(_BYTES), _EMPTY)
    if wanted == "bool" and pa.types.is_boolean(kind):
        return _in_network_order(column.cast(pa.uint8()), "B")
    if wanted == "date" and pa.types.is_date32(kind):
        days = column.cast(pa.int32())
        return _in_network_order(pc.subtract_checked(days, scalar(_DAYS, pa.int32())), "i")
    if wanted == ("timestamptz" if getattr(kind, "tz", None) else "timestamp"):
        if not pa.types.is_timestamp(kind):
            return None
        times = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        return _in_network_order(pc.subtract_checked(times, scalar(_MICROSECONDS, pa.int64())), "q")
    if wanted in _NUMBERS and _is_number_for(kind, wanted):
        number, code = _NUMBERS[wanted]
        return _in_network_order(column.cast(number), code)
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number_for(kind: pa.DataType, wanted: str) -> bool:
    """Digits in a text are a number to the server, too."""
    if pa.types.is_integer(kind):
        return True
    if wanted == "float4":
        # Beyond its range the server says so, and a cast gives infinity or 0.
        return bool(pa.types.is_float32(kind))
    return _is_text(kind) if wanted.startswith("int") else bool(pa.types.is_floating(kind))


def _in_network_order(numbers: pa.Array, code: str) -> pa.Array:
    """The bytes of each number, the highest first."""
    count, width = len(numbers), numbers.type.bit_width // 8
    turned = array(code)
    assert turned.itemsize == width
    turned.frombytes(numbers.buffers()[1].slice(numbers.offset * width, count * width))
    if sys.byteorder == "little":
        turned.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(turned)])
    values = fixed.cast(_BYTES)
    if not numbers.null_count:
        return values
    return pc.if_else(numbers.is_valid(), values, pa.nulls(count, _BYTES))
