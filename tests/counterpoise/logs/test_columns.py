"""Columns of Arrow are those that pyarrow makes of the same values, and pandas is never loaded."""

from __future__ import annotations

import subprocess
import sys
from array import array
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.logs import MESSAGE_SCHEMA, columns

HEADERS = MESSAGE_SCHEMA.field("headers").type
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
bits = st.integers(-(2**63), 2**63 - 1)


def same(made: pa.Array, values: list[Any], kind: pa.DataType) -> None:
    made.validate(full=True)
    assert made.type == kind
    assert made.equals(pa.array(values, kind))


@given(st.lists(bits))
def test_integers(values: list[int]) -> None:
    same(columns.integers(values), values, pa.int64())


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        columns.integers([2**63])


@pytest.mark.parametrize(
    ("value", "kind"),
    [(-7, pa.int32()), (2**40, pa.int64()), (True, pa.bool_()), (False, pa.bool_())],
    ids=str,
)
@pytest.mark.parametrize("count", [0, 1, 9])
def test_repeated(value: int, kind: pa.DataType, count: int) -> None:
    same(columns.repeated(value, count, kind), [value] * count, kind)
    assert columns.scalar(value, kind).as_py() == value


@given(st.lists(st.none() | st.binary(max_size=8)))
def test_binaries(values: list[bytes | None]) -> None:
    same(columns.binaries(values), values, pa.binary())


@given(st.lists(st.binary(max_size=8)))
def test_packed_values(values: list[bytes]) -> None:
    sizes = array("i", map(len, values))
    same(columns.packed(sizes, b"".join(values)), values, pa.binary())


@given(st.lists(st.none() | texts))
def test_packed_texts(values: list[str | None]) -> None:
    there = [one.encode() for one in values if one is not None]
    sizes = array("i", [-1 if one is None else len(one.encode()) for one in values])
    same(columns.packed(sizes, b"".join(there), pa.string()), values, pa.string())


@given(st.lists(st.none() | texts))
def test_strings(values: list[str | None]) -> None:
    same(columns.strings(values), values, pa.string())


@given(st.lists(st.none() | st.lists(st.tuples(texts, texts), max_size=3)))
def test_mappings(values: list[columns.Pairs | None]) -> None:
    same(columns.mappings(HEADERS, values), values, HEADERS)


def test_times() -> None:
    kind = MESSAGE_SCHEMA.field("published_at").type
    values = [datetime(1, 1, 1, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, 1, UTC)]
    column = pa.array(values, kind)
    assert columns.times(column) == columns.times(pa.chunked_array([column])) == values


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_microseconds(unit: str, zone: str | None) -> None:
    """Also before 1970. What the column says is a time of UTC, with and without a zone."""
    a_second = {"s": 1, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array([-a_second, None, 2 * a_second], pa.timestamp(unit, zone))
    assert columns.microseconds_of(column) == [-1_000_000, None, 2_000_000]


# What a consumer and a task of Spark do with each log's rows, in a process of its own: what other
# tests import must not matter.
READ = """
import sys
from counterpoise.consumer.message import Ownership, messages_of
from counterpoise.logs.builtin.reading import PackedRows
from counterpoise.logs.record_batch import record_batch
from counterpoise.logs.redis.log import rows_of
from counterpoise.flow.view import Owned

rows = PackedRows(5)
times = bytes(20) + (b"\\0\\0\\0\\x08" + bytes(8)) * 2
sizes = bytes(20) + b"\\0\\0\\0\\x04\\0\\0\\0\\x01" + b"\\0\\0\\0\\x04\\0\\0\\0\\x02"
key_sizes = bytes(20) + b"\\0\\0\\0\\x04\\0\\0\\0\\x01" + b"\\0\\0\\0\\x04\\xff\\xff\\xff\\xff"
views = map(memoryview, (times, sizes, b"abb", key_sizes, b"k"))
rows.add(5, None, *views, ['{"a": "b"}', None])
entries = [(b"1-0", [b"v", b"x", b"t", b"17"]), (b"1-1", [b"t", b"no time", b"k", b"\\xff"])]
for read in (rows.rows(0), rows_of(0, 1, entries)):
    owned = Ownership(Owned(0, 1, "owned", None, None, None, 1), dict)
    assert len(messages_of(read, owned)) == 2 == record_batch(read).num_rows
    if "pyspark" in sys.argv:
        from counterpoise.spark.offsets import Slice
        from counterpoise.spark.source.tasks import as_rows
        assert as_rows(record_batch(read), Slice(0, 7, "1", "3")).num_rows == 2
print("pandas" in sys.modules)
"""


@pytest.mark.long
@pytest.mark.parametrize("by", ["a consumer", "pyspark"])
def test_reading_does_not_load_pandas(by: str) -> None:
    said = subprocess.run([sys.executable, "-c", READ, by], capture_output=True, text=True)
    assert said.stdout == "False\n", said.stderr


@pytest.mark.parametrize("start", [0, 7, 2**40, 2**63 - 9000])
@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193])
def test_numbers_in_a_row(start: int, count: int) -> None:
    column = columns.counting(start, count)
    assert column.type == pa.int64()
    assert column.to_pylist() == list(range(start, start + count))
