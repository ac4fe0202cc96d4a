"""Balancing steps that are computed in bulk equal single steps."""

from hypothesis import given
from hypothesis import strategies as st

from broker.core.assignment import _Receivers, _steps
from tests.broker.core.test_sequences import PROFILE


def taken(levels: dict[int, int], stride: int) -> list[tuple[int, int]]:
    """(giver, taker) of each step, one by one."""
    levels, steps = dict(levels), []
    while max(levels.values()) - min(levels.values()) > stride:
        giver = min(levels, key=lambda bind_number: (-levels[bind_number], bind_number))
        taker = min(levels, key=lambda bind_number: (levels[bind_number], bind_number))
        steps.append((giver, taker))
        levels[giver] -= stride
        levels[taker] += stride
    return steps


@PROFILE
@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 12), min_size=1, max_size=8),
    st.sets(st.integers(0, 30)),
    st.integers(1, 3),
)
def test_steps_counted_are_steps_taken(levels: dict[int, int], able: set[int], stride: int) -> None:
    expected = taken(levels, stride)
    takers = _Receivers(levels, stride)
    counted = [
        (step, bind_number, takers.at(step))
        for step, bind_number in _steps(levels, able & levels.keys(), stride)
        if step < len(expected)
    ]
    assert counted == [
        (step, giver, taker) for step, (giver, taker) in enumerate(expected) if giver in able
    ]
