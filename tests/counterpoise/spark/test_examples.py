"""The examples under docs/examples work as described, on a machine with nothing else installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.counterpoise.spark.small import with_small_java

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"

# About half a minute each on an idle machine; most of it is Spark's start.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs 2")]


def play(example: str, directory: Path) -> str:
    """Run the example like a user, and return its last line."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example), "--mock", "--directory", str(directory)],
        cwd=directory,
        env=with_small_java(),
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout.splitlines()[-1]


@pytest.mark.matrix(of="examples")
def test_counts_per_key_are_exact_though_an_application_is_killed(tmp_path: Path) -> None:
    said = play("per_key_counts.py", tmp_path)
    assert said == "KEPT: 7000 orders published, 7000 counted, for 40 customers"


@pytest.mark.matrix(of="examples")
def test_windows_that_are_open_when_applications_leave_and_die_are_whole(tmp_path: Path) -> None:
    said = play("windowed_means.py", tmp_path)
    assert said == "KEPT: 40 of 40 sensors have one mean of four readings"


@pytest.mark.matrix(of="examples")
def test_a_chain_writes_each_message_once_though_an_application_is_killed(tmp_path: Path) -> None:
    said = play("chain.py", tmp_path)
    assert said == (
        "KEPT: 7000 orders published, 20994 items expected, 20994 written, each customer's in order"
    )


@pytest.mark.matrix(of="examples")
def test_sessions_that_are_open_in_a_handoff_are_closed_whole_by_the_successor(
    tmp_path: Path,
) -> None:
    said = play("stateful_sessions.py", tmp_path)
    assert said.startswith("KEPT: 80 of 80 sessions written")
    assert "40 of 40 have all their clicks" in said


@pytest.mark.matrix(of="examples")
def test_two_applications_share_a_topic_and_each_message_comes_once(tmp_path: Path) -> None:
    said = play("kafka_shared.py", tmp_path)
    assert said.startswith("KEPT: 1800 messages published, 1800 seen, 0 twice, 0 out of order")
