"""A campaign that has not tested everything says so."""

from __future__ import annotations

from tests.faults.result import COMPLETE_SECONDS, Done, Loss, Result
from tests.faults.stage import LEASE_SECONDS


def result(seconds: float = COMPLETE_SECONDS, **faults: int) -> Result:
    return Result(
        seconds,
        faults={name: Done(times) for name, times in faults.items()},
        lost_after=[Loss(LEASE_SECONDS, overloaded=False)],
    )


def test_a_complete_run_passes() -> None:
    assert result(killed=1, frozen=2).complaints() == []


def test_a_run_without_a_kill_does_not_pass() -> None:
    run = result()
    run.lost_after.clear()
    assert "no consumer was killed" in run.complaints()[0]


def test_a_late_end_of_a_lease_fails_unless_the_machine_was_overloaded() -> None:
    run = result()
    late = Loss(LEASE_SECONDS + 1.1, overloaded=False)
    run.lost_after.append(late)
    assert "for longer than its lease and a second" in run.complaints()[0]
    run.lost_after[-1] = late._replace(overloaded=True)
    assert run.complaints() == []
    assert "killed 2 times, 1 of these on an overloaded machine" in run.table()


def test_a_long_run_without_some_kind_of_fault_does_not_pass() -> None:
    assert result(killed=1, frozen=0).complaints() == ["did not occur: frozen"]
    assert result(60, killed=1, frozen=0).complaints() == []


def test_a_broken_promise_is_told() -> None:
    run = result()
    run.verdict.violations["lost"].append("a message")
    assert "PROMISES BROKEN\nlost: a message" in run.complaints()[0]


def test_what_was_played_is_what_is_not_missing() -> None:
    run = result(60, killed=1, frozen=0)
    assert (run.played, run.missing) == (["killed"], ["frozen"])
