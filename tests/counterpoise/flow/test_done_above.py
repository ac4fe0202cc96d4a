"""What is done above a position, beside a set of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.flow.done_above import DoneAbove

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=20)


def made(ranges: list[tuple[int, int]]) -> tuple[DoneAbove, set[int]]:
    above, expected = DoneAbove(), set[int]()
    for begin, length in ranges:
        above.add(begin, begin + length)
        expected.update(range(begin, begin + length))
    return above, expected


def numbers(above: DoneAbove) -> set[int]:
    return {number for number in range(100) if above.covers(number)}


@given(RANGES)
def test_it_has_what_was_added_in_as_few_ranges_as_possible(ranges: list[tuple[int, int]]) -> None:
    above, expected = made(ranges)
    assert numbers(above) == expected
    assert len(above) == len([number for number in expected if number - 1 not in expected])
    assert above.end == max(expected, default=-1) + 1


@given(RANGES, st.integers(0, 70))
def test_the_position_is_the_lowest_that_is_not_done(
    ranges: list[tuple[int, int]], position: int
) -> None:
    above, expected = made(ranges)
    taken = above.take(position)
    assert taken == next(one for one in range(position, 100) if one not in expected)
    assert numbers(above) == {number for number in expected if number > taken}


@given(RANGES, st.integers(0, 70))
def test_the_text_says_what_is_above_the_position(
    ranges: list[tuple[int, int]], position: int
) -> None:
    above, expected = made(ranges)
    text = above.text(str(position))
    said = numbers(DoneAbove.of_text(text))
    assert {one for one in said if one >= position} == {one for one in expected if one >= position}
    assert said <= expected
    above.forget(str(position))
    assert above.text(str(position)) == text


@given(RANGES, st.integers(0, 40))
def test_a_text_that_would_be_too_long_has_the_lowest_ranges(
    ranges: list[tuple[int, int]], most: int
) -> None:
    above, expected = made(ranges)
    text = above.text("0", most)
    assert len(text or "") <= most
    said = DoneAbove.of_text(text)
    assert numbers(said) == {one for one in expected if one < said.end}


def test_the_text_is_that_of_the_contract() -> None:
    above, _ = made([])
    above.add(1045, 1062)
    above.add(1065, 1105)
    assert above.text("1042") == "1045+17,3+40"
    assert DoneAbove.of_text(None).text(None) is None


@pytest.mark.parametrize("text", ["", "1", "1+", "+1", "1+0", "1+2,", "1+2;3+4", "-1+2", "a+b"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not say what is done"):
        DoneAbove.of_text(text)
