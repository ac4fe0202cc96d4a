"""Many rows in one statement, with arrays as parameters and `unnest`.

A thousand rows take the server a few milliseconds. The statement's text does not depend on the
number of rows, so it is prepared once.

**A plan that was made for ten rows must work for a thousand.** After a few executions Postgres
plans a prepared statement for good, assuming ten rows in each array and the tables of that moment.
If a statement joins the rows to a table, that plan may scan all rows for each row of the table.
Then it is quadratic until the next ANALYZE (512 partitions took 300 ms instead of 6). So a
statement leaves the planner no such choice:

- It finds a row of the table by its key, once for each given row (`looked_up`).
- It writes through the unique index of the key (`written_over`), or by an array of keys
  (`any_of`).
- The connection forbids sequential scans (`connections`), which are cheapest in a table that is
  still small.

A test checks the generic plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_not
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
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, Insert, asyncpg
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import FromClause, LateralFromClause
from sqlalchemy.types import TypeEngine

_DIALECT: Any = asyncpg.dialect()  # type: ignore[no-untyped-call]
# The store's time when the statement arrived, in Unix seconds.
NOW: ColumnElement[float] = cast(extract("epoch", func.statement_timestamp()), Double)


def any_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """Whether the column is in the array of this parameter."""
    return column == func.any(bindparam(parameter, type_=ARRAY(column.type)))


def listed(column: ColumnElement[Any], found: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the column is among the `found` values; uses an index on the column."""
    return column == func.any(func.array(select(found).scalar_subquery()))


def looked_up(query: Select[Any], name: str) -> LateralFromClause:
    """The one row that `query` finds by its key, for each given row.

    `query` names the columns of the given rows; these are joined to its result. The limit keeps the
    planner from turning it into an ordinary join.
    """
    return query.limit(literal_column("1")).lateral(name)


def written_over(insert: Insert, columns: Iterable[str]) -> Insert:
    """An insert that overwrites a row of the same primary key.

    `columns` are overwritten then.
    """
    return insert.on_conflict_do_update(
        index_elements=list(insert.table.primary_key),
        set_={name: insert.excluded[name] for name in columns},
    )


class Rows:
    """Rows in parameters, as a table in a statement: `rows.c.x` is its column x.

    Columns of JSON are given as encoded text. The first column must not be null.

    `alike`: in most columns all rows may have the same value. Such a column is sent as one value
    instead of an array (256 partitions that are revoked take 0.4 ms less so).
    """

    def __init__(
        self, name: str, columns: Iterable[tuple[str, TypeEngine[Any]]], *, alike: bool = False
    ) -> None:
        self.name = name
        self.types = dict(columns)
        self._alike = alike
        given = {
            key: Text() if isinstance(type, JSONB) else type for key, type in self.types.items()
        }
        arrays = [bindparam(self._parameter(key), type_=ARRAY(type)) for key, type in given.items()]
        columns_ = [column(key, type) for key, type in given.items()]
        self.table: FromClause = (
            func.unnest(*arrays).table_valued(*columns_, name=name).render_derived()
        )
        if alike:
            first, *others = self.table.c
            self.table = select(first, *map(self._or_common, others)).subquery(f"{name}_rows")
        self.c = self.table.c

    def value(self, key: str) -> ColumnElement[Any]:
        """The column in the type of the table."""
        type = self.types[key]
        return cast(self.c[key], type) if isinstance(type, JSONB) else self.c[key]

    def parameters(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The rows, each in the order of the columns, as parameters of the statement.

        A column of nulls is sent empty: `unnest` fills it up.
        """
        arrays: Iterable[tuple[Any, ...]]
        arrays = zip(*rows, strict=True) if rows else (() for _ in self.types)
        found: dict[str, Any] = {}
        for key, array in zip(self.types, arrays, strict=True):
            common = None
            if self._alike and found:
                if array and array.count(array[0]) == len(array):
                    common, array = array[0], ()
                found[self._common(key)] = common
            there = any(map(is_not, array, repeat(None)))
            found[self._parameter(key)] = list(array) if there else []
        return found

    def _parameter(self, key: str) -> str:
        return f"{self.name}_{key}"

    def _or_common(self, one: ColumnElement[Any]) -> ColumnElement[Any]:
        common = bindparam(self._common(one.name), type_=one.type)
        return func.coalesce(one, common).label(one.name)

    def _common(self, key: str) -> str:
        return f"{self.name}_{key}_of_all"


class PreparedStatement:
    """A frequent statement, compiled once to the text that the driver takes.

    Executed by `Connections.fetch`. It must take and return only what the driver itself converts:
    numbers, texts, bytes, booleans and arrays of these; JSON is given as encoded text.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self.statement = statement
        compiled: Any = statement.compile(dialect=_DIALECT)
        self.text = str(compiled)
        self._names: Sequence[str] = compiled.positiontup or ()
        self._constants: Mapping[str, Any] = compiled.params

    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The values of the parameters in the order of the text."""
        constants = self._constants
        return [parameters[name] if name in parameters else constants[name] for name in self._names]
