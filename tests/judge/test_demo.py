"""The demo's own verdict and the judge agree on every promise that both check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from broker.demo import verdict
from broker.demo.evidence import Evidence
from broker.demo.work.sink import JournalEntry
from tests.demo.test_verdict import find, good_run
from tests.judge.demo import judged
from tests.judge.violation import DUPLICATE, LOST, ORDER, OWNERS

Plant = Callable[[list[JournalEntry]], None]


@pytest.fixture(scope="module")
def good() -> Evidence:
    return good_run()


def broken(evidence: Evidence) -> set[str]:
    return {kind for kind, found in judged(evidence).violations.items() if found}


def test_both_accept_a_good_demo(good: Evidence) -> None:
    assert verdict.judge(good).good
    assert judged(good).kept, judged(good).examples()


def skip(journal: list[JournalEntry]) -> None:
    del journal[find(journal, "alpha", 1)[5]]


def invent(journal: list[JournalEntry]) -> None:
    journal.append(journal[-1]._replace(flight="ghost", aircraft="N999", sequence=1))


def swap(journal: list[JournalEntry]) -> None:
    batch = find(journal, "alpha", 1)
    aircraft = journal[batch[5]].aircraft
    other = next(i for i in reversed(batch) if journal[i].aircraft == aircraft)
    journal[batch[5]], journal[other] = journal[other], journal[batch[5]]


def repeat_within_an_epoch(journal: list[JournalEntry]) -> None:
    index = find(journal, "beta", 1)[3]
    journal.insert(index + 1, journal[index])


def repeat_after_a_graceful_handoff(journal: list[JournalEntry]) -> None:
    taker = find(journal, "gamma", 1)
    given = next(e for e in reversed(journal[: taker[0]]) if e.partition == 1)
    journal.insert(taker[0], given._replace(application="gamma", batch=1, epoch=2))


def share_an_epoch(journal: list[JournalEntry]) -> None:
    index = find(journal, "alpha", 1)[3]
    journal[index] = journal[index]._replace(application="beta")


def write_on_as_a_zombie(journal: list[JournalEntry]) -> None:
    taken = [journal[index] for index in find(journal, "gamma", 1)]
    journal.extend(e._replace(application="alpha", batch=2, epoch=1) for e in taken)


def write_ahead_as_a_zombie(journal: list[JournalEntry]) -> None:
    taken = find(journal, "gamma", 1)
    late = [journal[i]._replace(application="alpha", batch=2, epoch=1) for i in taken]
    journal[taken[0] : taken[0]] = late


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (skip, LOST),
        (invent, LOST),
        (swap, ORDER),
        (repeat_within_an_epoch, DUPLICATE),
        (repeat_after_a_graceful_handoff, DUPLICATE),
        (share_an_epoch, OWNERS),
        (write_on_as_a_zombie, OWNERS),
        (write_ahead_as_a_zombie, DUPLICATE),
    ],
)
def test_both_find_a_planted_violation(good: Evidence, plant: Plant, kind: str) -> None:
    journal = list(good.journal)
    plant(journal)
    evidence = replace(good, journal=journal)
    assert not verdict.judge(evidence).good
    assert kind in broken(evidence)


def test_both_accept_repetitions_after_a_forced_handoff_alone(good: Evidence) -> None:
    """gamma repeats alpha's messages of partition 1."""
    journal = list(good.journal)
    taker = find(journal, "gamma", 1)
    given = [entry for entry in journal[: taker[0]] if entry.partition == 1]
    time = journal[taker[0]].time
    again = [e._replace(application="gamma", batch=1, epoch=2, time=time) for e in given]
    journal[taker[0] : taker[0]] = again
    grants = [
        replace(grant, outcome="forced") if (grant.partition, grant.epoch) == (1, 2) else grant
        for grant in good.grants
    ]
    for outcome, kept in (("graceful", False), ("forced", True)):
        chosen = grants if outcome == "forced" else good.grants
        evidence = replace(good, journal=journal, grants=chosen)
        assert verdict.judge(evidence).good is kept
        assert judged(evidence).kept is kept


def test_an_unprocessed_flight_is_lost_for_both(good: Evidence) -> None:
    """Also if the journal does not name the flight, and at the end of its partition."""
    last = good.journal[-1].flight
    journal = [entry for entry in good.journal if entry.flight != last]
    evidence = replace(good, journal=journal)
    assert not verdict.judge(evidence).good
    assert broken(evidence) == {LOST}


def test_each_judge_has_checks_that_the_other_lacks(good: Evidence) -> None:
    """The judge checks the order of all messages of a partition, the demo the order of each
    aircraft. Only the demo limits how much a kill may repeat, and checks statistics and backlog.
    """
    journal = list(good.journal)
    keyless = (index for index in count() if journal[index].aircraft is None)
    first = next(keyless)
    other = next(i for i in keyless if _together(journal, first, i))
    journal[first], journal[other] = journal[other], journal[first]
    swapped = replace(good, journal=journal)
    assert verdict.judge(swapped).good
    assert broken(swapped) == {ORDER}
    unknown = replace(good, statistics={})
    assert not verdict.judge(unknown).good
    assert judged(unknown).kept


def _together(journal: list[JournalEntry], one: int, other: int) -> bool:
    """Whether two entries belong to the same micro-batch and partition."""
    a, b = journal[one], journal[other]
    return (a.application, a.batch, a.partition) == (b.application, b.batch, b.partition)
