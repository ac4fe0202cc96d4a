"""The model of the handoff holds its promises, and finds the bugs planted in it."""

from __future__ import annotations

import pytest

from tests.model.checker import BUGS, CASES, Case, check, missing

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

absent = missing()
if absent is not None:
    pytestmark.append(pytest.mark.skip(reason=f"not installed: {absent}"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_handoff_keeps_its_promises(case: Case) -> None:
    outcome = check(case)
    assert outcome.error is None
    assert outcome.states > 1000  # it went somewhere


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.bug)
def test_a_planted_bug_is_found(case: Case) -> None:
    assert check(case).error is not None
