"""What `to_table` writes: COPY, binary where the types are known, and text for the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Connection, create_engine

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.binary_copy import binary_rows
from counterpoise.spark.sink.insert import Insert, column_types, suited
from counterpoise.spark.sink.writer import Scope
from tests.service import eventually

SCOPE = Scope("s", "flights", "q-1", 0, 1, "0", "9", 0)
MOMENT = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

# For each type of the table: a type of the rows, and values.
KNOWN: list[tuple[str, pa.DataType, list[Any]]] = [
    ("smallint", pa.int32(), [-(2**15), 0, 2**15 - 1]),
    ("integer", pa.int32(), [-(2**31), -1, 2**31 - 1]),
    ("integer", pa.int64(), [-5, 2**31 - 1]),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    ("bigint", pa.int16(), [-3, 7]),
    ("bigint", pa.string(), ["0", "-12", "9223372036854775807"]),
    ("real", pa.float32(), [1.5, float("-inf"), -0.0]),
    ("double precision", pa.float64(), [0.1, 1e300, float("inf")]),
    ("double precision", pa.int32(), [-3, 7]),
    ("bigint", pa.binary(), [b"12"]),
    ("boolean", pa.bool_(), [True, False]),
    ("text", pa.string(), ["", "a\tb\\N\n", "Zürich 🛫", "\\."]),
    ("text", pa.int64(), [-3, 7]),
    ("varchar(8)", pa.large_string(), ["short"]),
    ("char(4)", pa.string(), ["ab"]),
    ("bytea", pa.binary(), [b"", b"\x00\\x\xff\n", bytes(range(256))]),
    ("bytea", pa.large_binary(), [b"x"]),
    ("text", pa.binary(), ["Zürich 🛫\\".encode(), b""]),
    ("varchar(8)", pa.large_binary(), [b"\\x41"]),
    ("jsonb", pa.binary(), [b'{"a": 1}']),
    ("date", pa.date32(), [date(1, 1, 1), date(2000, 1, 1), date(9999, 12, 31)]),
    ("timestamptz", pa.timestamp("us", "UTC"), [MOMENT, datetime(2026, 1, 1, tzinfo=UTC)]),
    ("timestamp", pa.timestamp("us"), [MOMENT.replace(tzinfo=None)]),
    ("json", pa.string(), ['{"a": 1}']),
    ("jsonb", pa.string(), ["[1, null]"]),
    ("jsonb", pa.map_(pa.string(), pa.string()), [[("a", "ü"), ("b", '"')], []]),
    ("json", pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}]),
    ("jsonb", pa.struct([("a", pa.float64())]), [{"a": 0.5}]),
    ("jsonb", pa.list_(pa.struct([("a", pa.int32())])), [[{"a": 1}, None], []]),
    ("json", pa.list_(pa.string()), [["a", None]]),
    ("positive", pa.int32(), [3]),
    ("short_text", pa.binary(), [b"short"]),
    ("short_name", pa.binary(), ["Zürich".encode()]),
    ("digest", pa.binary(), [b"\x00\xff"]),
]
ONLY_AS_TEXT: list[tuple[str, pa.DataType, list[Any]]] = [
    ("numeric", pa.decimal128(10, 2), [Decimal("-12.50")]),
    ("numeric", pa.int32(), [12]),
    ("integer[]", pa.list_(pa.int32()), [[1, 2], []]),
    ("uuid", pa.string(), ["c1c5b2de-8b0a-4f6f-9d1e-0d6a3c1f2b3a"]),
    ("text", pa.float64(), [0.5]),
    ("timestamp", pa.timestamp("us", "UTC"), [MOMENT]),
    ("colour", pa.binary(), [b"red"]),
]


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    engine = create_engine(re.sub("^postgresql:", "postgresql+psycopg:", database_url))
    with engine.connect() as connection:
        for made in (
            "DOMAIN positive AS integer CHECK (VALUE > 0)",
            "DOMAIN short_text AS varchar(8)",
            "DOMAIN short_name AS short_text CHECK (VALUE <> '')",
            "DOMAIN digest AS bytea",
            "TYPE colour AS ENUM ('red')",
        ):
            connection.exec_driver_sql(f"CREATE {made}")
        yield connection
    engine.dispose()


def values(table: str, connection: Connection) -> list[tuple[Any, ...]]:
    rows = connection.exec_driver_sql(f"SELECT id, value FROM {table} ORDER BY id")
    return [tuple(row) for row in rows]


def make(connection: Connection, table: str, of: str) -> None:
    connection.exec_driver_sql(f"CREATE TABLE {table} (id integer, value {of}, rest numeric)")


def rows_of(kind: pa.DataType, found: list[Any]) -> pa.Table:
    """With nulls between, and a part of a longer table, as ranges are."""
    column = [None, *found, None, *found]
    table = pa.table(
        {"id": pa.array(range(len(column)), pa.int32()), "value": pa.array(column, kind)}
    )
    return pa.concat_tables([table, table]).combine_chunks().slice(1, len(column) - 1)


def is_binary(connection: Connection, rows: pa.Table, table: str) -> bool:
    """Whether the rows can go into the table in binary."""
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        types = column_types(cursor, table)
    return binary_rows(suited(rows, types), types) is not None


@pytest.mark.long
@pytest.mark.parametrize(("of", "kind", "found"), KNOWN)
def test_both_formats_write_the_same(
    connection: Connection, of: str, kind: pa.DataType, found: list[Any]
) -> None:
    rows = rows_of(kind, found)
    for table in ("in_binary", "in_text"):
        make(connection, table, of)
    assert is_binary(connection, rows, "in_binary")
    Insert("in_binary", None)(connection, rows, SCOPE)
    # A column that is only known as text makes the whole COPY text.
    both = rows.append_column("rest", pa.array([Decimal(1)] * len(rows)))
    assert not is_binary(connection, both, "in_text")
    Insert("in_text", None)(connection, both, SCOPE)
    assert values("in_binary", connection) == values("in_text", connection)
    assert len(values("in_binary", connection)) == len(rows)


@pytest.mark.long
@pytest.mark.parametrize(("of", "kind", "found"), ONLY_AS_TEXT)
def test_other_types_are_converted_by_the_server(
    connection: Connection, of: str, kind: pa.DataType, found: list[Any]
) -> None:
    make(connection, "result", of)
    rows = rows_of(kind, found)
    assert not is_binary(connection, rows, "result")
    Insert("result", None)(connection, rows, SCOPE)
    assert len(values("result", connection)) == 2 * len(found) + 1


def test_times_without_a_zone_are_in_utc_whatever_zone_the_rows_have(
    connection: Connection,
) -> None:
    make(connection, "result", "timestamp")
    for zone in ("UTC", "Asia/Tokyo"):
        rows = rows_of(pa.timestamp("us", zone), [MOMENT])
        assert not is_binary(connection, rows, "result")
        Insert("result", None)(connection, rows, SCOPE)
    assert {value for _, value in values("result", connection)} == {
        None,
        MOMENT.replace(tzinfo=None),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("of", "kind", "value", "words"),
    [
        ("smallint", pa.int32(), 2**15, "smallint"),
        ("bigint", pa.string(), "7-0", "bigint"),
        ("real", pa.float64(), 1e300, "real"),
        ("real", pa.float64(), 1e-300, "real"),
        ("varchar(3)", pa.string(), "four", "too long"),
        ("jsonb", pa.string(), "{", "json"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_the_words_of_the_server(
    connection: Connection, of: str, kind: pa.DataType, value: Any, words: str
) -> None:
    make(connection, "result", of)
    with pytest.raises(InvalidSink, match=words) as refused:
        Insert("result", None)(connection, rows_of(kind, [value]), SCOPE)
    assert isinstance(refused.value.__cause__, psycopg.DataError)


@pytest.mark.parametrize(
    ("of", "kind", "value", "words"),
    [
        ("text", pa.binary(), b"\xff", "is text, and .* not text in UTF-8"),
        ("jsonb", pa.struct([("at", pa.date32())]), {"at": date(2026, 1, 1)}, "to_json"),
        ("text", pa.map_(pa.binary(), pa.int32()), [(b"a", 1)], "to_json"),
    ],
)
def test_what_no_text_or_json_can_be_made_of_is_refused(
    connection: Connection, of: str, kind: pa.DataType, value: Any, words: str
) -> None:
    make(connection, "result", of)
    with pytest.raises(InvalidSink, match=words):
        Insert("result", None)(connection, rows_of(kind, [value]), SCOPE)


def test_maps_are_objects_wherever_they_are(connection: Connection) -> None:
    make(connection, "result", "jsonb")
    counts = pa.map_(pa.string(), pa.int32())
    for kind, value in (
        (pa.struct([("m", counts)]), {"m": [("a", 1)]}),
        (pa.map_(pa.string(), counts), [("m", [("a", 1)])]),
    ):
        Insert("result", None)(connection, rows_of(kind, [value]), SCOPE)
    assert [value for _, value in values("result", connection) if value] == [{"m": {"a": 1}}] * 4


def test_a_column_that_gets_another_type_meanwhile(
    connection: Connection, database_url: str
) -> None:
    """In binary its values would be read as those of the new type."""
    connection.exec_driver_sql("CREATE TABLE result (id integer, value bigint)")
    connection.commit()
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with (
        psycopg.connect(database_url) as altering,
        psycopg.connect(database_url, autocommit=True) as watching,
        ThreadPoolExecutor(1) as pool,
    ):
        altering.execute("ALTER TABLE result ALTER value TYPE double precision")
        written = pool.submit(
            Insert("result", None), connection, rows_of(pa.int64(), [1, 2**40]), SCOPE
        )
        eventually(lambda: watching.execute(waiting).rowcount == 1)
        altering.commit()
        written.result()
    assert [value for _, value in values("result", connection)] == [1, 2**40, None, 1, 2**40]


def test_a_table_in_a_schema_and_columns_with_strange_names(connection: Connection) -> None:
    connection.exec_driver_sql('CREATE SCHEMA "Strange ""Name"')
    connection.exec_driver_sql('CREATE TABLE "Strange ""Name"."a b" ("c""d" bytea, rest int)')
    rows = pa.table({'c"d': pa.array([b"x", None], pa.binary()), "tenure": pa.array([1, 2])})
    Insert('Strange "Name.a b', None)(connection, rows, SCOPE)
    found = connection.exec_driver_sql('SELECT * FROM "Strange ""Name"."a b"')
    assert [tuple(row) for row in found] == [(b"x", None), (None, None)]


@pytest.mark.parametrize(
    ("table", "column", "why"),
    [
        ("result", "other", 'column "other" of relation "result" does not exist'),
        ("nowhere", "value", 'relation "nowhere" does not exist'),
        ("result", "value", 'null value in column "value" of relation "result" violates'),
    ],
)
def test_what_the_table_does_not_take_is_said_in_a_line(
    connection: Connection, table: str, column: str, why: str
) -> None:
    connection.exec_driver_sql("CREATE TABLE result (value text NOT NULL)")
    rows = pa.table({column: pa.array([None], pa.string())})
    with pytest.raises(InvalidSink) as caught:
        Insert(table, None)(connection, rows, SCOPE)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
