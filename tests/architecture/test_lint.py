"""Linter, formatter and type checker find nothing. `make lint` says the same, and sooner.

Without its cache mypy takes a minute of one of the processors, half of it for the tests. So the
short tests check the types of the packages, and the long ones those of everything.
"""

import subprocess
import sys

import pytest

from tests.architecture.test_repository import ROOT

CHECKS = (
    pytest.param("ruff check"),
    pytest.param("ruff format --check"),
    pytest.param("mypy broker api counterpoise migrations"),
    pytest.param("mypy", marks=pytest.mark.long),
)

# They wait for nothing: see `tests/simulation/test_simulation.py`.
pytestmark = pytest.mark.xdist_group("computing")


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found(check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
