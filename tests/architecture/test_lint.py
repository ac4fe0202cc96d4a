"""Linter, formatter and type checker find nothing. `make lint` says the same, and sooner.

They run as tests because mypy takes a minute without its cache, on one of the processors.
"""

import subprocess
import sys

import pytest

from tests.architecture.test_repository import ROOT

# They wait for nothing: see `tests/simulation/test_simulation.py`.
pytestmark = pytest.mark.xdist_group("computing")

CHECKS = ("ruff check", "ruff format --check", "mypy")


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found(check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
