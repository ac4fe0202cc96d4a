"""docs/examples/kafka_shared.py does what it says, on a machine without Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "kafka_shared.py"

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]


def test_two_applications_share_a_topic_and_each_message_comes_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "--mock", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "3000 messages published, 3000 seen, 0 twice, 0 out of" in ran.stdout
