"""Which windows a row belongs to, which rows are late, and when a window is closed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.spark.aggregates.windows import (
    MICROSECONDS,
    Clock,
    LowWatermark,
    Windows,
    advance,
    assign,
)

NOW = 100 * MICROSECONDS


def seconds(*times: int | None) -> list[int | None]:
    return [None if time is None else time * MICROSECONDS for time in times]


@given(st.integers(-(10**12), 10**12), st.integers(1, 100), st.integers(1, 100))
def test_a_row_is_in_every_window_that_contains_its_time(time: int, a: int, b: int) -> None:
    windows = Windows("at", max(a, b), min(a, b))
    found = list(windows.of(time))
    begins = range(
        (time - windows.size) // windows.slide * windows.slide - windows.slide,
        time + 2 * windows.slide,
        windows.slide,
    )
    assert sorted(found) == [
        (start, start + windows.size) for start in begins if start <= time < start + windows.size
    ]
    assert all(start % windows.slide == 0 for start, _ in found)


@pytest.mark.parametrize("wrong", [(0, None, 0), (5, 6, 0), (5, 0, 0), (5, 5, -1)])
def test_windows_that_would_leave_rows_out_are_refused(
    wrong: tuple[float, float | None, float],
) -> None:
    with pytest.raises(ValueError, match="0 < slide_seconds <= size_seconds"):
        Windows("at", wrong[0], wrong[1], wrong[2])


def test_a_row_is_late_by_the_rows_before_it_in_its_partition() -> None:
    windows = Windows("at", 10, delay_seconds=5)
    found = assign(seconds(3, 14, 9, 15, 9, None, 12), windows, Clock(0), NOW)
    # At 15, five seconds after the end, the window from 0 to 10 gets nothing more.
    assert [index for index, *_ in found.kept] == [0, 1, 2, 3, 6]
    assert found.late == [(4, 0, 10 * MICROSECONDS)]
    assert found.latest == 15 * MICROSECONDS
    assert found.untimed == 1


@pytest.mark.parametrize("wrong", [-1, math.nan])
def test_no_limit_lies_in_the_past(wrong: float) -> None:
    with pytest.raises(ValueError, match="ahead_seconds is at least 0"):
        Windows("at", 10, ahead_seconds=wrong)


def test_a_row_may_be_late_for_one_of_its_windows_alone() -> None:
    windows = Windows("at", 10, 5)
    found = assign(seconds(10, 8), windows, Clock(0), NOW)
    assert found.late == [(1, 0, 10 * MICROSECONDS)]
    assert (1, 5 * MICROSECONDS, 15 * MICROSECONDS) in found.kept


def test_a_floor_makes_rows_late() -> None:
    windows = Windows("at", 10)
    found = assign(seconds(3, 12), windows, Clock(0, floor=10 * MICROSECONDS), NOW)
    assert [index for index, *_ in found.late] == [0]


def test_a_row_too_far_ahead_of_the_present_moves_nothing() -> None:
    windows = Windows("at", 10, ahead_seconds=5)
    found = assign(seconds(99, 10**11, 106, 98, 105, 98), windows, Clock(0), NOW)
    assert [index for index, *_ in found.kept] == [0, 1, 2, 3, 4]
    assert [index for index, *_ in found.late] == [5]
    assert found.latest == 105 * MICROSECONDS
    free = Windows("at", 10, ahead_seconds=None)
    assert assign(seconds(10**11), free, Clock(0), NOW).latest == 10**11 * MICROSECONDS


@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 50)), max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(0, 20),
)
def test_the_cuts_between_micro_batches_make_no_difference(
    times: list[int | None], cuts: list[int], delay: int
) -> None:
    windows = Windows("at", 10, 4, delay)
    whole = assign(seconds(*times), windows, Clock(0), NOW)
    kept, late, clock = [], [], Clock(0)
    edges = [0, *sorted(cuts), len(times)]
    for begin, end in pairwise(edges):
        found = assign(seconds(*times[begin:end]), windows, clock, NOW)
        kept += [(index + begin, *window) for index, *window in found.kept]
        late += [(index + begin, *window) for index, *window in found.late]
        clock = Clock(0, found.latest)
    assert ([*map(tuple, kept)], [*map(tuple, late)]) == (whole.kept, whole.late)
    assert clock.latest == whole.latest


@pytest.mark.parametrize(
    ("clocks", "before", "expected"),
    [
        pytest.param([Clock(0, 50), Clock(1, 30)], None, LowWatermark(30), id="the lowest holds"),
        pytest.param(
            [Clock(0, 50), Clock(1)], None, LowWatermark(None), id="one without rows holds"
        ),
        pytest.param([Clock(0, 50), Clock(1)], 20, LowWatermark(20), id="it never falls"),
        pytest.param([Clock(0, 50), Clock(1, 10)], 20, LowWatermark(20), id="nor for a new clock"),
        pytest.param(
            [Clock(0, 50), Clock(1, 30, still=True), Clock(2, still=True)],
            None,
            LowWatermark(50, frozenset({1, 2})),
            id="still ones are passed",
        ),
        pytest.param(
            [Clock(0, 50), Clock(1, 70, still=True)],
            None,
            LowWatermark(50),
            id="one that is still and ahead need not be passed",
        ),
        pytest.param(
            [Clock(0, 50, still=True), Clock(1, 70, still=True)],
            None,
            LowWatermark(70, frozenset({0})),
            id="if all are still, the one that is ahead decides",
        ),
        pytest.param([Clock(0, still=True)], None, LowWatermark(None), id="nothing was ever read"),
        pytest.param([], 7, LowWatermark(7), id="no partitions"),
        pytest.param(
            [Clock(0, 50), Clock(1, 10, floor=40)], None, LowWatermark(40), id="a floor counts"
        ),
    ],
)
def test_the_low_watermark(
    clocks: Sequence[Clock], before: int | None, expected: LowWatermark
) -> None:
    assert advance(clocks, 0, before) == expected


@given(st.data())
def test_nothing_is_added_to_a_closed_window_and_the_watermark_never_falls(
    data: st.DataObject,
) -> None:
    """Three partitions in any interleaving of rows and closings, still at any time."""
    windows = Windows("at", 3, 2, data.draw(st.integers(0, 4)))
    clocks = {number: Clock(number) for number in range(3)}
    low: int | None = None
    for _ in range(data.draw(st.integers(0, 25))):
        if data.draw(st.booleans()):
            number = data.draw(st.integers(0, 2))
            times = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
            found = assign(seconds(*times), windows, clocks[number], NOW)
            assert all(low is None or end > low for _, _, end in found.kept)
            clocks[number] = Clock(number, found.latest, clocks[number].floor)
            continue
        still = data.draw(st.sets(st.integers(0, 2)))
        now = [Clock(n, c.latest, c.floor, n in still) for n, c in clocks.items()]
        after = advance(now, windows.delay, low)
        assert low is None or (after.low is not None and after.low >= low)
        assert after.passed <= still
        low = after.low
        for number in after.passed:
            clocks[number] = Clock(number, clocks[number].latest, low)
        if low is not None:
            for clock in clocks.values():
                bound = clock.bound(windows.delay)
                assert bound is not None
                assert bound >= low
