"""The example of docs/consumer.md runs unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "consumer.md"


@pytest.mark.long
def test_the_example_runs(service):
    code = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[-1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "COUNTERPOISE_URL": service.url},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1000 departures, 29080 minutes late\n" in done.stdout
    assert "not a number: b'unknown' ValueError: invalid literal for int()" in done.stdout
