"""Every transcript in this directory shows the present behaviour (see `runner`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.runner import play, played

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    play(path, rewrite=bool(os.environ.get("REWRITE")))


def test_a_transcript_shows_what_happened_and_when() -> None:
    transcript = "# One flow\nstart A=0,1\nbind B\nadvance 8s\n----\nwrong\n"
    assert played(transcript) == (
        "# One flow\nstart A=0,1\nbind B\nadvance 8s\n----\n"
        "    0s  Ready\n"
        "    0s    A: p0 p1\n"
        "    0s  B bound\n"
        "    0s  holddown until 5s (bind)\n"
        "    5s  rebalance 2 started (bind)\n"
        "    5s  p1 epoch 1: A -> B, revoking until 8s\n"
        "    8s  p1 epoch 2: A -> B, forced\n"
        "    8s  rebalance 2 finished: 1 by handoff (1 forced), 0 granted: Ready\n"
    )
