"""Many rows in one statement: arrays as parameters, `unnest` in the statement.

A thousand rows cost the server a few milliseconds this way, and the statement's text is the same
however many there are, so it is prepared once.

**A plan must hold for a thousand rows that was made for ten.** After a few executions Postgres
plans a prepared statement once and for all, for ten rows in each array and for tables as they are
at that moment. If a statement joins the rows to a table, that plan may run through the rows for
each row of the table; it is then quadratic until the next ANALYZE (512 partitions took 300 ms
instead of 6). So a statement leaves the planner no such choice:

- It finds a row of the table by its key, once for each row that is given (`looked_up`).
- It writes through the unique index of the key (`written_over`), or by an array of keys
  (`any_of`).
- The connection forbids to read whole tables (`connections`), which would be the cheapest way in
  a table that is still small.

A test looks at the generic plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Double,
    Select,
    Text,
    bindparam,
    cast,
    column,
    extract,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, Insert
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import LateralFromClause, TableValuedAlias
from sqlalchemy.types import TypeEngine

# The store's time when the statement arrived, in Unix seconds.
NOW: ColumnElement[float] = cast(extract("epoch", func.statement_timestamp()), Double)


def any_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """Whether the column is one of the array that is given as this parameter."""
    return column == func.any(bindparam(parameter, type_=ARRAY(column.type)))


def listed(column: ColumnElement[Any], found: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the column is one of those that were found before, by an index on it."""
    return column == func.any(func.array(select(found).scalar_subquery()))


def looked_up(query: Select[Any], name: str) -> LateralFromClause:
    """The one row that `query` finds by its key, for each row that is given.

    `query` names the columns of the rows that are given; these are joined to what is returned.
    The limit keeps the planner from making an ordinary join of it.
    """
    return query.limit(literal_column("1")).lateral(name)


def written_over(insert: Insert, columns: Iterable[str]) -> Insert:
    """The rows of an insert, where there is one of the same primary key in its place.

    `columns` are those that change then.
    """
    return insert.on_conflict_do_update(
        index_elements=list(insert.table.primary_key),
        set_={name: insert.excluded[name] for name in columns},
    )


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
