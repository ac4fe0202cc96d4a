"""A launcher stands for its fork: they end together, and the fork counts as its child."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counterpoise.spark.jobs import pythons
from tests.counterpoise.spark.waiting import until
from tests.processes import descendants, find

SLEEPS = ["-m", "timeit", "-n1", "-r1", "import time; time.sleep(600)"]


@contextlib.contextmanager
def sleeping(python: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A launcher, and the number of its fork, which is gone afterwards."""
    with subprocess.Popen([python, *SLEEPS]) as launcher, contextlib.ExitStack() as stack:
        stack.callback(launcher.kill)
        until(lambda: (one := find(launcher.pid)) and one.stands_for, "it has a fork")
        (fork,) = descendants(launcher.pid)
        yield launcher, fork.pid
    until(lambda: find(fork.pid) != fork, "the fork has ended")


@pytest.mark.long
def test_a_launcher_and_its_fork_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "FORKED", ("timeit",))
    with pythons.spawned(tmp_path) as python:
        for end in (signal.SIGTERM, signal.SIGKILL):
            with sleeping(python) as (launcher, _):
                launcher.send_signal(end)
                assert launcher.wait() == -end
            with sleeping(python) as (launcher, fork):
                os.kill(fork, end)
                assert launcher.wait() == -end
        for what in (["-m", "timeit", "-n1", "-r1"], ["-c"]):
            for code, program in enumerate(("pass", "1 / 0")):
                assert subprocess.run([python, *what, program]).returncode == code
