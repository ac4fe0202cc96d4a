"""Statements for many rows, written so that one plan works for any number of them.

A thousand rows take the server a few milliseconds. The statement's text does not depend on the
number of rows, so it is prepared once.

**A plan that was made for ten rows must work for a thousand.** After a few executions Postgres
plans a prepared statement for good, assuming few rows in its parameters and the tables of that
moment. If a statement joins the rows to a table, that plan may scan all rows for each row of the
table. Then it is quadratic until the next ANALYZE (512 partitions took 300 ms instead of 6). So a
statement leaves the planner no such choice:

- It finds a row of a table by its key, once for each given row (`LATERAL … LIMIT 1`).
- It writes through the unique index of the key (`INSERT … ON CONFLICT`), or by an array of keys
  (`any_of`).
- The connection forbids sequential scans (`connections`), which are cheapest in a table that is
  still small.

A test checks the generic plans.

**Frequent statements are prepared** (`PreparedStatement`); the long ones are files, `sql/*.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Self

from sqlalchemy import Double, bindparam, cast, extract, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, asyncpg
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.elements import ColumnElement

_DIALECT: Any = asyncpg.dialect()  # type: ignore[no-untyped-call]
# The store's time when the statement arrived, in Unix seconds.
NOW: ColumnElement[float] = cast(extract("epoch", func.statement_timestamp()), Double)


def any_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """Whether the column is in the array of this parameter."""
    return column == func.any(bindparam(parameter, type_=ARRAY(column.type)))


def listed(column: ColumnElement[Any], found: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the column is among the `found` values; uses an index on the column."""
    return column == func.any(func.array(select(found).scalar_subquery()))


class PreparedStatement:
    """A frequent statement, compiled once to the text that the driver takes.

    Executed by `Connections.fetch`. It must take and return only what the driver itself converts:
    numbers, texts, bytes, booleans and arrays of these; JSON is given as encoded text.

    `names`: the parameters, in the order of the text; `constants` has the values of those that the
    statement itself gives.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self.statement = statement
        compiled: Any = statement.compile(dialect=_DIALECT)
        self.text = str(compiled)
        self.names: Sequence[str] = compiled.positiontup or ()
        self.constants: Mapping[str, Any] = {
            name: bound.value for name, bound in compiled.binds.items() if not bound.required
        }

    @classmethod
    def read(cls, name: str) -> Self:
        """The statement in the file `sql/{name}.sql`; its parameters are written `:parameter`."""
        return cls(text(files(__package__).joinpath("sql", f"{name}.sql").read_text("utf-8")))
