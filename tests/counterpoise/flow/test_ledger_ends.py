"""Rule 5 of the ledger: a sealed partition ends with one call, and no child is lost.

The last test plays owners that die between any two steps against a naive service.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.flow.ledger import REFUSALS, Ledger
from counterpoise.flow.view import Owned
from counterpoise.logs import Successor
from counterpoise.wire import Child, ChildrenItem, CommitItem, ReleaseItem

AFTER = (Successor(1, "low", ("root",)), Successor(2, "high", ("root",)))
END = ChildrenItem(0, 1, "5", True, (Child("low", ("root",), 1), Child("high", ("root",), 2)))


def owned(epoch: int = 1, state: str = "owned", position: str | None = "0") -> dict[int, Owned]:
    return {0: Owned(0, epoch, state, position, "initial")}


def sealed(done: str | None = "5", **how: object) -> Ledger:
    """A ledger with partition 0, which is sealed at 5."""
    ledger = Ledger()
    ledger.follow(owned(**how))  # type: ignore[arg-type]
    ledger.ends_at(0, "0", "5", AFTER)
    if done is not None:
        ledger.done(0, 1, done)
    return ledger


def test_the_end_is_reported_when_all_before_it_is_done() -> None:
    ledger = sealed("4")
    assert ledger.due().ends == ()
    assert ledger.due().commits == (CommitItem(0, 1, "4"),)
    ledger.done(0, 1, "5")
    due = ledger.due()
    assert due.ends == (END,)
    assert (due.commits, due.releases) == ((), ()), "the report carries the position"
    assert ledger.due().ends == (END,), "the answer may be lost"
    ledger.answered(END, "ok")
    assert not ledger.due()
    assert ledger.held_open(0, 1) is None


def test_an_end_without_a_position_is_that_of_an_empty_partition() -> None:
    ledger = Ledger()
    ledger.follow(owned(position=None))
    ledger.ends_at(0, "5", "5", AFTER)
    assert ledger.due().ends == (END,)


def test_messages_in_flight_come_first() -> None:
    ledger = sealed()
    ledger.begin([0])
    assert not ledger.due().ends
    ledger.end([0])
    assert ledger.due().ends == (END,)


def test_a_child_with_another_parent_that_is_not_reported_is_tried_again() -> None:
    ledger = sealed()
    ledger.answered(END, "unknown_parent")
    assert ledger.due().ends == (END,)
    assert ledger.held_open(0, 1) is not None


@pytest.mark.parametrize("outcome", REFUSALS)
def test_an_end_that_the_service_refuses_stays_due_and_is_known(outcome: str) -> None:
    """Found from outside: the owner dropped the partition, and nobody saw why the rest waits."""
    ledger = sealed()
    ledger.answered(END, outcome)
    assert ledger.due().ends == (END,)
    assert ledger.refused() == {(0, 1): f"{outcome}: {REFUSALS[outcome]}"}
    ledger.answered(END, "ok")
    assert not ledger.due()
    assert not ledger.refused()


def test_a_retiring_partition_that_goes_on_is_reported_again() -> None:
    ledger = Ledger()
    ledger.follow(owned(state="retiring"))
    ledger.ends_at(0, "0", "5")
    ledger.done(0, 1, "5")
    item = ReleaseItem(0, 1, "5", finished=True)
    assert ledger.releases() == (item,)
    ledger.decide([item])
    ledger.answered(item, "not_ended")
    assert ledger.releases() == (item,)
    assert [*ledger.refused()] == [(0, 1)]


@pytest.mark.parametrize("outcome", ["stale_epoch", "not_owner", "no_such_partition"])
def test_a_refused_end_is_the_end_of_the_grant(outcome: str) -> None:
    ledger = sealed()
    ledger.answered(END, outcome)
    assert not ledger.due()


def test_a_revoked_partition_is_handed_over_at_its_end_and_its_next_owner_reports() -> None:
    ledger = sealed(state="revoking")
    assert ledger.due().ends == ()
    assert ledger.due().releases == (ReleaseItem(0, 1, "5"),), "not as finished"


def test_a_draining_flow_hands_over_too() -> None:
    due = sealed().due(parting=True)
    assert (due.ends, due.releases) == ((), (ReleaseItem(0, 1, "5"),))


def test_a_sealed_partition_is_never_released_as_finished() -> None:
    ledger = sealed(state="retiring")
    assert not any(item.finished for item in ledger.due(parting=True).releases)


class Service:
    """A partition and what comes after it, as the contract says it; `lost`: answers are lost."""

    def __init__(self) -> None:
        self.epoch, self.position, self.finished = 1, "0", False
        self.children: list[str] = []

    def view(self) -> dict[int, Owned]:
        return {} if self.finished else owned(self.epoch, position=self.position)

    def take(self, item: CommitItem | ChildrenItem) -> str:
        if self.finished:
            return "no_such_partition"
        if item.epoch != self.epoch:
            return "stale_epoch"
        assert item.position is not None
        assert int(item.position) >= int(self.position)
        self.position = item.position
        if isinstance(item, ChildrenItem):
            self.finished, self.children = True, [child.key for child in item.children]
        return "ok"


@given(st.lists(st.sampled_from(["read", "tell", "lose", "die", "look"]), max_size=40))
def test_whoever_dies_between_any_two_steps_no_child_is_lost(steps: list[str]) -> None:
    service = Service()

    def start() -> Ledger:
        service.epoch += 1
        ledger = Ledger()
        ledger.follow(service.view())
        return ledger

    ledger = start()
    for step in [*steps, "die", *["look", "read", "tell"] * 6]:
        grant = ledger.held(0)
        if step == "die":
            ledger = start()
        elif step == "look" and grant is not None:
            ledger.ends_at(0, "0", "5", AFTER)
        elif step == "read" and grant is not None and grant.open and not grant.at_end:
            # A log has no message past the end of a partition, whether it was looked at or not.
            ledger.done(0, grant.epoch, str(min(5, int(grant.done or 0) + 1)))
        elif step in ("tell", "lose"):
            due = ledger.due()
            items: list[CommitItem | ChildrenItem] = [*due.commits, *due.ends]
            for item in items:
                outcome = service.take(item)
                if step == "tell":
                    ledger.answered(item, outcome)
            ledger.follow(service.view())
        # What comes after it is known in the same step as its end.
        assert service.finished == (service.children == ["low", "high"])
        assert int(service.position) <= 5
    assert service.finished
