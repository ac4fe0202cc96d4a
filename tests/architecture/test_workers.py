"""Tests that are a group run in one process: some share a server, some need much of the machine."""

import os
import subprocess
import sys
from pathlib import Path

GROUPED = """
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_it(number, pytestconfig):
    pathlib.Path(str(pytestconfig.rootpath), f"{number}.pid").write_text(str(os.getpid()))
"""


def test_a_group_of_tests_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    # A run of its own, not of the worker that this test runs in; without plugins it starts soon.
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    processes = [path.read_text() for path in tmp_path.glob("*.pid")]
    assert len(processes) == 8
    assert len(set(processes)) == 1
