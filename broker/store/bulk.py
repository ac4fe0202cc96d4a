"""Many rows in one statement: arrays as parameters, `unnest` in the statement.

A thousand rows cost the server a few milliseconds this way, and the statement's text is the same
however many there are, so it is prepared once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Double, Text, bindparam, cast, column, extract, func
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

# The store's time when the statement arrived, in Unix seconds.
NOW: ColumnElement[float] = cast(extract("epoch", func.statement_timestamp()), Double)


def any_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """Whether the column is one of the array that is given as this parameter."""
    return column == func.any(bindparam(parameter, type_=ARRAY(column.type)))


class Rows:
    """Rows given as parameters, a table in a statement: `rows.c.x` is the column x of it.

    Columns of JSON are given as encoded text.
    """

    def __init__(self, name: str, columns: Iterable[tuple[str, TypeEngine[Any]]]) -> None:
        self.name = name
        self.types = dict(columns)
        given = {
            key: Text() if isinstance(type, JSONB) else type for key, type in self.types.items()
        }
        arrays = [bindparam(self._parameter(key), type_=ARRAY(type)) for key, type in given.items()]
        columns_ = [column(key, type) for key, type in given.items()]
        self.table: TableValuedAlias = (
            func.unnest(*arrays).table_valued(*columns_, name=name).render_derived()
        )
        self.c = self.table.c

    def value(self, key: str) -> ColumnElement[Any]:
        """The column as it goes into a table."""
        type = self.types[key]
        return cast(self.c[key], type) if isinstance(type, JSONB) else self.c[key]

    def parameters(self, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
        """The rows, each in the order of the columns, as parameters of the statement."""
        arrays = zip(*rows, strict=True) if rows else ([] for _ in self.types)
        return {
            self._parameter(key): list(array) for key, array in zip(self.types, arrays, strict=True)
        }

    def _parameter(self, key: str) -> str:
        return f"{self.name}_{key}"
