"""What an aggregate does in the database: rows into partials, closed windows into results.

`Merge` is a `write` function of `FencedSink`. It runs on the executors, in the transaction of the
fence, with rows of one partition that no transaction has counted. `close_windows` runs after each
micro-batch, on the driver, in a transaction of its own. Both write results by `Results`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from counterpoise.logs.columns import microseconds_of, time_at, values_of
from counterpoise.spark.aggregates import tables
from counterpoise.spark.aggregates.partials import (
    Mark,
    Values,
    from_text,
    merged,
    partial_of,
    results_of,
    to_text,
)
from counterpoise.spark.aggregates.tables import TOGETHER, AggregateKey, Found, Group
from counterpoise.spark.aggregates.windows import (
    CALENDAR,
    FOREVER,
    MICROSECONDS,
    Assigned,
    Clock,
    Windows,
    advance,
    assign,
)
from counterpoise.spark.errors import InvalidSink
from counterpoise.spark.sink.database import quoted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from counterpoise.spark.sink.writer import Scope


Late = Literal["drop", "side", "merge"]
_NUL = "\\u0000"  # in a text of JSON
Emit = Callable[["Connection", list[dict[str, Any]]], object]


@dataclass(frozen=True)
class Counted:
    """What is counted. `by`: the columns of a group. `windows` None: all rows of a group are one.

    `keep`: with `late="merge"`, for how long a closed window may still change, in microseconds.
    """

    values: Values
    by: tuple[str, ...]
    windows: Windows | None
    late: Late = "drop"
    keep: int = 0

    def columns(self) -> set[str]:
        """The columns of the rows that are needed."""
        times = [] if self.windows is None else [self.windows.time]
        needed = (one.column for one in self.values.values() if one.column is not None)
        return {*self.by, *needed, *times}


@dataclass(frozen=True)
class Results:
    """Writes results: replaces rows of a table, or calls the user's function `emit`."""

    plan: Counted
    table: str
    emit: Emit | None = field(default=None, repr=False)

    def put(self, connection: Connection, found: Mapping[Group, Mapping[str, Any]]) -> None:
        """The results of these groups, by their partials."""
        rows = [
            self._row(group, found[group])
            for group in sorted(found, key=lambda one: (one.end, one.start, one.groups))
        ]
        if not rows:
            return
        if self.emit is not None:
            self.emit(connection, rows)
        else:
            self._replace(connection, rows)

    def refuse_nul(self, group: Group, partials: Mapping[str, Any]) -> None:
        """Raises InvalidSink for a text that the table cannot have: no window could be closed."""
        if self.emit is not None:
            return
        for name, value in self._row(group, partials).items():
            if isinstance(value, str) and "\0" in value:
                raise InvalidSink(
                    f"the column {name} of the result would have a text with the character NUL, "
                    "which PostgreSQL does not take: remove it from the rows, with "
                    "replace(column, '\\0', '')"
                )

    def check(self, connection: Connection, key: AggregateKey) -> None:
        """Raises InvalidSink if the table lacks a column of the results, or open windows were
        counted by other columns.
        """
        places = [] if self.plan.windows is None else ["window_start", "window_end"]
        needs = [*places, *self.plan.by, *self.plan.values]
        has = tables.columns(connection, self.table) if self.emit is None else set()
        if has and (lacks := [name for name in needs if name not in has]):
            raise InvalidSink(
                f"the table {self.table} has no column {', '.join(lacks)}, and the results have: "
                "add it (ALTER TABLE … ADD COLUMN …), or write to another table"
            )
        if self.plan.windows is not None and (groups := tables.any_groups(connection, key)):
            self._columns(groups)

    def _row(self, group: Group, partials: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._place(group), **results_of(self.plan.values, partials)}

    def _columns(self, groups: str) -> dict[str, Any]:
        """The columns of a group. Raises InvalidSink."""
        values = from_text(groups)
        if len(values) != len(self.plan.by):
            raise InvalidSink(
                f"open windows were counted by {len(values)} columns, and not by those of now: "
                f"{', '.join(self.plan.by) or 'none'}. An aggregate with another by needs another "
                "name, or begins anew with forget"
            )
        return dict(zip(self.plan.by, values, strict=True))

    def _place(self, group: Group) -> dict[str, Any]:
        of = self._columns(group.groups)
        if self.plan.windows is None:
            return of
        return {"window_start": time_at(group.start), "window_end": time_at(group.end), **of}

    def _replace(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        from sqlalchemy import text

        names = list(rows[0])
        place = [name for name in names if name not in self.plan.values]
        table = quoted(connection, self.table)
        by_name = {name: f"v{number}" for number, name in enumerate(names)}
        given = [{by_name[name]: value for name, value in row.items()} for row in rows]
        if self.plan.windows is None or self.plan.late == "merge":
            same = " AND ".join(
                f"{quoted(connection, name)} IS NOT DISTINCT FROM :{by_name[name]}"
                for name in place
            )
            connection.execute(text(f"DELETE FROM {table} WHERE {same or 'true'}"), given)
        columns = ", ".join(quoted(connection, name) for name in names)
        values = ", ".join(f":{by_name[name]}" for name in names)
        connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), given)


@dataclass(frozen=True)
class Merge:
    """Adds rows to the partials of their partition."""

    plan: Counted
    results: Results

    def __call__(self, connection: Connection, rows: pa.Table, scope: Scope) -> None:
        """A `write` function of `FencedSink`."""
        key = AggregateKey(scope.sink, scope.queue_id, scope.queue)
        read = _Rows(self.plan, rows, scope.partition)
        if self.plan.windows is None:
            tables.begin(connection, key)
            assigned = Assigned([(n, 0, FOREVER) for n in range(rows.num_rows)], (), None, 0)
            self._add(connection, key, scope.partition, read.groups(assigned.kept))
            return
        clock, now = tables.lock_clock(connection, key, scope.partition)
        assigned = assign(read.times, self.plan.windows, clock, now)
        late = assigned.late
        if late and self.plan.late == "merge":
            assigned, late = self._merge_late(connection, key, read, assigned)
        elif late and self.plan.late == "side":
            tables.put_late(connection, key, scope.partition, read.texts(late))
        self._add(connection, key, scope.partition, read.groups(assigned.kept))
        dropped = len({index for index, *_ in late} - {index for index, *_ in assigned.kept})
        if self.plan.late == "side":
            dropped = 0
        tables.move_clock(
            connection, key, scope.partition, assigned.latest, dropped + assigned.untimed
        )

    def _merge_late(
        self, connection: Connection, key: AggregateKey, read: _Rows, assigned: Assigned
    ) -> tuple[Assigned, Sequence[tuple[int, int, int]]]:
        """Late rows of open windows are kept; those of closed ones change their results.

        Returns the rows that come too late for that, too.
        """
        low = tables.lock_low(connection, key)
        open_still = [one for one in assigned.late if low is None or one[2] > low]
        closed = [one for one in assigned.late if low is not None and one[2] <= low]
        kept = [one for one in closed if low is not None and one[2] > low - self.plan.keep]
        gone = [one for one in closed if low is not None and one[2] <= low - self.plan.keep]
        found = self._add(connection, key, TOGETHER, read.groups(kept))
        self.results.put(connection, found)
        together = sorted([*assigned.kept, *open_still])
        return replace(assigned, kept=together, late=()), gone

    def _add(
        self,
        connection: Connection,
        key: AggregateKey,
        partition: int,
        new: Mapping[Group, Mapping[str, Any]],
    ) -> dict[Group, dict[str, Any]]:
        """Merge into the partials of a partition; returns them as they are now."""
        if not new:
            return {}
        known = tables.partials(connection, key, partition, new)
        after = {
            group: merged(self.plan.values, from_text(known[group]), one)
            if group in known
            else dict(one)
            for group, one in new.items()
        }
        texts = {group: to_text(one) for group, one in after.items()}
        for group, one in texts.items():
            if _NUL in group.groups or _NUL in one:
                self.results.refuse_nul(group, after[group])
        tables.put_partials(connection, key, partition, texts)
        return after


class _Rows:
    """The rows of one partition as columns of Python values."""

    def __init__(self, plan: Counted, rows: pa.Table, partition: int) -> None:
        missing = plan.columns() - set(rows.column_names)
        if missing:
            raise InvalidSink(f"the rows have no column {', '.join(sorted(missing))}")
        for name in plan.by:
            if pa.types.is_nested(kind := rows.schema.field(name).type):
                raise InvalidSink(
                    f"the column {name} in by is a {kind}: group by its fields as columns of their "
                    "own, or by a text of it (to_json)"
                )
        self._plan = plan
        self._columns = {name: _values(rows.column(name)) for name in plan.columns()}
        self._positions: list[str] = rows.column("position").to_pylist()
        self.times: list[int | None] = (
            [0] * rows.num_rows if plan.windows is None else _microseconds(rows, plan.windows.time)
        )
        self._partition = partition

    def groups(self, assigned: Sequence[tuple[int, int, int]]) -> dict[Group, dict[str, Any]]:
        """The partials of each group of these rows."""
        by, values = [self._columns[name] for name in self._plan.by], self._plan.values
        members: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for index, start, end in assigned:
            members[(end, start, *(column[index] for column in by))].append(index)
        found: dict[Group, dict[str, Any]] = {}
        for (end, start, *of), indexes in members.items():
            columns = {
                name: [column[index] for index in indexes] for name, column in self._columns.items()
            }
            marks = [self._mark(index) for index in indexes]
            group = Group(end, start, to_text(of))
            one = partial_of(values, columns, marks)
            # NaN is no equal of itself, but has one text.
            found[group] = merged(values, found[group], one) if group in found else one
        return found

    def texts(self, assigned: Sequence[tuple[int, int, int]]) -> list[dict[str, Any]]:
        """Each of these rows for the table of late rows."""
        return [
            {
                "position": self._positions[index],
                "window_start": time_at(start),
                "window_end": time_at(end),
                "row_columns": to_text({name: c[index] for name, c in self._columns.items()}),
            }
            for index, start, end in assigned
        ]

    def _mark(self, index: int) -> Mark:
        return (self.times[index] or 0, self._partition, int(self._positions[index]))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Times are in UTC; those that no calendar has are None."""
    if getattr(column.type, "tz", None) is None:
        return values_of(column)
    return [
        None if one is None or one not in CALENDAR else time_at(one)
        for one in microseconds_of(column)
    ]


def _microseconds(rows: pa.Table, name: str) -> list[int | None]:
    """The column of event times. Raises InvalidSink if it has none."""
    column = rows.column(name)
    if not pa.types.is_timestamp(column.type):
        raise InvalidSink(f"the column {name} has no times but {column.type}: cast it to timestamp")
    return microseconds_of(column)


def close_windows(
    connection: Connection,
    key: AggregateKey,
    results: Results,
    *,
    live: Collection[int],
    known: Collection[int],
    idle_seconds: float | None,
) -> int:
    """Move the low watermark as far as the clocks allow, and write the results of closed windows.

    `live`: the partitions of the queue, learned after the clocks of `known` partitions were read;
    a known partition that is not live has ended. Returns the number of results. The caller commits.
    """
    plan = results.plan
    before = tables.lock_low(connection, key)
    if plan.windows is None:
        found = _together(plan.values, tables.changed_groups(connection, key, FOREVER))
        results.put(connection, found)
        return len(found)
    clocks = tables.clocks(connection, key, idle_seconds)
    tables.add_clocks(connection, key, set(live) - clocks.keys(), before)
    there = [*clocks.values(), *(Clock(n, None, before) for n in set(live) - clocks.keys())]
    there = [
        replace(one, still=one.still or (one.partition in known and one.partition not in live))
        for one in there
    ]
    wanted = advance(there, plan.windows.delay, before)
    if wanted.passed:
        still = [one for one in there if one.partition in wanted.passed]
        locked = tables.lock_unmoved(connection, key, still)
        # The others are written just now, so they are not still.
        moving = wanted.passed - locked
        there = [replace(one, still=one.still and one.partition not in moving) for one in there]
        wanted = advance(there, plan.windows.delay, before)
    low = wanted.low
    if low is None or low == before:
        return 0
    tables.raise_floors(connection, key, wanted.passed, low)
    tables.set_low(connection, key, low)
    found = _together(plan.values, tables.take_closed(connection, key, low, before))
    if plan.late == "merge":
        kept = {group: to_text(one) for group, one in found.items()}
        tables.put_partials(connection, key, TOGETHER, kept)
        tables.forget_closed(connection, key, low - plan.keep)
    results.put(connection, found)
    return len(found)


def _together(values: Values, found: Found) -> dict[Group, dict[str, Any]]:
    """The partials of all partitions of each group."""
    together: dict[Group, dict[str, Any]] = {}
    for group, partials in found:
        one = from_text(partials)
        together[group] = merged(values, together[group], one) if group in together else one
    return together


def microseconds(seconds: float) -> int:
    """A length of time."""
    return round(seconds * MICROSECONDS)
