"""What `FencedSink.to_table` writes: rows into the columns of the same names.

MariaDB gets INSERT with many rows (`literals`), PostgreSQL gets COPY. COPY is binary if the types
of all columns allow it (`binary_copy`), and text otherwise. Text needs four times the processor
time here, and more of the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from counterpoise.logs.columns import values_of
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.binary_copy import HEADER, TRAILER, binary_rows
from counterpoise.spark.sink.database import quoted
from counterpoise.spark.sink.literals import inserts
from counterpoise.spark.sink.rows import chosen, json_texts

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from counterpoise.spark.sink.writer import Scope


# An unknown column, and privileges: pymysql takes these for failures of the server.
_REFUSED_BY_MARIADB = (1054, 1142, 1143)


@dataclass(frozen=True)
class Insert:
    """A `write` function. `columns` None: all columns of the rows except `replay` and `tenure`."""

    table: str
    columns: tuple[str, ...] | None

    def __call__(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        """Append the rows. Raises InvalidSink if the table does not take them."""
        driver_name = connection.dialect.driver
        if driver_name not in ("psycopg", "pymysql"):
            raise InvalidSink(
                f"to_table works with the drivers psycopg and pymysql, not with {driver_name}"
            )
        names = chosen(rows.column_names, self.columns)
        quote = connection.dialect.identifier_preparer.quote_identifier
        table = quoted(connection, self.table)
        into = f"{table} ({', '.join(quote(name) for name in names)})"
        driver: Any = connection.connection.driver_connection
        if driver_name == "pymysql":
            _check(connection, self.table)
            with _refusals_of_mariadb(self.table), driver.cursor() as cursor:
                for some_rows in inserts(into, rows.select(names)):
                    cursor.execute(some_rows)
            return
        statement = f"COPY {into} FROM STDIN"
        with _refusals_of_postgres(self.table), driver.cursor() as cursor:
            # Waits for somebody who alters the table, and keeps others from it until the end of the
            # transaction: else the rows could be made for types that the table had before.
            with cursor.copy(statement):
                pass
            types = column_types(cursor, table)
            rows = suited(rows.select(names), types)
            data = binary_rows(rows, types) if driver.info.encoding == "utf-8" else None
            if data is not None:
                with cursor.copy(f"{statement} (FORMAT BINARY)") as copy:
                    for part in (HEADER, data, TRAILER):
                        copy.write(part)
                return
            columns = [values_of(column) for column in rows.columns]
            with cursor.copy(statement) as copy:
                for row in zip(*columns, strict=True):
                    copy.write_row(row)


@contextlib.contextmanager
def _refusals_of_postgres(table: str) -> Iterator[None]:
    """What the table cannot take, now or at another try: wrong data, a constraint, a name, a
    privilege. Without the detail, which shows values.
    """
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "")[:2] not in ("22", "23", "42"):
            raise
        raise _refused(table, error.diag.message_primary) from error


@contextlib.contextmanager
def _refusals_of_mariadb(table: str) -> Iterator[None]:
    import pymysql

    try:
        yield
    except pymysql.MySQLError as error:
        kinds = (pymysql.ProgrammingError, pymysql.DataError, pymysql.IntegrityError)
        if not isinstance(error, kinds) and error.args[0] not in _REFUSED_BY_MARIADB:
            raise
        raise _refused(table, error.args[-1]) from error


def _refused(table: str, why: object) -> InvalidSink:
    line = " ".join(str(why).split())
    return InvalidSink(f"the database does not take the rows into the table {table}: {line}")


def _check(connection: Connection, name: str) -> None:
    """Raises InvalidSink for a table without transactions, or a session that would read the
    literals as other texts, or other statements: they are in UTF-8, escaped byte by byte.
    """
    from sqlalchemy import text

    schema, _, table = name.rpartition(".")
    encoding, converted, engine = connection.execute(
        text(
            "SELECT @@character_set_client, @@character_set_connection,"
            " (SELECT engine FROM information_schema.tables"
            " WHERE table_schema = coalesce(:schema, database()) AND table_name = :table)"
        ),
        {"schema": schema or None, "table": table},
    ).one()
    if {encoding, converted} != {"utf8mb4"}:
        raise InvalidSink(
            f"the session has the character sets {encoding} and {converted}: to_table sends "
            "UTF-8, so leave charset out of the database's URL, or make it utf8mb4"
        )
    if engine is not None and engine != "InnoDB":
        raise InvalidSink(
            f"the table {name} has the engine {engine}, without transactions: the sink needs InnoDB"
        )


def column_types(cursor: Any, table: str) -> dict[str, str]:
    """The built-in types of the table's columns, which for a domain is that below it; '' for enums
    and texts that an extension has. They are read for each COPY: a table may change between two
    transactions.
    """
    cursor.execute(
        "WITH RECURSIVE of (attname, oid) AS (SELECT attname, atttypid FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped UNION ALL"
        " SELECT attname, typbasetype FROM of JOIN pg_type USING (oid) WHERE typtype = 'd')"
        " SELECT attname, CASE WHEN typnamespace = 'pg_catalog'::regnamespace THEN typname"
        " ELSE '' END FROM of JOIN pg_type USING (oid) WHERE typtype <> 'd'"
        " AND (typnamespace = 'pg_catalog'::regnamespace OR typcategory IN ('E', 'S'))",
        [table],
    )
    return dict(cursor.fetchall())


def suited(rows: pa.Table, types: Mapping[str, str]) -> pa.Table:
    """Maps and structs as JSON, and so are lists where the table has JSON. Bytes as texts where it
    has another type than bytes: else the server would take their digits. Raises InvalidSink.
    """
    return pa.table(
        [_suited(rows.column(name), types.get(name)) for name in rows.column_names],
        rows.column_names,
    )


def _suited(column: pa.ChunkedArray, wanted: str | None) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    is_json = pa.types.is_nested(kind) and wanted in ("json", "jsonb")
    if is_json or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return json_texts(column)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes and wanted not in ("bytea", None):
        try:
            return column.cast(pa.large_string())
        except pa.ArrowInvalid:
            raise InvalidSink(
                f"a column of the table is {wanted or 'text'}, and that of the rows has bytes "
                "which are not text in UTF-8: make it bytea, or convert the rows"
            ) from None
    return column
