"""The demo as a whole, on few flights: good as it is, bad with each sabotage, gone when told so."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.counterpoise.spark.small import with_small_java
from tests.log_support import until
from tests.processes import Process, descendants, running

ROWS = "10000"
BAD = {
    "skip": "every flight processed",
    "reorder": "order kept for every aircraft",
    "unfenced": "one owner at a time",
}
# One alone leaves much of two processors idle while it waits; more at a time would wait for them.
AT_A_TIME = 2

Demo = subprocess.Popen[str]


def start(*arguments: str) -> Demo:
    command = [sys.executable, "-m", "counterpoise.cli", "demo", "--rows", ROWS, *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=with_small_java(),  # each demo starts four Sparks
        start_new_session=True,
    )


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    """Those still running at the end are ended, and with them what they have started."""
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        demo.kill()
        demo.wait()
        assert demo.stdout is not None
        demo.stdout.close()


class Plays:
    """Demos that are played to their end, some at a time, each with its sabotage or None."""

    def __init__(self, sabotages: Sequence[str | None]) -> None:
        self._demos: list[Demo] = []
        self._starting = threading.Lock()
        self._broken_off = False
        self._threads = ThreadPoolExecutor(AT_A_TIME, "demo")
        self._played = {each: self._threads.submit(self._play, each) for each in sabotages}

    def played(self, sabotage: str | None) -> tuple[int, str]:
        """Waits for its exit code and its output, and prints that."""
        code, output = self._played[sabotage].result()
        print(output)
        return code, output

    def _play(self, sabotage: str | None) -> tuple[int, str]:
        lines = []
        with self._starting:
            demo = start(*(["--sabotage", sabotage] if sabotage else []))
            self._demos.append(demo)
            if self._broken_off:
                demo.kill()
            assert demo.stdout is not None
            # No other one starts before this one's service has its port.
            for line in demo.stdout:
                lines.append(line)
                if "service at" in line:
                    break
        with demo.stdout:
            lines += demo.stdout
        return demo.wait(), "".join(lines)

    def end(self) -> None:
        """Those still running are ended, and with them what they have started."""
        self._broken_off = True
        for demo in list(self._demos):
            demo.kill()
        self._threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest) -> Iterator[Plays]:
    """The demos whose end the tests of this run want to see."""
    sabotages: list[str | None] = []
    for item in request.session.items:
        if getattr(item, "function", None) is test_the_demo_ends_with_a_good_verdict:
            sabotages.append(None)
        if getattr(item, "function", None) is test_a_sabotaged_demo_ends_with_a_bad_verdict:
            assert isinstance(item, pytest.Function)
            sabotages.append(str(item.callspec.params["sabotage"]))
    plays = Plays(sabotages)
    yield plays
    plays.end()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_ends_with_a_good_verdict(plays: Plays) -> None:
    code, output = plays.played(None)
    assert "Verdict: GOOD" in output
    assert code == 0
    assert re.search(r"service at http://127\.0\.0\.1:\d+", output)
    assert "BROKEN" not in output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sabotage", BAD)
def test_a_sabotaged_demo_ends_with_a_bad_verdict(plays: Plays, sabotage: str) -> None:
    code, output = plays.played(sabotage)
    assert "Verdict: BAD" in output
    assert code == 1
    assert re.search(f"BROKEN +{BAD[sabotage]}", output)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whatever_ends_the_demo_ends_all_it_started(
    demos: list[Demo], how: signal.Signals, code: int
) -> None:
    demo = start()
    demos.append(demo)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "PySpark applications start" in line:
            break
    children: set[Process] = set()

    def all_are_there() -> bool:
        # What they start in turn is to end as well.
        now = descendants(demo.pid)
        children.update(now)
        return len(children) >= 4 and "java" in {process.name for process in now}

    until(all_are_there, 180)
    demo.send_signal(how)
    assert demo.wait(120) == code
    # An application that was about to start notices once it has.
    until(lambda: not children & running(), 240)


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--rows", "9"], "at least 10,000"), (["--sabotage", "all"], "choose")]
)
def test_wrong_usage_is_told(arguments: Sequence[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counterpoise.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stdout + done.stderr
