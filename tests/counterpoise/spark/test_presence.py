"""A source learns whether its driver was killed or ended by itself."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.spark.channel.channel import Channel, make_home
from counterpoise.spark.channel.running_driver import _FILE, Driver

PROGRAM = """
import sys
from counterpoise.spark.channel.channel import make_home
print(make_home(), flush=True)
sys.stdin.read()
raise SystemExit(int(sys.argv[1]))
"""


class Program:
    """A driver's Python program, which ends with this exit code when its stdin ends."""

    def __init__(self, directory: Path, code: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        assert self.process.stdout is not None
        self.home = self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate("")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started = Program(tmp_path)
    yield started
    started.process.kill()
    started.process.communicate()


def test_a_running_driver_is_not_lost(program: Program) -> None:
    driver = Driver(program.home)
    assert not driver.is_lost()
    assert not driver.is_lost(), "looking has taken its lock"


def test_the_sources_of_a_killed_program_do_not_hinder_one_another(program: Program) -> None:
    driver = Driver(program.home)
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    with (Path(program.home) / _FILE).open("r+") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert driver.is_lost()


def test_a_killed_program_is_a_lost_driver_before_it_is_reaped(program: Program) -> None:
    driver = Driver(program.home)
    os.kill(program.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, program.process.pid, os.WEXITED | os.WNOWAIT)
    assert driver.is_lost()


def test_the_last_source_of_a_killed_program_removes_its_directory(program: Program) -> None:
    drivers = [Driver(program.home) for _ in range(2)]
    one, other = (Channel(program.home, name) for name in ("one", "other"))
    for channel in (one, other):
        channel.put("view", {})
    drivers[0].clear_after()
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    one.drop("view")
    drivers[0].clear_after()
    assert drivers[1].is_lost(), "the other source still finds out"
    other.drop("view")
    drivers[1].clear_after()
    assert not Path(program.home).exists()


@pytest.mark.parametrize("code", [0, 1])
def test_a_program_that_ends_by_itself_has_left(tmp_path: Path, code: int) -> None:
    program = Program(tmp_path, code)
    driver = Driver(program.home)
    program.end()
    assert not driver.is_lost()


def test_documents_written_after_the_end_of_the_program_change_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path)
    driver = Driver(program.home)
    program.end()
    Path(program.home).mkdir()
    assert not driver.is_lost()


def test_a_source_with_another_parent_has_lost_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(make_home())
    assert not driver.is_lost()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert driver.is_lost()


def test_without_a_shared_directory_only_the_parent_counts(tmp_path: Path) -> None:
    assert not Driver(None).is_lost()
    assert not Driver(str(tmp_path)).is_lost()
