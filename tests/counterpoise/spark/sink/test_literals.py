"""INSERT statements of MariaDB: of what size, and that every value arrives as it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text

from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.database import Database, TransactionLimits
from counterpoise.spark.sink.insert import Insert
from counterpoise.spark.sink.literals import inserts
from counterpoise.spark.sink.writer import Scope
from tests.counterpoise.spark.sink.mariadb import MariaDbServer

MOMENT = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
SCOPE = Scope("s", "flights", "q-1", 0, 1, "0", "9", 0)


def test_rows_are_divided_into_statements_by_their_size() -> None:
    rows = pa.table({"a": ["x", "yy", None, "z" * 50, "'"], "b": [1, 2, 3, 4, 5]})
    assert [*inserts("t (a, b)", rows, statement_bytes=21)] == [
        b"INSERT INTO t (a, b) VALUES ('x','1'),('yy','2')",
        b"INSERT INTO t (a, b) VALUES (NULL,'3')",
        b"INSERT INTO t (a, b) VALUES ('" + b"z" * 50 + b"','4')",
        b"INSERT INTO t (a, b) VALUES ('\\'','5')",
    ]


@pytest.fixture
def connection(mariadb: MariaDbServer) -> Iterator[Connection]:
    with Database(mariadb.new_database()).transaction(TransactionLimits()) as connection:
        yield connection


@pytest.mark.long
@pytest.mark.parametrize(
    ("of", "kind", "found"),
    [
        ("int", pa.int32(), [-(2**31), 2**31 - 1]),
        ("bigint", pa.int64(), [2**63 - 1]),
        ("double", pa.float64(), [0.1, -1e300]),
        ("boolean", pa.bool_(), [True, False]),
        ("decimal(10, 2)", pa.decimal128(10, 2), [Decimal("-12.50")]),
        ("text", pa.string(), ["", "a'b\\'c\\\\", "%s %(x)s :x", "Zürich 🛫", "line\nline\0"]),
        ("blob", pa.binary(), [b"", bytes(range(256)), b"\\'\xff"]),
        ("date", pa.date32(), [date(2000, 2, 29)]),
        ("datetime(6)", pa.timestamp("us"), [MOMENT.replace(tzinfo=None)]),
    ],
)
def test_values_arrive_as_they_were(
    connection: Connection, of: str, kind: pa.DataType, found: list[Any]
) -> None:
    connection.exec_driver_sql(f"CREATE TABLE result (id int, value {of})")
    column = [None, *found, None]
    rows = pa.table({"id": range(len(column)), "value": pa.array(column, kind)})
    Insert("result", None)(connection, rows, SCOPE)
    assert [*connection.scalars(text("SELECT value FROM result ORDER BY id"))] == column


@pytest.mark.long
def test_a_value_that_does_not_fit_is_refused(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE result (value varchar(3))")
    with pytest.raises(InvalidSink, match="too long"):
        Insert("result", None)(connection, pa.table({"value": ["four"]}), SCOPE)


@pytest.mark.long
def test_headers_become_json_and_times_are_in_utc(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE result (headers json, at timestamp(6))")
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    rows = pa.table(
        {
            "headers": pa.array([[("a", "ü'")], None], pa.map_(pa.string(), pa.string())),
            "at": pa.array([at, at], pa.timestamp("us", "UTC")),
        }
    )
    Insert("result", None)(connection, rows, SCOPE)
    found = connection.execute(text("SELECT json_value(headers, '$.a'), at FROM result"))
    assert {tuple(row) for row in found} == {
        ("ü'", at.replace(tzinfo=None)),
        (None, at.replace(tzinfo=None)),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("charset", "set_later"), [("gbk", "gbk"), ("latin1", "latin1"), ("utf8mb4", "gbk")]
)
def test_a_session_of_another_character_set_is_refused(
    mariadb: MariaDbServer, charset: str, set_later: str
) -> None:
    """In gbk, a byte of this text swallows the backslash before the quotation mark."""
    value = "丿'),('injected')-- "
    database = Database(f"{mariadb.new_database()}&charset={charset}")
    with database.transaction(TransactionLimits()) as one:
        one.exec_driver_sql("CREATE TABLE result (value text CHARACTER SET utf8mb4)")
        one.exec_driver_sql(f"SET NAMES {set_later}")
        with pytest.raises(InvalidSink, match="utf8mb4"):
            Insert("result", None)(one, pa.table({"value": [value]}), SCOPE)


@pytest.mark.long
def test_a_table_without_transactions_is_refused(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE result (value int) ENGINE = MyISAM")
    with pytest.raises(InvalidSink, match="MyISAM"):
        Insert("result", None)(connection, pa.table({"value": [1]}), SCOPE)
