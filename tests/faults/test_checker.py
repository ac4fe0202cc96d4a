"""The checker of the fault runs finds what it is there to find: one planted violation for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.faults.checker import LATE, REPEATED, UNSEEN, Stored, Verdict, check
from tests.faults.journal import (
    Acknowledged,
    Entry,
    Failed,
    Granted,
    Handled,
    Journal,
    entries,
)

LOG = {
    0: [Stored(n, f"k{n % 2}", f"p:{2 * n}") for n in range(6)],
    1: [Stored(n, f"m{n % 2}", f"p:{2 * n + 1}") for n in range(6)],
}


def did(consumer: str, epoch: int, positions: Sequence[int], how: str, partition: int = 0) -> list:
    """A consumer handles these positions of a partition under one epoch."""
    return [
        Handled(consumer, partition, epoch, n, LOG[partition][n].key, LOG[partition][n].value, how)
        for n in positions
    ]


def a_good_run() -> list[Entry]:
    """One handoff in order, one by force with a repetition, one owner who was late."""
    return [
        Acknowledged("p", 8),
        *did("a", 1, [0, 1, 2], "initial"),
        *did("b", 2, [3], "graceful"),
        *did("c", 3, [3, 4], "forced"),
        *did("b", 2, [4], "graceful"),
        *did("c", 3, [5], "forced"),
        *did("a", 1, range(6), "initial", partition=1),
        Acknowledged("p", 12),
    ]


def broken(verdict: Verdict) -> list[str]:
    return [promise for promise, found in verdict.violations.items() if found]


def test_a_good_run_is_good() -> None:
    verdict = check(LOG, a_good_run())
    assert verdict.kept, verdict.examples()
    assert (verdict.counts[REPEATED], verdict.counts[UNSEEN], verdict.counts[LATE]) == (2, 0, 1)
    assert ["handled", "14"] in [line.split() for line in verdict.table().splitlines()]


def without(index: int) -> Callable[[list[Entry]], list[Entry]]:
    return lambda run: run[:index] + run[index + 1 :]


def swapped(index: int) -> Callable[[list[Entry]], list[Entry]]:
    return lambda run: [*run[:index], run[index + 1], run[index], *run[index + 2 :]]


def then(*more: Entry) -> Callable[[list[Entry]], list[Entry]]:
    return lambda run: [*run, *more]


def told(how: str) -> Callable[[list[Entry]], list[Entry]]:
    """What was forced is said to have been this."""
    return lambda run: [
        entry._replace(handed_over=how)
        if isinstance(entry, Handled) and entry.handed_over == "forced"
        else entry
        for entry in run
    ]


PLANTED = [
    # (what was done to the good run, the promise that is broken by it)
    ("the last message of a partition is not handled", without(13), "lost"),
    ("a message in the middle is not handled", without(10), "lost"),
    ("more was acknowledged than is in the log", then(Acknowledged("p", 13)), "lost"),
    (
        "something is handled that is not in the log",
        then(Handled("a", 1, 1, 6, "m0", "p:99", "initial")),
        "lost",
    ),
    (
        "a message is handled with another's value",
        then(Handled("z", 1, 2, 5, "m1", "p:9", "forced")),
        "lost",
    ),
    ("two consumers under one epoch", then(*did("z", 3, [5], "forced")), "double ownership"),
    (
        "two consumers are granted one epoch",
        then(Granted("z", 0, 3, "forced")),
        "double ownership",
    ),
    ("an owner goes on after it let go in order", told("graceful"), "double ownership"),
    ("two messages change places", swapped(1), "out of order"),
    ("an epoch skips a message", without(2), "out of order"),
    ("a later owner begins too late", without(3), "out of order"),
    ("a repetition after a graceful handoff", told("graceful"), "duplicate"),
    ("a repetition after an initial grant", told("initial"), "duplicate"),
    ("a repetition within an epoch", then(*did("c", 3, [5], "forced")), "duplicate"),
    ("an earlier epoch's owner ended with an error", then(Failed("a", "FlowGone")), "failed"),
]


@pytest.mark.parametrize(
    ("plant", "promise"), [case[1:] for case in PLANTED], ids=[case[0] for case in PLANTED]
)
def test_a_planted_violation_is_found(
    plant: Callable[[list[Entry]], list[Entry]], promise: str
) -> None:
    verdict = check(LOG, plant(a_good_run()))
    assert promise in broken(verdict)
    assert promise in verdict.examples()


def test_the_log_itself_is_looked_at() -> None:
    """What a publisher sent twice, and what the log has in another order than it was sent."""
    twice = {2: [Stored(0, "k", "p:0"), Stored(1, "k", "p:0")]}
    assert "duplicate" in broken(check(twice, []))
    turned = {2: [Stored(0, "k", "p:1"), Stored(1, "k", "p:0")]}
    assert "out of order" in broken(check(turned, []))


def test_a_grant_that_nobody_saw_is_counted_as_a_cause() -> None:
    run: list[Entry] = [
        *did("a", 1, [0, 1], "initial"),
        *did("b", 3, [1, 2, 3, 4, 5], "graceful"),
        *did("a", 1, range(6), "initial", partition=1),
    ]
    verdict = check(LOG, run)
    assert verdict.kept
    assert (verdict.counts[REPEATED], verdict.counts[UNSEEN]) == (1, 1)
    # Once it is known to have been graceful, it is none.
    assert broken(check(LOG, [Granted("c", 0, 2, "graceful"), *run])) == ["duplicate"]


def test_the_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    run = [*a_good_run(), Granted("a", 1, 2, "forced"), Failed("a", "no\nmore")]
    first, second = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    for number, entry in enumerate(run):
        (first, second)[number % 2].write(entry)
    first.close()
    second.close()
    assert entries(tmp_path / "journal") == run
