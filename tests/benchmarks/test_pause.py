"""How long partitions pause between two Spark queries, by their micro-batches."""

from __future__ import annotations

import pytest

from benchmarks.pause import Batch, Round, pauses_of


def batch(at: float, **positions: tuple[int, int]) -> Batch:
    ranges = {int(name[1:]): both for name, both in positions.items()}
    first, last = ({n: both[k] for n, both in ranges.items()} for k in (0, 1))
    return Batch(int(at * 10), at, first, last)


OLD = [batch(1.0, p0=(1, 4), p1=(1, 2)), batch(2.0, p0=(5, 8), p1=(3, 6)), batch(3.0, p0=(9, 12))]


def test_a_pause_runs_from_the_last_message_of_one_to_the_first_of_the_other() -> None:
    new = [batch(3.5, p1=(7, 9)), batch(4.0, p1=(10, 12))]
    assert pauses_of(OLD, new, 2.5) == {1: 1.5}


def test_partitions_that_were_handed_over_before_do_not_count() -> None:
    assert pauses_of(OLD, [batch(3.5, p1=(7, 9))], 3.6) == {}


@pytest.mark.parametrize("first", [6, 8])
def test_a_message_that_comes_twice_or_never_is_an_error(first: int) -> None:
    with pytest.raises(ValueError, match=f"partition 1 went on at {first} after 6"):
        pauses_of(OLD, [batch(3.5, p1=(first, 9))], 2.5)


def test_the_unit_is_the_median_micro_batch_of_the_round() -> None:
    assert Round([1.5, 0.5], [0.4, 0.5, 2.0]).ratios == [3.0, 1.0]
