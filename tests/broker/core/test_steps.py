"""Balancing steps that are computed in bulk equal single steps."""

from hypothesis import given
from hypothesis import strategies as st

from broker.core.assignment import _Receivers, _steps
from tests.broker.core.test_sequences import PROFILE


def taken(counts: dict[int, int]) -> list[tuple[int, int]]:
    """(giver, taker) of each step, one by one."""
    counts, steps = dict(counts), []
    while max(counts.values()) - min(counts.values()) > 1:
        giver = min(counts, key=lambda bind_number: (-counts[bind_number], bind_number))
        taker = min(counts, key=lambda bind_number: (counts[bind_number], bind_number))
        steps.append((giver, taker))
        counts[giver] -= 1
        counts[taker] += 1
    return steps


@PROFILE
@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 12), min_size=1, max_size=8),
    st.sets(st.integers(0, 30)),
)
def test_steps_counted_are_steps_taken(counts: dict[int, int], able: set[int]) -> None:
    expected = taken(counts)
    takers = _Receivers(counts)
    counted = [
        (step, bind_number, takers.at(step))
        for step, bind_number in _steps(counts, able & counts.keys())
        if step < len(expected)
    ]
    assert counted == [
        (step, giver, taker) for step, (giver, taker) in enumerate(expected) if giver in able
    ]
