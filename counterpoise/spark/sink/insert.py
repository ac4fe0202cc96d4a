"""`FencedSink.to_table`: rows into the columns of the same names, with COPY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from counterpoise.logs.columns import times
from counterpoise.spark.sink.errors import InvalidSink
from counterpoise.spark.sink.writer import Scope

if TYPE_CHECKING:
    from sqlalchemy import Connection


# Columns of the source that concern warm-up and say nothing about the message.
_BOOKKEEPING = frozenset({"replay", "tenure"})
# Of the source's times.
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Insert:
    """A `write` function. `columns` None: all columns of the rows except `replay` and `tenure`."""

    table: str
    columns: tuple[str, ...] | None

    def __call__(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        """Append the rows."""
        from counterpoise.spark.sink.highwater import quoted

        if connection.dialect.driver != "psycopg":
            raise InvalidSink(
                f"to_table works with the psycopg driver, not with {connection.dialect.driver}"
            )
        names = self._names(rows)
        quote = connection.dialect.identifier_preparer.quote_identifier
        into = f"{quoted(connection, self.table)} ({', '.join(quote(name) for name in names)})"
        columns = [_values(rows.column(name)) for name in names]
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def _names(self, rows: pa.Table) -> Sequence[str]:
        if self.columns is None:
            return [name for name in rows.column_names if name not in _BOOKKEEPING]
        unknown = set(self.columns) - set(rows.column_names)
        if unknown:
            raise InvalidSink(f"the rows have no column {', '.join(sorted(unknown))}")
        return self.columns


def _values(column: pa.ChunkedArray) -> list[Any]:
    if column.type == _TIME:
        return times(column)
    values: list[Any] = column.to_pylist()
    convert = _conversion(column.type)
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _conversion(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Maps and structs become JSON, lists become arrays; psycopg converts everything else."""
    from psycopg.types.json import Json

    if pa.types.is_map(kind):
        return lambda pairs: Json(dict(pairs))
    if pa.types.is_struct(kind):
        return Json
    return None
