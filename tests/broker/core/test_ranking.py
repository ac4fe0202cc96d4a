"""A ranking compared with a plain dictionary that is searched each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.structures import Ranking
from tests.broker.core.test_sequences import PROFILE

SEATS = st.integers(0, 6)


@PROFILE
@given(st.lists(st.tuples(SEATS, st.integers(0, 4) | st.none()), max_size=80))
def test_it_always_knows_both_ends_and_the_earliest(changes: list[tuple[int, int | None]]) -> None:
    ranking, counts = Ranking(), dict[int, int]()
    for bind_number, count in changes:
        if count is not None:
            ranking.put(bind_number, count)
            counts[bind_number] = count
        elif bind_number in counts:
            ranking.remove(bind_number)
            del counts[bind_number]
        for known in (ranking, ranking.copy()):
            assert known.counts == counts
            if not counts:
                assert known.spread == 0
                continue
            low, high = min(counts.values()), max(counts.values())
            assert (known.low, known.high, known.spread) == (low, high, high - low)
            assert known.fewest() == min(s for s in counts if counts[s] == low)
            assert known.most() == min(s for s in counts if counts[s] == high)
            assert known.earliest() == min(counts)


def test_it_does_not_grow_with_the_number_of_changes() -> None:
    ranking = Ranking()
    for turn in range(10_000):
        ranking.put(1, turn % 2)
        ranking.put(2, turn % 3)
        ranking.remove(2)
    held = [getattr(ranking, name) for name in ("_bind_numbers", "_buckets", "_sizes", "counts")]
    buckets = held[1].values()
    assert sum(map(len, held)) + sum(map(len, buckets)) < 200
