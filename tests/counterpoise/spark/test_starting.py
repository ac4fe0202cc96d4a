"""A query whose source's process is too slow to connect is started again (`driver/launch.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.counterpoise.spark.jobs.drivers import Drivers, Setup

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("drivers 2"),
    pytest.mark.matrix(of="programs that end"),
]

SLOW_ONCE = """\
#!/bin/sh
case "$*" in
*python_streaming_source_runner*)
    if rm "{slow}" 2>/dev/null; then exec sleep 12; fi ;;
esac
exec "{python}" "$@"
"""


def test_a_query_whose_source_never_connected_is_started_again(
    drivers: Drivers, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    python = tmp_path / "python"
    python.write_text(SLOW_ONCE.format(slow=slow, python=sys.executable))
    python.chmod(0o755)
    driver = drivers.own(Setup(environment={"PYSPARK_PYTHON": str(python)}))
    try:
        driver.until_warm()  # its first query is from a source in Python
        said = driver.log.read_text()
    finally:
        driver.kill()
    assert "Starting it again in 2 s (attempt 2 of 3)" in said
