"""How pytest-xdist runs the tests with the options of the Makefile.

A group of tests runs in one process: some groups share a server, some need much of the machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

GROUPED = """
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_it(number, pytestconfig):
    pathlib.Path(str(pytestconfig.rootpath), f"{number}.pid").write_text(str(os.getpid()))
"""

CRASHING = """
import os, pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    if number == 3:
        os._exit(1)
"""


def run(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Runs these tests with two workers. Raises TimeoutExpired."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_them.py").write_text(tests)
    options = re.search(r"^pytest = .*\$\(WORKERS\) (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert options is not None
    # A separate run, not as part of this test's worker; it starts quickly without plugins.
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", *options[1].split()],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_a_group_of_tests_runs_in_one_process(tmp_path: Path) -> None:
    done = run(tmp_path, GROUPED)
    assert done.returncode == 0, done.stdout
    processes = [path.read_text() for path in tmp_path.glob("*.pid")]
    assert len(processes) == 8
    assert len(set(processes)) == 1


def test_a_worker_that_crashes_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, CRASHING)
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_them.py::test_it[3]'" in done.stdout
