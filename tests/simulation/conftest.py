"""A run of many tests plays the seeds of `test_no_seed_breaks_a_promise` beside the others.

Most tests wait for something most of the time, and the seeds take what processor that leaves. They
are begun when the run begins; alone, or among few tests, that test plays them itself.
"""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Beside
from tests.simulation.test_simulation import SEEDS, test_no_seed_breaks_a_promise

MANY_TESTS = 1000
BESIDE = pytest.StashKey[Beside]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin, if the test is among many that are to be run."""
    wanted = any(
        getattr(item, "function", None) is test_no_seed_breaks_a_promise for item in session.items
    )
    if wanted and len(session.items) > MANY_TESTS and not session.config.option.collectonly:
        beside = session.config.stash[BESIDE] = Beside(0, SEEDS)
        session.config.add_cleanup(beside.stop)  # also of a run that is broken off


@pytest.fixture
def beside(request: pytest.FixtureRequest) -> Beside | None:
    """The seeds that are played beside this run, if they are."""
    return request.config.stash.get(BESIDE, None)
