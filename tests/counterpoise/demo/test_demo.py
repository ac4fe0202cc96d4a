"""The demo as a whole, on few flights: good as it is, bad with each sabotage, gone when told so."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.log_support import until
from tests.processes import Process, descendants, running

ROWS = "10000"
BAD = {
    "skip": "every flight processed",
    "reorder": "order kept for every aircraft",
    "unfenced": "one owner at a time",
}

Demo = subprocess.Popen[str]


def start(*arguments: str) -> Demo:
    command = [sys.executable, "-m", "counterpoise.cli", "demo", "--rows", ROWS, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
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


def play(demos: list[Demo], *arguments: str) -> tuple[int, str]:
    demo = start(*arguments)
    demos.append(demo)
    output, _ = demo.communicate()
    print(output)
    return demo.returncode, output


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_ends_with_a_good_verdict(demos: list[Demo]) -> None:
    code, output = play(demos)
    assert "Verdict: GOOD" in output
    assert code == 0
    assert re.search(r"service at http://127\.0\.0\.1:\d+", output)
    assert "BROKEN" not in output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sabotage", BAD)
def test_a_sabotaged_demo_ends_with_a_bad_verdict(demos: list[Demo], sabotage: str) -> None:
    code, output = play(demos, "--sabotage", sabotage)
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
