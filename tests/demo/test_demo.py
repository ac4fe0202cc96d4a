"""The whole demo, on few flights: a good verdict as it is, a bad one with each sabotage, and a
clean end.

Two demos are played to their end as they are, and one with the sabotage that involves all parts
(with plain consumers, `plain.py`): one of the three in a run of the long tests, because each demo
with Spark takes minutes of the processors. All sabotages are judged by recorded evidence, and a
demo begins in each run (`test_every_end_of_the_demo_ends_its_processes`).
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from broker.demo import playing
from broker.demo.playing import PLAIN_WIDTH, report
from broker.demo.stage import Stage
from broker.demo.verdict import judge
from counterpoise.client import token_of_environment
from counterpoise.errors import Unauthorized
from tests.counterpoise.spark.small import with_small_java
from tests.demo.evidence import RECORDED, read
from tests.judge.demo import judged
from tests.log_support import until
from tests.processes import Process, descendants, running

ROWS = "10000"
BAD = {
    "skip": "every flight processed",
    "reorder": "order kept for every aircraft",
    "unfenced": "one owner at a time",
    "split-early": "order kept for every aircraft",
    "split-twice": "no duplicates from graceful handoffs",
    "split-skip": "every flight processed",
}
# The zombie always writes. The timing of the other writers depends on the machine, and decides
# whether there are two owners at a time or the next owner repeats everything.
UNFENCED = "one owner at a time|no duplicates from graceful handoffs"

Demo = subprocess.Popen[str]


def start(*arguments: str, plain: bool = False) -> Demo:
    program = ("tests.demo.plain",) if plain else ("counterpoise.cli", "demo")
    return subprocess.Popen(
        [sys.executable, "-m", *program, "--rows", ROWS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=with_small_java(),  # each demo starts four Sparks
        start_new_session=True,
    )


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    """Demos that still run at the end are ended, with all their processes."""
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        demo.kill()
        demo.wait()
        assert demo.stdout is not None
        demo.stdout.close()


def played(demos: list[Demo], *arguments: str, plain: bool = False) -> tuple[int, str]:
    """A demo that is played to its end: its exit code and its output."""
    demos.append(start(*arguments, plain=plain))
    output, _ = demos[-1].communicate()
    print(output)
    return demos[-1].returncode, output


@pytest.mark.matrix(of="demos")
@pytest.mark.long
@pytest.mark.xdist_group("programs 2")
def test_the_demo_ends_with_a_good_verdict(demos: list[Demo]) -> None:
    """Into a lake as well. (The demo of splits is played without.)"""
    code, output = played(demos, "--sink", "delta")
    assert re.search(r"kept +statistics equal to those of the data set", output)
    assert re.search(r"kept +each flight once in the Delta table, in order", output)
    assert "Verdict: GOOD" in output
    assert code == 0
    assert re.search(r"service at http://127\.0\.0\.1:\d+", output)
    assert "BROKEN" not in output


@pytest.mark.matrix(of="demos")
@pytest.mark.long
@pytest.mark.xdist_group("programs 2")
def test_a_sabotaged_demo_ends_with_a_bad_verdict(demos: list[Demo]) -> None:
    code, output = played(demos, "--sabotage", "unfenced", plain=True)
    assert "Verdict: BAD" in output
    assert code == 1
    assert re.search(f"BROKEN +({UNFENCED})", output)


@pytest.mark.matrix(of="demos")
@pytest.mark.long
@pytest.mark.xdist_group("programs 2")
def test_the_demo_of_splits_ends_with_a_good_verdict(demos: list[Demo]) -> None:
    code, output = played(demos, "--split")
    assert "Verdict: GOOD" in output
    assert code == 0
    assert re.search(r"kept +no partition began before its parents .* 6 new partitions", output)
    assert len(re.findall(r"kept +the (split|merge) of .* met backlog", output)) == 4


@pytest.mark.long
@pytest.mark.xdist_group("flights")
@pytest.mark.matrix("sabotage")
@pytest.mark.parametrize("sabotage", BAD)
def test_the_evidence_of_a_sabotaged_demo_gets_a_bad_verdict(sabotage: str) -> None:
    said = io.StringIO()
    evidence = read(RECORDED / f"{sabotage}.json.xz")
    verdict = judge(evidence)
    report(Console(file=said, width=PLAIN_WIDTH), verdict, 0.0)
    assert "Verdict: BAD" in said.getvalue()
    assert not verdict.good
    assert re.search(f"BROKEN +{BAD[sabotage]}", said.getvalue())
    assert not judged(evidence).kept, "the judge of all runs agrees"


@pytest.mark.matrix("how")
@pytest.mark.long
@pytest.mark.xdist_group("programs 2")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_every_end_of_the_demo_ends_its_processes(
    demos: list[Demo], how: signal.Signals, code: int
) -> None:
    demo = start()
    demos.append(demo)
    assert demo.stdout is not None
    for line in demo.stdout:
        if ": starts Java and Spark" in line:
            break
    children: set[Process] = set()

    def all_are_there() -> bool:
        # The processes that they start must end too.
        now = descendants(demo.pid)
        children.update(now)
        return len(children) >= 4 and "java" in {process.name for process in now}

    until(all_are_there, 300)
    demo.send_signal(how)
    assert demo.wait(300) == code
    # An application that was about to start notices the end once it runs.
    until(lambda: not children & running(), 240)


def test_a_key_for_another_service_is_set_aside_and_a_refusal_is_no_bad_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(Stage):
        def begin(self) -> None:
            raise Unauthorized(f"with {token_of_environment()}")

    monkeypatch.setattr("os.environ", {**os.environ, "COUNTERPOISE_TOKEN": "of-another-service"})
    monkeypatch.setattr(playing, "Stage", Refusing)
    assert playing.run() == 2
    assert "The demo failed: with None" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "9"], "at least 10,000"),
        (["--sabotage", "all"], "choose"),
        (["--sabotage", "early"], "this demo has unfenced, skip, reorder"),
        (["--split", "--sabotage", "reorder"], "this demo has early, twice, skip"),
        (["--sink", "delta", "--sabotage", "skip"], "without --split and --sabotage"),
    ],
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
