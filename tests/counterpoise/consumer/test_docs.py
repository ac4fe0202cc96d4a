"""The examples of docs/consumer.md and docs/aligned.md run unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def _prints(page: str, url: str, program: int = -1) -> str:
    """What a program of a page prints, by default the last one."""
    code = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[program]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "COUNTERPOISE_URL": url},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_example_runs(service):
    printed = _prints("consumer.md", service.url)
    assert "1000 departures, 29080 minutes late\n" in printed
    assert "not a number: b'unknown' ValueError: invalid literal for int()" in printed


@pytest.mark.long
def test_orders_meet_their_payments(service):
    assert _prints("aligned.md", service.url, 0) == "100 pairs\n"


@pytest.mark.long
def test_a_message_is_tried_again_later_and_its_key_waits(service):
    assert _prints("consumer.md", service.url, 3) == "N1 was tried 3 times: [1, 4, 7, 10]\n"


@pytest.mark.long
def test_an_event_loop_handles_each_message_once(service):
    assert _prints("consumer.md", service.url, 2) == "40 gates, each once: True\n"


@pytest.mark.long
def test_keys_of_a_partition_go_on_side_by_side(service):
    assert _prints("consumer.md", service.url, 1) == "12 keys, each in order: True\n"
