"""A forked program is like a started one: its code, its streams, its signals."""

import os
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.forked import Forked
from tests.processes import find

pytestmark = pytest.mark.long


def test_a_program_has_its_own_surroundings(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ, input()); sys.exit(3)"
    )
    process = Forked(
        "program",
        ["an argument"],
        environment={"A": "b"},
        directory=tmp_path,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdin is not None
    process.stdin.write("a line\n")
    said, errors = process.communicate(timeout=60)
    assert said == f"{tmp_path} ['an argument'] environ({{'A': 'b'}}) a line\n", errors
    assert process.returncode == process.poll() == process.wait() == 3


def test_a_program_can_be_frozen_and_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('begun', flush=True); input()")
    with Forked("program", directory=tmp_path, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert find(process.pid) is None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
