"""Rows of Arrow as INSERT statements of MariaDB and MySQL, without a Python object for each value.

Each column becomes a column of literals, and Arrow joins them row by row. All literals are texts or
bytes in quotation marks, which the server converts to the type of the table's column. The session
has no NO_BACKSLASH_ESCAPES, and is strict (`database`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs.columns import binaries
from counterpoise.spark.sink.rows import json_texts

# Far below `max_allowed_packet`, whose default is 16 MiB. A larger row is a statement of its own.
STATEMENT_BYTES = 1024 * 1024

_BYTES = pa.large_binary()
_EMPTY, _BEFORE, _BETWEEN, _BEHIND, _QUOTE, _BINARY_QUOTE, _NULL = (
    one for one in binaries([b"", b",(", b",", b")", b"'", b"_binary'", b"NULL"]).cast(_BYTES)
)


def inserts(into: str, rows: pa.Table, statement_bytes: int = STATEMENT_BYTES) -> Iterator[bytes]:
    """Statements that insert the rows, in their order; `into` names the table and its columns."""
    parts = []
    for column in rows.columns:
        parts += [_BETWEEN, _literals(column.combine_chunks())]
    whole = pc.binary_join_element_wise(_BEFORE, *parts[1:], _BEHIND, _EMPTY)
    offsets = memoryview(whole.buffers()[1]).cast("q")[: rows.num_rows + 1]
    data = memoryview(whole.buffers()[2])
    head = f"INSERT INTO {into} VALUES ".encode()
    begin = 0
    while begin < rows.num_rows:
        end = max(begin + 1, bisect_right(offsets, offsets[begin] + statement_bytes) - 1)
        yield head + data[offsets[begin] + 1 : offsets[end]]
        begin = end


def _literals(column: pa.Array) -> pa.Array:
    values = _texts(column).cast(_BYTES)
    for special in ("\\", "'"):
        values = pc.replace_substring(values, special, f"\\{special}")
    binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    quoted = pc.binary_join_element_wise(
        _BINARY_QUOTE if binary else _QUOTE, values, _QUOTE, _EMPTY
    )
    return pc.fill_null(quoted, _NULL)


def _texts(column: pa.Array) -> pa.Array:
    """Texts that the server can read; bytes stay. Maps, structs and lists become JSON."""
    kind = column.type
    if pa.types.is_nested(kind):
        return json_texts(column)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    return column.cast(pa.large_string())
