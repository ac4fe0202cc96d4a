"""A run of many tests checks the cases of the model beside the others, at their leisure.

They take minutes of a processor, and most long tests wait for something much of the time. They are
begun when the run begins; alone, or among few tests, each test checks its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.beside import Beside
from tests.model.checker import Case, Outcome, check, missing
from tests.model.test_model import test_a_planted_bug_is_found, test_the_handoff_keeps_its_promises

MANY_TESTS = 100
BESIDE = pytest.StashKey[Beside]()
OF_CASES = (test_the_handoff_keeps_its_promises, test_a_planted_bug_is_found)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, if the cases are among many tests that are to be run."""
    cases: list[Case] = []
    for item in session.items:
        if isinstance(item, pytest.Function) and item.function in OF_CASES:
            case = item.callspec.params["case"]
            assert isinstance(case, Case)
            cases.append(case)
    many = len(session.items) - len(cases) > MANY_TESTS
    if cases and many and missing() is None and not session.config.option.collectonly:
        beside = session.config.stash[BESIDE] = Beside(cases)
        session.config.add_cleanup(beside.stop)  # also of a run that is broken off


@pytest.fixture
def checked(request: pytest.FixtureRequest) -> Callable[[Case], Outcome]:
    """What `check` says of a case."""
    beside = request.config.stash.get(BESIDE, None)
    return check if beside is None else beside.outcome
