"""The verdict on splits and merges: children after their parents, and with backlog."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.demo.evidence import EpochGrant, Evidence, SealingRecord
from broker.demo.verdict import Check, judge
from broker.demo.work.flights import expected_statistics
from broker.demo.work.sink import JournalEntry
from counterpoise.keys import hash_of
from tests.demo.sample import flights

FLIGHTS = flights(60)
IN_TURN = "no partition began before its parents were finished"


def entries(partition: int, owner: str, at: float, numbers: Sequence[int]) -> list[JournalEntry]:
    """Ten flights a second, processed by their number, each published when 20 less were done."""
    return [
        JournalEntry(
            flight=FLIGHTS[n].flight,
            aircraft=FLIGHTS[n].aircraft,
            sequence=FLIGHTS[n].sequence,
            partition=partition,
            position=n,
            epoch=1,
            application=owner,
            batch=n // 10,
            published_at=(n - 20) / 10,
            time=at + place / 10,
        )
        for place, n in enumerate(numbers)
    ]


@pytest.fixture
def good() -> Evidence:
    """Partition 0 is split after 20 flights are processed and 30 published."""
    children = range(30, 60)
    return Evidence(
        flights=FLIGHTS,
        journal=[
            *entries(0, "beta", 0.0, range(30)),
            *entries(1, "beta", 3.0, [n for n in children if _half(n) == 1]),
            *entries(2, "alpha", 4.0, [n for n in children if _half(n) == 2]),
        ],
        statistics=expected_statistics(FLIGHTS),
        grants=[EpochGrant(partition, 1, "initial", 0.0) for partition in range(3)],
        events=[],
        sealings=[SealingRecord("split", {0: 30}, (1, 2), 2.9)],
    )


def _half(number: int) -> int:
    return 1 + hash_of(FLIGHTS[number].aircraft or "") % 2


def broken(evidence: Evidence) -> dict[str, Check]:
    return {check.promise: check for check in judge(evidence).checks if not check.kept}


def test_a_good_split_says_what_waited_and_who_took_its_children(good: Evidence) -> None:
    verdict = judge(good)
    assert verdict.good, broken(good)
    assert [(one.partition, one.taker) for one in verdict.successions] == [
        (1, "beta"),
        (2, "alpha"),
    ]
    assert all(one.waited > 5 for one in verdict.successions)
    assert verdict.successions[0].pause_seconds == pytest.approx(0.1)


def test_a_child_before_its_parent_is_noticed(good: Evidence) -> None:
    journal = list(good.journal)
    journal.insert(29, journal.pop(30))
    assert "such as 1 before 0" in broken(replace(good, journal=journal))[IN_TURN].found


def test_a_parent_that_is_read_again_after_its_child_is_noticed(good: Evidence) -> None:
    journal = [*good.journal, good.journal[29]]
    assert {IN_TURN, "no duplicates from graceful handoffs"} <= broken(
        replace(good, journal=journal)
    ).keys()


def test_a_split_of_an_empty_partition_shows_nothing(good: Evidence) -> None:
    late = [one._replace(published_at=one.time) if one.partition else one for one in good.journal]
    check = broken(replace(good, journal=late))["the split of 0 met backlog"]
    assert check.found == "0 flights waited in 0"


def test_a_child_without_flights_shows_nothing(good: Evidence) -> None:
    sealings = [replace(good.sealings[0], children=(1, 2, 9))]
    check = broken(replace(good, sealings=sealings))["the split of 0 met backlog"]
    assert check.found.endswith("none were processed in 9")
