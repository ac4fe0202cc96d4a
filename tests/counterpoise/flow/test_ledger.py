"""The ledger equals, at each step, a naive model that stores the whole history and nothing else.

The model records all events in order, and answers each question by reading the whole list again.
Its service grants, revokes, retires, takes back and refuses, and answers may be lost. Besides
equality, the rules of the ledger's docstring are checked as written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from counterpoise.flow.ledger import Ledger, continues
from counterpoise.flow.view import GrantId, Owned
from counterpoise.wire import CommitItem, Pause, ReleaseItem
from tests.budgets import budget

PARTITIONS = range(3)
PAUSE = Pause(datetime(2026, 11, 20, tzinfo=UTC), None, None)
HOW = ("initial", "graceful", "forced", "replaced")

# ---------------------------------------------------------------------- case by case


def owned(
    epoch: int = 1, state: str = "owned", position: str | None = "0", how: str = "initial"
) -> dict[int, Owned]:
    return {0: Owned(0, epoch, state, position, how)}


def following(*views: dict[int, Owned]) -> Ledger:
    ledger = Ledger()
    for view in views:
        ledger.follow(view)
    return ledger


def test_done_positions_are_committed_until_confirmed() -> None:
    ledger = following(owned())
    assert not ledger.due()
    ledger.done(0, 1, "5")
    (item,) = ledger.due().commits
    assert item == CommitItem(0, 1, "5")
    assert ledger.due().commits == (item,), "the answer may be lost"
    ledger.answered(item, "ok")
    assert not ledger.due()
    assert ledger.commits(everything=True) == (item,)


def test_a_view_that_names_the_position_confirms_it_too() -> None:
    ledger = following(owned())
    ledger.done(0, 1, "5")
    ledger.follow(owned(position="5"))
    assert not ledger.due()


def test_a_revoked_partition_is_released_once_nothing_of_it_is_in_flight() -> None:
    ledger = following(owned())
    ledger.begin([0])
    (stopped,) = ledger.follow(owned(state="revoking")).stopped
    assert not stopped.open
    assert not ledger.due()
    ledger.done(0, 1, "3")
    assert ledger.due().commits == (CommitItem(0, 1, "3"),)
    ledger.end([0])
    assert ledger.due().releases == (ReleaseItem(0, 1, "3"),)
    assert not ledger.due().commits, "the release carries the position"


def test_work_begun_under_an_earlier_epoch_holds_up_the_release() -> None:
    ledger = following(owned())
    ledger.begin([0])
    ledger.follow(owned(epoch=2, state="revoking"))
    assert not ledger.due().releases
    ledger.end([0])
    assert ledger.due().releases == (ReleaseItem(0, 2, "0"),)


def test_a_release_that_was_decided_is_due_until_it_is_answered() -> None:
    ledger = following(owned(state="retiring"))
    ledger.ends_at(0, "0", "0")
    (item,) = ledger.due().releases
    assert item.finished
    ledger.decide([item])
    assert ledger.held_open(0, 1) is None
    ledger.follow(owned())
    assert ledger.held_open(0, 1) is None, "the service may have taken the release before"
    (again,) = ledger.due().releases
    ledger.answered(again, "not_revoking")
    assert ledger.held_open(0, 1) is not None
    assert not ledger.due()


def test_an_end_counts_only_while_it_is_final() -> None:
    ledger = following(owned(state="retiring"))
    ledger.ends_at(0, "0", None)
    assert not ledger.due()
    ledger.ends_at(0, "0", "0")
    assert ledger.due().releases
    ledger.follow(owned())
    ledger.follow(owned(state="retiring"))
    assert not ledger.due(), "it was taken back, and more may have been appended"


@pytest.mark.parametrize("outcome", ["stale_epoch", "not_owner", "no_such_partition"])
def test_a_refused_grant_is_over_though_the_view_still_has_it(outcome: str) -> None:
    ledger = following(owned())
    ledger.done(0, 1, "5")
    grant = ledger.answered(CommitItem(0, 1, "5"), outcome)
    assert grant is not None
    assert grant.over
    ledger.follow(owned(position="1"))
    assert ledger.held_open(0, 1) is None
    assert not ledger.due(parting=True)
    assert not ledger.commits(everything=True)


@pytest.mark.parametrize(
    ("under", "now", "how", "counts"),
    [
        (3, 3, "graceful", True),
        (3, 4, "replaced", True),
        (3, 4, "graceful", False),
        (3, 4, "forced", False),  # an administrator's positions look like this
        (3, 4, "orphaned", False),
        (3, 5, "replaced", False),  # another consumer may have owned it in between
        (3, 2, "replaced", False),
    ],
)
def test_work_under_an_earlier_epoch_counts_only_without_another_owner_between(
    under: int, now: int, how: str, counts: bool
) -> None:
    view = owned(now, position="2", how=how)
    assert continues(under, view[0]) is counts
    ledger = following(view)
    ledger.done(0, under, "9")
    assert ledger.due().commits == ((CommitItem(0, now, "9"),) if counts else ())


def test_the_start_is_looked_up_for_a_grant_without_a_position_only() -> None:
    ledger = following(owned(position=None))
    assert ledger.starts_at(0, 1, "7")
    assert ledger.due().commits == (CommitItem(0, 1, "7"),)
    assert not ledger.starts_at(0, 1, "8")
    assert not following(owned(position="0")).starts_at(0, 1, "7")


def test_a_position_that_the_view_names_later_is_where_a_grant_without_one_goes_on() -> None:
    ledger = following(owned(position=None), owned(position="4"))
    assert ledger.releases(parting=True) == (ReleaseItem(0, 1, "4"),)
    assert not ledger.due()


def test_an_empty_retiring_partition_without_a_position_is_finished() -> None:
    ledger = following(owned(position=None, state="retiring"))
    ledger.ends_at(0, "7", "8")
    assert not ledger.due()
    ledger.ends_at(0, "7", "7")
    assert ledger.due().releases == (ReleaseItem(0, 1, None, finished=True),)


def test_a_draining_flow_parts_from_all_that_is_not_in_flight() -> None:
    ledger = following({n: Owned(n, 1, "owned", "0", "initial") for n in (0, 1)})
    ledger.begin([1])
    ledger.done(0, 1, "4")
    ledger.done(1, 1, "6")
    due = ledger.due(parting=True)
    assert due.releases == (ReleaseItem(0, 1, "4"),)
    assert due.commits == (CommitItem(1, 1, "6"),)


# ---------------------------------------------------------------------- against the naive model


@dataclass(frozen=True)
class Viewed:
    """The flow was told that it owns this partition."""

    view: dict[int, Owned]


@dataclass(frozen=True)
class Did:
    """Work under this grant is done up to here, or the log has named its start."""

    key: GrantId
    position: str


@dataclass(frozen=True)
class Bounded:
    """The log said where the partition starts and finally ends (None: it may grow)."""

    partition: int
    start: str
    end: str | None


@dataclass(frozen=True)
class Decided:
    """This release was sent."""

    key: GrantId


@dataclass(frozen=True)
class Answered:
    """The service answered."""

    item: CommitItem | ReleaseItem
    outcome: str

    @property
    def key(self) -> GrantId:
        return self.item.partition, self.item.epoch


@dataclass
class History:
    """All events. Nothing else is stored."""

    events: list[Viewed | Did | Bounded | Decided | Answered] = field(default_factory=list)

    @property
    def view(self) -> dict[int, Owned]:
        views = [one.view for one in self.events if isinstance(one, Viewed)]
        return views[-1] if views else {}

    def since_grant(self, key: GrantId) -> list[Viewed | Did | Bounded | Decided | Answered]:
        """The events since the view that brought the grant."""
        number, epoch = key
        for at, one in enumerate(self.events):
            if isinstance(one, Viewed) and number in one.view and one.view[number].epoch == epoch:
                return self.events[at:]
        return []

    def done(self, key: GrantId) -> str | None:
        number, _ = key
        position = None
        for one in self.since_grant(key):
            if isinstance(one, Did) and one.key[0] == number:
                if continues(one.key[1], self.view[number]):
                    position = one.position
            elif isinstance(one, Viewed) and position is None:
                position = one.view[number].position
        return position

    def answers(self, key: GrantId) -> list[Answered]:
        return [one for one in self.events if isinstance(one, Answered) and one.key == key]

    def over(self, key: GrantId) -> bool:
        return any(
            one.outcome not in ("ok", "not_revoking")
            or (one.outcome == "ok" and isinstance(one.item, ReleaseItem))
            for one in self.answers(key)
        )

    def releasing(self, key: GrantId) -> bool:
        decided = False
        for one in self.events:
            if isinstance(one, Decided) and one.key == key:
                decided = True
            elif isinstance(one, Answered) and one.key == key and one.outcome == "not_revoking":
                decided = False
        return decided

    def committed(self, key: GrantId) -> str | None:
        taken = [
            one.item.position
            for one in self.answers(key)
            if isinstance(one.item, CommitItem) and one.outcome == "ok"
        ]
        return taken[-1] if taken else self.view[key[0]].position

    def finished(self, key: GrantId) -> bool:
        number, _ = key
        if self.view[number].state != "retiring":
            return False
        final: Bounded | None = None
        state = "owned"
        for one in self.since_grant(key):
            if isinstance(one, Bounded) and one.partition == number:
                final = one
            elif isinstance(one, Viewed):
                if state == "retiring" and one.view[number].state != "retiring":
                    final = None
                state = one.view[number].state
        if final is None or final.end is None:
            return False
        done = self.done(key)
        return (final.start if done is None else done) == final.end

    def releases(self, in_flight: set[int], parting: bool) -> list[ReleaseItem]:
        return [
            ReleaseItem(number, held.epoch, self.done(key), self.finished(key))
            for number, held in sorted(self.view.items())
            for key in [(number, held.epoch)]
            if number not in in_flight and not self.over(key)
            if parting or held.state == "revoking" or self.releasing(key) or self.finished(key)
        ]

    def commits(self, everything: bool) -> list[CommitItem]:
        return [
            CommitItem(number, held.epoch, position)
            for number, held in sorted(self.view.items())
            for key in [(number, held.epoch)]
            for position in [self.done(key)]
            if position is not None and not self.over(key) and not self.releasing(key)
            if everything or position != self.committed(key)
        ]


class AgainstHistory(RuleBasedStateMachine):
    """After any events, the ledger says what the history says."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.history = History()
        self.in_flight: set[int] = set()
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.show({})

    def show(self, changed: dict[int, Owned | None]) -> None:
        view = {**self.history.view, **changed}
        held = {number: one for number, one in view.items() if one is not None}
        self.history.events.append(Viewed(held))
        self.ledger.follow(held)

    @rule(
        number=st.sampled_from(PARTITIONS),
        skipped=st.integers(1, 2),
        how=st.sampled_from(HOW),
        position=st.sampled_from([None, "0", "1"]),
        state=st.sampled_from(["owned", "owned", "revoking"]),
    )
    def grant(self, number: int, skipped: int, how: str, position: str | None, state: str) -> None:
        """Granted, or granted again, with or without other owners in between."""
        self.epochs[number] += skipped
        self.show({number: Owned(number, self.epochs[number], state, position, how)})

    @rule(number=st.sampled_from(PARTITIONS))
    def lose(self, number: int) -> None:
        self.show({number: None})

    @rule(
        number=st.sampled_from(PARTITIONS),
        state=st.sampled_from(["owned", "revoking", "retiring", "retiring"]),
    )
    def change(self, number: int, state: str) -> None:
        """Revoked, retired, or taken back; a revoke is never taken back."""
        held = self.history.view.get(number)
        if held is not None and held.state != "revoking":
            self.show({number: replace(held, state=state)})

    @rule(number=st.sampled_from(PARTITIONS), paused=st.booleans())
    def pause(self, number: int, paused: bool) -> None:
        """Paused or resumed. What is told to the service is the same with a pause and without."""
        held = self.history.view.get(number)
        if held is not None:
            self.show({number: replace(held, paused=PAUSE if paused else None)})

    @rule(number=st.sampled_from(PARTITIONS), position=st.integers(0, 4))
    def confirm(self, number: int, position: int) -> None:
        """A view names another position, for example that of a commit whose answer was lost."""
        held = self.history.view.get(number)
        if held is not None:
            self.show({number: replace(held, position=str(position))})

    @rule(number=st.sampled_from(PARTITIONS), final=st.booleans(), end=st.integers(0, 3))
    def bound(self, number: int, final: bool, end: int) -> None:
        self.history.events.append(Bounded(number, "0", str(end) if final else None))
        self.ledger.ends_at(number, "0", str(end) if final else None)

    @rule(number=st.sampled_from(PARTITIONS))
    def begin(self, number: int) -> None:
        held = self.history.view.get(number)
        grant = None if held is None else self.ledger.held_open(number, held.epoch)
        if grant is None or number in self.in_flight:
            return
        assert held is not None
        assert held.paused is None
        # Rules 2 and 3: no message of a grant is handed out that is revoked, released or over.
        assert held.state != "revoking"
        assert not self.history.releasing(grant.id)
        assert not self.history.over(grant.id)
        self.in_flight.add(number)
        self.ledger.begin([number])

    @rule(number=st.sampled_from(PARTITIONS), back=st.integers(0, 2), position=st.integers(0, 4))
    def done(self, number: int, back: int, position: int) -> None:
        """Work that was begun under this epoch or an earlier one ends."""
        key = (number, self.epochs[number] - back)
        self.history.events.append(Did(key, str(position)))
        self.ledger.done(*key, str(position))

    @rule(number=st.sampled_from(PARTITIONS))
    def end(self, number: int) -> None:
        self.in_flight.discard(number)
        self.ledger.end([number])

    @rule()
    def end_all(self) -> None:
        self.in_flight.clear()
        self.ledger.end()

    @rule(number=st.sampled_from(PARTITIONS), position=st.integers(0, 4))
    def start(self, number: int, position: int) -> None:
        held = self.history.view.get(number)
        if held is not None and self.ledger.starts_at(number, held.epoch, str(position)):
            key = (number, held.epoch)
            assert self.history.done(key) is None
            self.history.events.append(Did(key, str(position)))

    @rule(
        outcome=st.sampled_from(["ok", "ok", "not_revoking", "stale_epoch", "lost"]),
        parting=st.booleans(),
    )
    def tell(self, outcome: str, parting: bool) -> None:
        """Send the due calls; each has the usual answer, or its answer is lost."""
        due = self.ledger.due(parting=parting)
        self.ledger.decide(due.releases)
        self.history.events += [Decided((one.partition, one.epoch)) for one in due.releases]
        items: list[CommitItem | ReleaseItem] = [*due.releases, *due.commits]
        for item in items:
            if outcome == "lost" or (outcome == "not_revoking" and isinstance(item, CommitItem)):
                continue
            self.history.events.append(Answered(item, outcome))
            self.ledger.answered(item, outcome)

    @rule(number=st.sampled_from(PARTITIONS), back=st.integers(1, 2))
    def late_answer(self, number: int, back: int) -> None:
        """The answer to a call under an earlier epoch changes nothing."""
        before = self.ledger.due()
        late = CommitItem(number, self.epochs[number] - back, "9")
        assert self.ledger.answered(late, "stale_epoch") is None
        assert self.ledger.due() == before

    @invariant()
    def says_what_the_history_says(self) -> None:
        for parting in (False, True):
            expected = self.history.releases(self.in_flight, parting)
            assert list(self.ledger.releases(parting=parting)) == expected
        for everything in (False, True):
            assert list(self.ledger.commits(everything=everything)) == self.history.commits(
                everything
            )
        assert self.ledger.in_flight == self.in_flight
        released = {item.partition for item in self.ledger.due().releases}
        assert released.isdisjoint(item.partition for item in self.ledger.due().commits)


AgainstHistory.TestCase.settings = settings(
    max_examples=budget(150), stateful_step_count=40, deadline=None
)
TestAgainstHistory = AgainstHistory.TestCase
