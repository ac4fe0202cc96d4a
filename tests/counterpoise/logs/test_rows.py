"""Rows of a log show the same as Python's values and as a batch of Arrow, whole and in parts."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counterpoise import Consumer
from counterpoise.logs import LogError
from counterpoise.logs.numbered import to_arrow
from counterpoise.logs.record_batch import record_batch
from counterpoise.logs.rows import ROW_BYTES, Columns, Packed, Pairs, Rows

SINCE_2000 = 946_684_800_000_000
YEAR = 365 * 86_400 * 1_000_000

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
headers = st.none() | st.lists(st.tuples(texts, texts), max_size=2, unique_by=lambda one: one[0])
raw = st.none() | st.binary(max_size=5) | texts.map(str.encode)
# What Postgres has reaches further than what 64 bits reach from 1970.
bits = st.integers(-(2**63), 2**63 - 1) | st.integers(-3000 * YEAR, 9000 * YEAR)
times = st.none() | bits | st.just(10**40)


def packed(values: list[bytes | None]) -> Packed:
    sizes = array("i", [-1 if value is None else len(value) for value in values])
    return Packed(sizes, b"".join(value or b"" for value in values))


@st.composite
def of_a_foreign_log(draw: st.DrawFn) -> Columns:
    """As Redis and Kafka have them."""
    some = draw(st.lists(st.tuples(times, raw, raw, headers), max_size=6))
    return Columns(
        3,
        [7 * number for number in range(len(some))],
        [at for at, _, _, _ in some],
        [key for _, key, _, _ in some],
        [value for _, _, value, _ in some],
        [one for _, _, _, one in some],
    )


@st.composite
def of_the_builtin_log(draw: st.DrawFn) -> Columns:
    row = st.tuples(bits, st.none() | texts, st.binary(max_size=5), headers)
    some = draw(st.lists(row, max_size=6))
    keys = [None if key is None else key.encode() for _, key, _, _ in some]
    return Columns(
        3,
        range(5, 5 + len(some)),
        array("q", [at for at, _, _, _ in some]),
        packed(keys) if any(key is not None for key in keys) else None,
        packed([value for _, _, value, _ in some]),
        [one for _, _, _, one in some],
        since=SINCE_2000,
    )


STRANGE: list[Pairs | None] = [[("x", "y"), ("counterpoise-unreadable", "headers")], None]


@given(of_a_foreign_log() | of_the_builtin_log(), st.integers(0, 6), st.integers(0, 6))
@example(Columns(0, range(2), [None, 0], [b"\xff", b"a\0"], [None, b""], STRANGE), 0, 1)
@example(Columns(0, range(1), array("q", [2**63 - 1]), None, packed([b"a"]), [None], 1), 0, 0)
def test_both_forms_show_the_same_whole_and_in_parts(
    columns: Columns, begin: int, count: int
) -> None:
    rows = Rows(columns)
    shown = rows.to_pylist()
    batch = record_batch(rows)
    batch.validate(full=True)
    assert shown == batch.to_pylist()
    assert len(rows) == len(shown)
    part = rows.slice(begin, begin + count)
    assert part.to_pylist() == record_batch(part).to_pylist() == shown[begin : begin + count]
    assert part.slice(1, -1).to_pylist() == shown[begin : begin + count][1:-1]
    assert part.of_partition(9).to_pylist() == [{**row, "partition": 9} for row in part.to_pylist()]
    assert [part.position(place) for place in range(len(part))] == part.columns().positions


@given(of_a_foreign_log() | of_the_builtin_log(), st.integers(0, 6))
def test_the_memory_of_parts_is_that_of_the_whole(columns: Columns, cut: int) -> None:
    rows = Rows(columns)
    assert rows.slice(0, cut).nbytes + rows.slice(cut).nbytes == rows.nbytes


def test_memory_counts_all_that_a_message_holds() -> None:
    columns = Columns(0, range(2), [0, 0], [b"key", None], [b"val", b""], [[("ab", "c")], None])
    assert Rows(columns).nbytes == 3 + 3 + 3 + 2 * ROW_BYTES


def test_a_batch_is_made_once_for_all_parts() -> None:
    rows = Rows(Columns(0, range(4), [0] * 4, None, packed([b"a"] * 4), [None] * 4))
    first, second = record_batch(rows.slice(0, 2)), record_batch(rows.slice(2))
    address = first.column("value").buffers()[2].address
    assert address == second.column("value").buffers()[2].address


def test_without_arrow_a_batch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "counterpoise.logs.record_batch", None)
    for call in (to_arrow, lambda: Consumer("flights", lambda owned, batch: None)):
        with pytest.raises(LogError, match=r"pip install 'counterpoise\[arrow\]'"):
            call()
    with Consumer("flights", each=lambda message: None):
        pass


# In a process of its own: what other tests import must not matter.
LIGHT = """
import sys
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.memory import MemoryLogs
from counterpoise.logs.aligned import AlignedLog
from counterpoise import *
from counterpoise.consumer.work import OfRows
print(sorted({"pyarrow", "numpy", "pandas"} & {*sys.modules}))
"""


def test_no_log_of_ours_loads_arrow() -> None:
    said: Any = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr
