"""Partials of any parts of the rows, merged in any order, are those of all rows. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.spark.aggregates import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from counterpoise.spark.aggregates.partials import (
    Mark,
    from_text,
    merged,
    partial_of,
    results_of,
    to_text,
)

Row = tuple[Mark, int | None]

VALUES = {
    "rows": Count(),
    "known": Count("x"),
    "total": Sum("x"),
    "least": Min("x"),
    "most": Max("x"),
    "mean": Avg("x"),
    "first": First("x"),
    "last": Last("x"),
    "different": ApproxDistinct("x"),
}


def naive(rows: Sequence[Row]) -> dict[str, Any]:
    """The same from all rows at once, each by its definition."""
    known = [x for _, x in rows if x is not None]
    ends = []
    for choose in (min, max):
        of_partition = {
            p: choose((row for row in rows if row[0][1] == p), key=lambda row: row[0][2])
            for p in {mark[1] for mark, _ in rows}
        }
        ends.append(choose(of_partition.values(), key=lambda row: row[0][:2])[1])
    return {
        "rows": len(rows),
        "known": len(known),
        "total": sum(known) if known else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
        "mean": sum(known) / len(known) if known else None,
        "first": ends[0],
        "last": ends[1],
        "different": len(set(known)),
    }


@st.composite
def rows_in_partitions(draw: st.DrawFn) -> list[list[Row]]:
    """Rows of up to three partitions, each in the order of its positions."""
    one = st.tuples(st.integers(-9, 9), st.one_of(st.none(), st.integers(-(10**30), 10**30)))
    found = draw(st.lists(st.lists(one, max_size=8), min_size=1, max_size=3).filter(any))
    return [
        [((time, partition, position), x) for position, (time, x) in enumerate(rows)]
        for partition, rows in enumerate(found)
    ]


def of(rows: Sequence[Row]) -> Any:
    """Their partials, as they come back from the database."""
    columns = {"x": [x for _, x in rows]}
    return from_text(to_text(partial_of(VALUES, columns, [mark for mark, _ in rows])))


@given(rows_in_partitions(), st.randoms(use_true_random=False))
def test_any_division_of_the_rows_merged_in_any_order(
    partitions: list[list[Row]], chance: random.Random
) -> None:
    parts: list[list[Row]] = []
    for rows in partitions:
        while rows:
            size = chance.randint(1, len(rows))
            parts.append(rows[:size])
            rows = rows[size:]
    whole, *others = map(of, chance.sample(parts, len(parts)))
    for one in others:
        whole = from_text(to_text(merged(VALUES, whole, one)))
    assert results_of(VALUES, whole) == naive([row for rows in partitions for row in rows])


@given(st.lists(st.floats(allow_infinity=False), min_size=1))
def test_floats(values: list[float]) -> None:
    marks = [(0, 0, at) for at in range(len(values))]
    numbers = [value for value in values if not math.isnan(value)]
    assert Min("x").partial(values, marks) == min(numbers, default=None)
    assert Max("x").partial(values, marks) == max(numbers, default=None)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([math.inf, -math.inf], math.nan),
        ([1e308, 1e308], math.inf),
        ([-1e308, -math.inf], -math.inf),
    ],
)
def test_floats_beyond_the_largest_number_stop_nothing(values: list[float], total: float) -> None:
    for one in (Sum("x"), Avg("x")):
        parts = [from_text(to_text(one.partial([value], [(0, 0, 0)]))) for value in values]
        for partial in (one.partial(values, [(0, 0, 0)] * 2), one.merge(*parts)):
            assert repr(one.value(partial)) == repr(total)


def test_decimals_are_added_exactly() -> None:
    marks = [(0, 0, 0)] * 2
    large = [Decimal("12345678901.123456789012345678"), Decimal("1E-18")]
    assert Sum("x").partial(large, marks) == Decimal("12345678901.123456789012345679")
    most = Decimal(9 * "1234" + "12")
    for one in (Sum("x"), Avg("x")):
        partial: Any = one.partial([most], marks[:1])
        assert one.value(partial) == most
        for _ in range(10):
            partial = from_text(to_text(one.merge(partial, partial)))
        times = 1024 if isinstance(one, Sum) else 1
        assert one.value(partial) == Decimal(times * int(most))


def test_about_how_many_are_different() -> None:
    many = ApproxDistinct("x", 1024)
    partial: Any = []
    for part in range(100):
        values = [f"id {n}" for n in range(part * 900, part * 900 + 1000)]
        partial = many.merge(many.partial(values, []), partial)
    # 90,100 different ones, within four standard errors.
    assert len(partial) == 1024
    assert abs(many.value(partial) / 90_100 - 1) < 4 / math.sqrt(1022)


@pytest.mark.parametrize(
    "value",
    [
        1,
        10**40,
        1.5,
        "a text",
        b"\x00\xff",
        Decimal("1.20"),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        date(2026, 1, 2),
        None,
        True,
        {"kind": "order"},
        {"@": "time"},
        {"@": "bytes", "is": "aGk="},
        {"@": "map", "is": [{"@": "decimal"}]},
        {1: "x", (2, "y"): b"z", date(2026, 1, 2): {"@": None}},
    ],
)
def test_what_a_column_may_have_comes_back_from_the_database(value: Any) -> None:
    back = from_text(to_text([value]))[0]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("place", [lambda zero: [zero], lambda zero: {"a": (zero, {zero: zero})}])
def test_the_two_zeros_of_floats_are_one_group(place: Callable[[float], Any]) -> None:
    """Rounding gives both. The database of the result takes them for equal."""
    assert to_text(place(-0.0)) == to_text(place(0.0))


def test_a_time_has_one_text_in_all_time_zones() -> None:
    """Spark gives times in the zone of its session, also those within a struct."""
    here = datetime(2026, 1, 2, 3, tzinfo=UTC)
    there = here.astimezone(timezone(timedelta(hours=9)))
    assert to_text([{"at": here}]) == to_text([{"at": there}])


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be aggregated"):
        to_text([object()])


@pytest.mark.parametrize("make", [Sum, Min, Max, Avg, First, Last])
def test_of_nothing_but_null(make: Callable[[str], Aggregate]) -> None:
    one = make("x")
    partial = one.partial([None, None], [(0, 0, 0), (0, 0, 1)])
    assert one.value(one.merge(partial, partial)) is None


def test_a_value_that_was_added_to_the_aggregate_begins_with_the_next_rows() -> None:
    before = partial_of({"n": Count()}, {}, [(0, 0, 0)])
    after = {"n": Count(), "total": Sum("x")}
    assert results_of(after, before) == {"n": 1, "total": None}
    new = partial_of(after, {"x": [5]}, [(0, 0, 1)])
    assert results_of(after, merged(after, before, new)) == {"n": 2, "total": 5}
