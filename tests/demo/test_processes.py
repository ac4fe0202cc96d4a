"""The demo ends all processes that it started, and no others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.demo.processes import DemoProcess, session, stop_all
from tests.log_support import until

# Starts a child in a process group of its own, like Spark's workers, and waits.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
print(f"child {child.pid}", flush=True)
print("ready", flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ignoring", flush=True)
sys.stderr.write("something to read\\n")
sys.stderr.flush()
sys.stdin.read()
"""

# Exits with the number of stop requests, some time after the first.
COUNTING = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("ready", flush=True)
while not asked:
    time.sleep(0.01)
deadline = time.monotonic() + SECONDS
while time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(len(asked))
"""

Start = Callable[..., DemoProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[DemoProcess] = []

    def start(*arguments: str) -> DemoProcess:
        name = f"child-{len(children)}"
        command = [sys.executable, "-c", PARENT, *arguments]
        child = DemoProcess(name, command, tmp_path / f"{name}.log", os.environ)
        children.append(child)
        until(lambda: child.last_after("ready") is not None)
        return child

    yield start
    for child in children:
        child.kill()


def test_a_kill_takes_all_that_the_process_started(start: Start) -> None:
    child = start()
    assert len(list(session(child.pid))) == 2
    child.kill()
    assert list(session(child.pid)) == []
    assert child.exit_code == -9


def test_a_stop_takes_what_the_process_leaves_behind(start: Start) -> None:
    child = start()
    child.stop(5.0)
    assert list(session(child.pid)) == []
    assert child.exit_code == -15


def test_a_process_that_does_not_stop_is_killed_after_its_grace(start: Start) -> None:
    children = [start("stubborn"), start("stubborn")]
    for child in children:
        until(lambda child=child: child.last_after("ignoring") is not None)  # type: ignore[misc]
    began = time.monotonic()
    stop_all(children, 0.3)
    assert time.monotonic() - began >= 0.3
    assert [child.exit_code for child in children] == [-9, -9]


def test_each_is_asked_to_stop_just_once(tmp_path: Path) -> None:
    """Also the second process, whose turn comes when the first has ended."""
    children = []
    for name, seconds in (("quick", 0.0), ("slow", 0.5)):
        program = COUNTING.replace("SECONDS", str(seconds))
        child = DemoProcess(
            name, [sys.executable, "-c", program], tmp_path / f"{name}.log", os.environ
        )
        until(lambda child=child: child.last_after("ready") is not None)  # type: ignore[misc]
        children.append(child)
    stop_all(children, 10.0)
    assert [child.exit_code for child in children] == [1, 1]


def test_other_processes_are_left_alone(start: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        start().kill()
        assert other.poll() is None
        other.terminate()


def test_who_has_got_the_id_of_an_ended_process_is_left_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start()
    child.stop(5.0)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        has_it = [other.pid]
        monkeypatch.setattr(
            "broker.demo.processes.session", lambda leader: has_it and [has_it.pop()]
        )
        child.kill()
        child.terminate()
        assert has_it
        other.terminate()
        assert other.wait() == -signal.SIGTERM


def test_the_output_of_a_process_is_in_its_log(start: Start) -> None:
    child = start()
    until(lambda: "something to read" in child.tail())
    assert "ready" in child.tail()
