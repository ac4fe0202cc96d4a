"""Turns of the balance that are counted instead of taken are the same turns."""

from hypothesis import given
from hypothesis import strategies as st

from broker.core.assignment import _Takers, _turns
from tests.core.test_sequences import PROFILE


def taken(counts: dict[int, int]) -> list[tuple[int, int]]:
    """(giver, taker) of each turn, one by one."""
    counts, turns = dict(counts), []
    while max(counts.values()) - min(counts.values()) > 1:
        giver = min(counts, key=lambda seat: (-counts[seat], seat))
        taker = min(counts, key=lambda seat: (counts[seat], seat))
        turns.append((giver, taker))
        counts[giver] -= 1
        counts[taker] += 1
    return turns


@PROFILE
@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 12), min_size=1, max_size=8),
    st.sets(st.integers(0, 30)),
)
def test_turns_counted_are_turns_taken(counts: dict[int, int], able: set[int]) -> None:
    expected = taken(counts)
    takers = _Takers(counts)
    counted = [
        (turn, seat, takers.at(turn))
        for turn, seat in _turns(counts, able & counts.keys())
        if turn < len(expected)
    ]
    assert counted == [
        (turn, giver, taker) for turn, (giver, taker) in enumerate(expected) if giver in able
    ]
