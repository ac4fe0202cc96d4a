"""The judge finds each planted violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from tests.judge.causes import Faults
from tests.judge.journal import (
    OVERLOADED,
    SERVICE,
    Acknowledged,
    Asked,
    Done,
    Entry,
    Failed,
    Fault,
    Granted,
    Handled,
    Journal,
    Line,
    Mended,
    Told,
    read,
)
from tests.judge.judge import LATE, REPEATED, UNSEEN, UNSEEN_MOST, Stored, Verdict, judge
from tests.judge.violation import FORGOTTEN, OWNERS, STALE

REACH_SECONDS = 100.0

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


def judged(log: dict[int, list[Stored]], run: Iterable[Entry], *, ordered: bool = False) -> Verdict:
    """The judge's verdict on a run that writes one entry every second."""
    lines = [Line(float(at), entry) for at, entry in enumerate(run)]
    return judge(lines, log, REACH_SECONDS, ordered=ordered)


def later(seconds: float) -> list[Entry]:
    """So many seconds without an interesting entry."""
    return [Acknowledged("p", 0)] * int(seconds)


def fault(target: str) -> list[Entry]:
    return [Fault(target, "frozen"), Mended(target, "frozen")]


def a_good_run(hit: str = "b") -> list[Entry]:
    """One graceful handoff, one fault, one forced handoff with a repetition, one late owner."""
    return [
        Acknowledged("p", 8),
        *did("a", 1, [0, 1, 2], "initial"),
        *did("b", 2, [3], "graceful"),
        *fault(hit),
        *did("c", 3, [3, 4], "forced"),
        *did("b", 2, [4], "graceful"),
        *did("c", 3, [5], "forced"),
        *did("a", 1, range(6), "initial", partition=1),
        Acknowledged("p", 12),
    ]


def broken(verdict: Verdict) -> list[str]:
    return [promise for promise, found in verdict.violations.items() if found]


def test_a_good_run_is_good() -> None:
    verdict = judged(LOG, a_good_run())
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
    """The forced handover is reported as this one."""
    return lambda run: [
        entry._replace(handed_over=how)
        if isinstance(entry, Handled) and entry.handed_over == "forced"
        else entry
        for entry in run
    ]


def without_faults(run: list[Entry]) -> list[Entry]:
    return [entry for entry in run if not isinstance(entry, Fault | Mended)]


PLANTED = [
    # (the change of the good run, the promise that it breaks)
    ("the last message of a partition is not handled", without(15), "lost"),
    ("a message in the middle is not handled", without(12), "lost"),
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
    ("the fault hit somebody else", lambda _: a_good_run("z"), "duplicate"),
    ("there was no fault", without_faults, "duplicate"),
    ("the owner who was late was not hit", without_faults, "double ownership"),
    ("an earlier epoch's owner ended with an error", then(Failed("a", "FlowGone")), "failed"),
]


@pytest.mark.parametrize(
    ("plant", "promise"), [case[1:] for case in PLANTED], ids=[case[0] for case in PLANTED]
)
def test_a_planted_violation_is_found(
    plant: Callable[[list[Entry]], list[Entry]], promise: str
) -> None:
    verdict = judged(LOG, plant(a_good_run()))
    assert promise in broken(verdict)
    assert promise in verdict.examples()


def test_the_log_itself_is_looked_at() -> None:
    """A publisher's message that is in the log twice, and two in the wrong order."""
    twice = {2: [Stored(0, "k", "p:0"), Stored(1, "k", "p:0")]}
    assert "duplicate" in broken(judged(twice, []))
    turned = {2: [Stored(0, "k", "p:1"), Stored(1, "k", "p:0")]}
    assert "out of order" in broken(judged(turned, []))


# Each key has moved: k from partition 0 to 2, m from 1 to 0, and its newer messages are there.
MOVED = {
    0: [Stored(0, "k", "p:0"), Stored(1, "k", "p:2"), Stored(2, "m", "p:5")],
    1: [Stored(0, "m", "p:1"), Stored(1, "m", "p:3")],
    2: [Stored(0, "k", "p:4"), Stored(1, "k", "p:6")],
}


def handled(*places: tuple[int, int], epoch: int = 1, who: str = "a") -> list[Entry]:
    """One consumer handles these messages (partition, position) of the log that has moved."""
    return [
        Handled(who, n, epoch, at, MOVED[n][at].key, MOVED[n][at].value, "initial")
        for n, at in places
    ]


def test_the_order_of_a_key_is_judged_between_partitions() -> None:
    """A partition may go on while others of no common key lag; none may overtake an older one."""
    good = [(0, 0), (1, 0), (0, 1), (2, 0), (2, 1), (1, 1), (0, 2)]
    verdict = judged(MOVED, handled(*good), ordered=True)
    assert verdict.kept, verdict.examples()
    assert verdict.counts["keys judged in several partitions"] == 2
    for earlier, later in (((2, 0), (0, 1)), ((0, 2), (1, 1))):
        bad = [place for place in good if place != earlier]
        bad.insert(bad.index(later), earlier)
        verdict = judged(MOVED, handled(*bad), ordered=True)
        assert broken(verdict) == ["out of order"]
        assert "an older one of the key" in verdict.examples()
        # Without ordered resizes that may happen.
        verdict = judged(MOVED, handled(*bad))
        assert verdict.kept, verdict.examples()
        assert verdict.counts["keys judged in several partitions"] == 0


def test_no_fault_excuses_a_newer_message_before_an_older_one() -> None:
    """What comes again after a fault is no disorder; what comes first is one."""
    again = [
        *handled((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)),
        Fault("a", "killed"),
        *handled((0, 1), (0, 2), epoch=2, who="b"),
        *handled((2, 0), (2, 1), epoch=2, who="b"),
    ]
    again = [
        one._replace(handed_over="forced") if isinstance(one, Handled) and one.epoch == 2 else one
        for one in again
    ]
    assert judged(MOVED, again, ordered=True).kept
    first = [one for one in again if one not in handled((0, 1))]
    assert broken(judged(MOVED, first, ordered=True)) == ["out of order"]


def test_a_run_without_a_handled_message_fails() -> None:
    assert broken(judged({}, [])) == ["lost"]
    assert broken(judged({0: []}, [Granted("a", 0, 1, "initial")])) == ["lost"]


@pytest.mark.parametrize("way", ["forced", "orphaned", "replaced"])
def test_an_ungraceful_handover_needs_a_fault_as_its_cause(way: str) -> None:
    """A graceful handoff with the wrong name, after which two messages are repeated."""

    def run(*before: Entry) -> list[Entry]:
        return [
            *did("p1-1", 1, [0, 1, 2], "initial"),
            *before,
            *did("q-1", 2, range(1, 6), way),
            *did("q-2", 1, range(6), "initial", partition=1),
        ]

    assert broken(judged(LOG, run())) == ["duplicate"]
    # A fault of another consumer, or too long before.
    for target in ("q", "p", "p1-2", "p1-11", "p1-1-1"):
        assert broken(judged(LOG, run(*fault(target)))) == ["duplicate"]
    assert broken(judged(LOG, run(*fault("p1"), *later(REACH_SECONDS + 1)))) == ["duplicate"]
    # A fault of the previous owner, of its process, of all; over just now, or not at all.
    for target in ("p1-1", "p1", SERVICE):
        assert judged(LOG, run(*fault(target))).kept
        assert judged(LOG, run(*fault(target), *later(REACH_SECONDS - 1))).kept
        assert judged(LOG, run(Fault(target, "killed"), *later(REACH_SECONDS + 1))).kept


def test_a_consumer_told_late_of_a_grant_was_granted_it_earlier() -> None:
    """The previous owner was hit. Then the next one was hit for long, after its grant."""
    run: list[Entry] = [
        *did("a", 1, [0, 1, 2], "initial"),
        *fault("a"),
        *later(REACH_SECONDS / 2),
        Fault("b", "frozen"),
        *later(2 * REACH_SECONDS),
        Mended("b", "frozen"),
        *did("b", 2, range(2, 6), "orphaned"),
        *did("c", 1, range(6), "initial", partition=1),
    ]
    verdict = judged(LOG, run)
    assert verdict.kept, verdict.examples()
    unhit = [entry for entry in run if not (isinstance(entry, Fault | Mended) and "a" in entry)]
    assert broken(judged(LOG, unhit)) == ["duplicate"]


def test_a_superseded_owner_continues_only_if_a_fault_hid_it() -> None:
    """A fault of the process hid it. What the owner does long after that fault is a violation."""
    assert judged(LOG, a_good_run()).kept
    late = [*a_good_run(), *later(REACH_SECONDS + 1), *did("b", 2, [5], "graceful")]
    assert "double ownership" in broken(judged(LOG, late))


def test_epochs_do_not_fall() -> None:
    def run(*before: Entry) -> list[Entry]:
        return [
            *did("a", 5, [0, 1, 2], "initial"),
            *before,
            *(Granted("b", 0, 3, "orphaned"), *did("b", 3, [2], "orphaned")),
            *did("a", 5, [3, 4, 5], "initial"),
            *did("a", 1, range(6), "initial", partition=1),
        ]

    assert "double ownership" in broken(judged(LOG, run()))
    assert "double ownership" in broken(judged(LOG, run(*fault("a"))))
    # That holds even if no message was handled.
    told = [*a_good_run(), *later(REACH_SECONDS), Granted("d", 0, 2, "graceful")]
    assert "double ownership" in broken(judged(LOG, told))
    assert "double ownership" in broken(judged(LOG, [*a_good_run(), Granted("d", 1, 0, "forced")]))


def test_an_unseen_grant_excuses_a_little_near_a_fault() -> None:
    def run(*before: Entry) -> list[Entry]:
        return [
            *did("a", 1, [0, 1], "initial"),
            *before,
            *did("b", 3, range(1, 6), "graceful"),
            *did("a", 1, range(6), "initial", partition=1),
        ]

    verdict = judged(LOG, run(*fault("z")))
    assert verdict.kept, verdict.examples()
    assert (verdict.counts[REPEATED], verdict.counts[UNSEEN]) == (1, 1)
    # Without a fault it excuses nothing.
    assert broken(judged(LOG, run())) == ["duplicate"]
    # Once the grant is known to be graceful, a fault excuses nothing either.
    seen = run(*fault("z"), Granted("c", 0, 2, "graceful"))
    assert broken(judged(LOG, seen)) == ["duplicate"]


def test_unseen_grants_excuse_no_more_than_the_limit() -> None:
    """The limit is for the whole run; here one message of each partition is repeated."""

    def verdict(partitions: int) -> Verdict:
        log = {n: [Stored(0, f"k{n}", f"p:{n}")] for n in range(partitions)}
        run = [
            Handled("ab"[epoch // 2], n, epoch, 0, f"k{n}", f"p:{n}", "graceful")
            for epoch in (1, 3)
            for n in range(partitions)
        ]
        return judged(log, [*run[:partitions], *fault("z"), *run[partitions:]])

    assert verdict(UNSEEN_MOST).kept
    assert broken(verdict(UNSEEN_MOST + 1)) == ["duplicate"]


def test_the_time_that_is_excused_is_counted() -> None:
    lines = [
        Line(10.0, OVERLOADED),
        Line(12.0, Fault(SERVICE, "network")),
        Line(13.0, Mended(*OVERLOADED)),
        Line(16.0, Mended(SERVICE, "network")),
        Line(40.0, Fault("a", "frozen")),
        Line(50.0, Fault(SERVICE, "network")),
    ]
    faults = Faults(lines, reach_seconds=5.0)
    assert faults.seconds(0.0, 60.0) == (21.0 - 10.0) + (60.0 - 50.0)
    assert faults.seconds(0.0, 60.0, OVERLOADED.kind) == 3.0


def test_the_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    run = [*a_good_run(), Granted("a", 1, 2, "forced"), Failed("a", "no\nmore")]
    first, second = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    for number, entry in enumerate(run):
        (first, second)[number % 2].write(entry)
    first.close()
    second.close()
    lines = read(tmp_path / "journal")
    assert [line.entry for line in lines] == run
    assert [line.at for line in lines] == sorted(line.at for line in lines)


def test_an_entry_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for entry in a_good_run():
        Journal(path).write(entry)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert [line.entry for line in read(path)] == a_good_run()[: whole[:length].count(b"\n")]


# The calls of consumers over HTTP, and their answers.


def asked_and_told(*entries: Entry) -> list[str]:
    lines = [Line(float(at), entry) for at, entry in enumerate(entries)]
    return broken(judge(lines, None, REACH_SECONDS))


COMMITTED = (Asked(1), Told(1, "f1", 0, 1, "owned", 0), Done(1, "commit", 0, 1, 5, "ok"))


def test_answers_that_reflect_acknowledged_calls_are_accepted() -> None:
    released = (Asked(3), Told(3, "f2", 0, 2, "owned", 5), Done(2, "release", 0, 1, 5, "ok"))
    assert asked_and_told(*COMMITTED, Asked(2), Told(2, "f1", 0, 1, "owned", 5), *released) == []
    # A successor that warms up sees the owner's epoch.
    assert asked_and_told(*COMMITTED, Asked(2), Told(2, "f2", 0, 1, "warming", 5)) == []


def test_an_answer_need_not_reflect_later_acknowledgements() -> None:
    assert asked_and_told(Asked(2), *COMMITTED, Told(2, "f1", 0, 1, "owned", 0)) == []
    late = (Told(3, "f2", 0, 2, "owned", 5), Done(2, "commit", 0, 1, 6, "ok"))
    assert asked_and_told(*COMMITTED, Asked(2), Asked(3), *late) == []


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (Told(2, "f1", 0, 1, "owned", 4), FORGOTTEN),
        (Told(2, "f2", 0, 1, "owned", 5), OWNERS),
        (Told(2, "f1", 0, 0, "owned", 5), OWNERS),
    ],
    ids=["a position is forgotten", "two owners of an epoch", "an epoch falls"],
)
def test_an_answer_that_contradicts_an_earlier_one_is_found(then: Entry, kind: str) -> None:
    assert asked_and_told(*COMMITTED, Asked(2), then) == [kind]


def test_a_commit_under_a_stale_epoch_is_found() -> None:
    told = Told(2, "f2", 0, 2, "owned", 5)
    stale = (Asked(3), Done(3, "commit", 0, 1, 6, "ok"))
    assert asked_and_told(*COMMITTED, Asked(2), told, *stale) == [STALE]
    # The stale commit may be refused, and the release that ended an epoch may be repeated.
    refused = (Asked(3), Done(3, "commit", 0, 1, 6, "stale_epoch"))
    assert asked_and_told(*COMMITTED, Asked(2), told, *refused) == []
    repeated = (Asked(3), Done(3, "release", 0, 1, 5, "ok"))
    assert asked_and_told(*COMMITTED, Asked(2), told, *repeated) == []
