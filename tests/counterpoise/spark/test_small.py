"""The archive of Spark's classes. Without it tests only take longer, so somebody has to look."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from counterpoise.spark.driver.java import ensure_java
from tests.counterpoise.spark.small import ArchiveBeside, java_options


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_is_made_and_used_where_java_has_one_of_its_own_to_add_to() -> None:
    beside = ArchiveBeside()
    with contextlib.closing(beside):
        beside.wait()
    java = Path(str(ensure_java()), "bin", "java")
    # Refused by a runtime that was trimmed, as the wheel's.
    own = subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False)
    used = "-XX:SharedArchiveFile" in java_options()
    assert used == (own.returncode == 0)
