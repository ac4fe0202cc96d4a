"""The demo as a whole, on few flights: good as it is, bad with each sabotage, gone when told so.

Two are played to their end: as it is, and with the sabotage that works by all its parts. The
verdict on the others, and on this one again, is on what they left when they were recorded.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from counterpoise.demo.proof.report import report
from counterpoise.demo.proof.verdict import judge
from counterpoise.demo.scenario import PLAIN_WIDTH
from tests.counterpoise.demo.evidence import RECORDED, read
from tests.counterpoise.spark.small import with_small_java
from tests.log_support import until
from tests.processes import Process, descendants, running

ROWS = "10000"
BAD = {
    "skip": "every flight processed",
    "reorder": "order kept for every aircraft",
    "unfenced": "one owner at a time",
}
# The zombie writes in any case; how others write meanwhile is up to the machine, and decides
# whether they are two owners at a time, or the next one has it all again.
UNFENCED = "one owner at a time|no duplicates from graceful handoffs"

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


def played(demos: list[Demo], *arguments: str) -> tuple[int, str]:
    """A demo that is played to its end: its exit code and its output."""
    demos.append(start(*arguments))
    output, _ = demos[-1].communicate()
    print(output)
    return demos[-1].returncode, output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark 3")
def test_the_demo_ends_with_a_good_verdict(demos: list[Demo]) -> None:
    code, output = played(demos)
    assert "Verdict: GOOD" in output
    assert code == 0
    assert re.search(r"service at http://127\.0\.0\.1:\d+", output)
    assert "BROKEN" not in output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark 3")
def test_a_sabotaged_demo_ends_with_a_bad_verdict(demos: list[Demo]) -> None:
    code, output = played(demos, "--sabotage", "unfenced")
    assert "Verdict: BAD" in output
    assert code == 1
    assert re.search(f"BROKEN +({UNFENCED})", output)


@pytest.mark.xdist_group("flights")
@pytest.mark.parametrize("sabotage", BAD)
def test_the_evidence_of_a_sabotaged_demo_gets_a_bad_verdict(sabotage: str) -> None:
    said = io.StringIO()
    verdict = judge(read(RECORDED / f"{sabotage}.json.xz"))
    report(Console(file=said, width=PLAIN_WIDTH), verdict, 0.0)
    assert "Verdict: BAD" in said.getvalue()
    assert not verdict.good
    assert re.search(f"BROKEN +{BAD[sabotage]}", said.getvalue())


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark 3")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_every_end_of_the_demo_ends_its_processes(
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
