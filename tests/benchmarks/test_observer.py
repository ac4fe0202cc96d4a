"""What follows from what consumers say and get, and the tables of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.coordinator import lines
from benchmarks.groups import VARIANTS, Growth, Joins, Step, Variant
from benchmarks.joins import Change
from benchmarks.observer import Delivery, Moves, Observer, least_moves, moves
from tests import kafka_server


def change(at: float, member: str, partition: int, *, gained: bool) -> Change:
    return Change(at, member, partition, gained)


def delivered(**of: list[tuple[float, str, int]]) -> Observer:
    """`p0=[(at, member, offset), …]`"""
    observer = Observer()
    for name, some in of.items():
        observer.deliveries[int(name[1:])] += [Delivery(*one) for one in some]
    return observer


def test_a_partition_that_another_has_is_not_lost_by_its_former_owner() -> None:
    observer = Observer()
    observer.changed("a", [0, 1], gained=True)
    observer.changed("b", [1], gained=True)
    observer.changed("a", [1], gained=False)
    assert observer.owned == {0: "a", 1: "b"}
    assert observer.balanced(2, 2)
    observer.left("b")
    assert observer.owned == {0: "a"}
    assert not observer.balanced(2, 2)


def test_what_a_former_owner_says_late_takes_nothing_from_the_present_one() -> None:
    observer = Observer()
    observer.changed("b", [0], gained=True, epoch=2)
    observer.changed("a", [0], gained=True, epoch=1)
    observer.changed("a", [0], gained=False, epoch=1)
    assert observer.owned == {0: "b"}
    observer.left("b")
    assert not observer.owned


def test_moves_are_told_from_what_is_taken_and_given_back() -> None:
    changes = [
        change(1, "a", 0, gained=True),
        change(1, "a", 1, gained=True),
        change(11, "a", 0, gained=False),
        change(11, "a", 1, gained=False),
        change(12, "a", 0, gained=True),
        change(14, "b", 1, gained=True),
        change(19, "b", 1, gained=False),
    ]
    found = moves(changes, 10, 20)
    assert (found.moved, found.given_back) == (1, 1)
    assert found.ownerless_seconds == 1 + 3 + 1  # the last one is without an owner still
    assert found.longest_seconds == 3
    assert moves(changes, 10, 13).ownerless_seconds == 1 + 2
    assert moves(changes, 13, 20).moved == 1


def test_what_comes_again_and_what_comes_late_is_counted_apart() -> None:
    observer = delivered(
        p0=[(1, "a", 0), (2, "a", 1), (3, "b", 1), (4, "b", 2)],
        p1=[(1, "a", 0), (2, "a", 2), (3, "b", 1)],
    )
    assert observer.repeated() == 1
    assert observer.repeated(3.5) == 0
    assert observer.out_of_order() == 1
    assert observer.arrived_offsets() == {0: {0, 1, 2}, 1: {0, 1, 2}}
    assert observer.receivers(2.5) == {0: "a", 1: "a"}
    assert observer.receivers(9) == {0: "b", 1: "b"}
    assert observer.first_to("b") == 3
    assert observer.first_to("c") is None


def test_a_pause_that_began_before_the_time_counts() -> None:
    observer = delivered(p0=[(at, "a", number) for number, at in enumerate([1, 2, 6, 7])])
    assert observer.pause(0, 5, 8) == 4
    assert observer.pause(0, 6.5, 8) == 1
    assert observer.all_delivering([0], 7)
    assert not observer.all_delivering([0, 1], 7)


@pytest.mark.parametrize(
    ("before", "members", "partitions", "least"),
    [
        ({"a": 64}, ["a", "b"], 64, 32),
        ({"a": 32, "b": 32}, ["b"], 64, 32),
        ({"a": 22, "b": 21, "c": 21}, ["a", "b", "c", "d"], 64, 16),
        ({"a": 2, "b": 2}, ["a", "b"], 10, 0),
        ({"a": 3, "b": 2, "c": 2}, ["a", "b"], 7, 2),
    ],
)
def test_the_fewest_moves_leave_each_with_as_many_as_the_others(
    before: dict[str, int], members: list[str], partitions: int, least: int
) -> None:
    assert least_moves(Counter(before), members, partitions) == least


def variant(name: str, short: bool) -> Variant:
    return next(one for one in VARIANTS if (one.name, one.short) == (name, short))


def joined(seconds: float) -> Joins:
    step = Step(seconds, 2.0, [0.1], [0.1], [0.1], Moves(1, 0, 0.0, 0.0), 1, 1, 0)
    return Joins(step, step, 0, 0)


@pytest.fixture
def _kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kafka_2.13-9.9.jar").touch()
    monkeypatch.setattr(kafka_server, "PROGRAM", tmp_path)


@pytest.mark.usefixtures("_kafka")
def test_joins_of_all_sizes_are_one_table_and_are_compared_within_a_size() -> None:
    ours, other = variant("counterpoise", True), variant("kip-848", True)
    page = "\n".join(
        lines(
            {
                ("joins", 1): {ours: [joined(2)], other: [joined(1)]},
                ("joins", 4): {ours: [joined(2)], other: [joined(3)]},
            }
        )
    )
    assert page.count("### ") == 2
    assert "| 1 → 2: counterpoise, short | **2,000** |" in page
    assert "| 4 → 5: counterpoise, short | 2,000 |" in page
    assert "| 5 → 4: kip-848, short | 3,000 |" in page


@pytest.mark.usefixtures("_kafka")
def test_the_tables_show_what_loses_to_a_variant_of_the_same_settings() -> None:
    def grown(seconds: float | None) -> Growth:
        return Growth(seconds, 2.0, [0.1], 0, 0)

    body = lines(
        {
            ("growth", 10): {
                variant("counterpoise", True): [grown(30), grown(50), grown(31)],
                variant("kip-848", True): [grown(5)],
                variant("range", False): [grown(1)],
                variant("share group", True): [grown(None)],
            }
        }
    )
    page = "\n".join(body)
    assert "Apache Kafka 9.9" in page
    assert "| counterpoise, short | 3 | **31,000** | 2,000 | 100 |" in page
    assert "| kip-848, short | 1 | 5,000 | 2,000 | 100 |" in page
    assert "| range, as shipped | 1 | 1,000 | 2,000 | 100 |" in page
    assert "| share group, short | 1 | – | 2,000 | 100 |" in page
    assert "None: old partitions moved, lost." in body
