"""What a join did, by the changes and the messages that its consumers noticed."""

from __future__ import annotations

import pytest

from benchmarks.joins import Change, Join, is_balanced, join_of, longest_gap, owners
from benchmarks.protocols import OURS, SIZES, shown


def gained(at: float, member: str, *partitions: int) -> list[Change]:
    return [Change(at, member, number, True) for number in partitions]


def lost(at: float, member: str, *partitions: int) -> list[Change]:
    return [Change(at, member, number, False) for number in partitions]


def test_the_last_change_of_a_partition_says_whose_it_is() -> None:
    changes = [*gained(1, "a", 0, 1), *lost(2, "a", 1), *gained(3, "b", 1)]
    assert owners(changes) == {0: "a", 1: "b"}
    assert owners([*changes, *lost(4, "a", 1)]) == {0: "a", 1: "b"}  # not its own any more


def test_a_group_is_balanced_when_all_partitions_are_owned_evenly() -> None:
    assert is_balanced({0: "a", 1: "b", 2: "b"}, 3, 2)
    assert not is_balanced({0: "a", 1: "b"}, 3, 2)
    assert not is_balanced({0: "b", 1: "b", 2: "b"}, 3, 2)
    assert not is_balanced({0: "a", 1: "b", 2: "b", 3: "b"}, 4, 2)


def test_a_gap_that_began_before_the_time_counts() -> None:
    assert longest_gap([1, 2, 6, 7], 5, 8) == 4
    assert longest_gap([1, 2, 6, 7], 6, 8) == 1
    assert longest_gap([1, 2], 1, 8) == 6  # it is still going on
    assert longest_gap([], 1, 8) == 0


ARRIVALS = [[9.0, 9.5, 10.0, 10.5, 11.0, 11.5]] * 4


def test_an_eager_join_revokes_what_stays() -> None:
    before = gained(1, "a", 0, 1, 2, 3)
    during = [*lost(10.1, "a", 0, 1, 2, 3), *gained(10.5, "a", 0, 1), *gained(10.6, "b", 2, 3)]
    found = join_of(before, during, ARRIVALS, 10, 12, 0.6)
    assert (found.moved, found.revoked) == (2, 2)
    assert found.seconds == pytest.approx(0.6)


def test_a_cooperative_join_revokes_what_moves() -> None:
    before = gained(1, "a", 0, 1, 2, 3)
    during = [*lost(10.1, "a", 2, 3), *gained(10.6, "b", 2, 3)]
    arrivals = [[9.0, 9.5, 10.0, 11.5], [9.0, 9.5, 10.0, 11.5], [], []]
    found = join_of(before, during, arrivals, 10, 12, 0.6)
    assert (found.moved, found.revoked) == (2, 0)
    assert (found.pause_seconds, found.usual_seconds) == (1.5, 0.5)


def test_protocols_are_compared_with_ours() -> None:
    quick, slow = Join(0.1, 32, 0, 0.05, 0.05), Join(0.4, 32, 32, 0.35, 0.05)
    figures = shown({size: {OURS: [quick] * 3, "range": [slow] * 3} for size in SIZES})
    [ours, theirs] = [one for one in figures if one.name.startswith("join") and "4 → 5" in one.name]
    assert (ours.column, ours.ratio) == (OURS, None)
    assert theirs.column.startswith("Kafka's range")
    assert theirs.ratio == pytest.approx(4)
    assert len(figures) == 10 * len(SIZES)
