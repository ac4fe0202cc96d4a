"""The versions of PySpark before the locked one: every sink in every situation, and kills at every
step of a micro-batch whose rows go into a database or a lake.

The tests that play them run once more, with another PySpark at the beginning of their path. It is
installed beside the environment, by its own lock.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from counterpoise.spark.version import has_read_limits
from tests.architecture.structure import ROOT

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs 1")]

HERE = "tests/counterpoise/spark"
SITUATIONS = (f"{HERE}/test_situations.py::test_what_every_sink_has_in_every_situation",)
KILLS = (
    f"{HERE}/sink/test_kills.py::test_killed_at_every_step_and_restarted_at_once",
    # Lakes write the same batches of Arrow, which differ by version.
    f"{HERE}/sink/test_kills.py::test_in_a_lake_killed_at_every_step_and_stuck_before_a_commit[iceberg]",
)
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
"""The last one is that of all tests."""
# These have no archive of their classes (archive.py); to verify 15,000 of them takes long.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
# 4.0 and 4.1 leave a socket open when a stream ends.
QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception")


@pytest.mark.timeout(2400)
@pytest.mark.matrix(of="versions of PySpark")
@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_applications_come_go_and_are_killed(version: str, tmp_path: Path) -> None:
    spark = Path(sys.prefix, f"spark-{version}")
    run(os.environ, "deploy/environment.py", sys.prefix, spark.name)
    path = f"{spark}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "JDK_JAVA_OPTIONS": UNVERIFIED}
    environment.pop("PYTEST_XDIST_WORKER", None)
    found = run(environment, "-c", "import pyspark; print(pyspark.__file__, pyspark.__version__)")
    assert found.startswith(f"{spark}/pyspark/__init__.py {version}.")
    check_requirements(spark)
    home = f"--basetemp={tmp_path / 'tests'}"
    # The newest one drives sources as those with read limits do.
    tests = SITUATIONS if has_read_limits(version) else (*SITUATIONS, *KILLS)
    played = run(environment, "-m", "pytest", *QUIET, home, *tests)
    passed = re.search(r"^(\d+) passed in", played, re.MULTILINE)
    assert passed
    assert int(passed[1]) >= len(tests)


def check_requirements(spark: Path) -> None:
    """`pip install 'counterpoise[spark]'` leaves a PySpark that is there: it fits, and what it
    requires does not contradict what we do.
    """
    (given,) = metadata.distributions(name="pyspark", path=[str(spark)])
    ours = metadata.requires("counterpoise") or []
    for requires, extra in ((ours, "spark"), (given.requires or [], "sql")):
        for requirement in map(Requirement, requires):
            if requirement.name == "pyspark":
                assert requirement.specifier.contains(given.version)
            elif requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                assert requirement.specifier.contains(metadata.version(requirement.name))


def run(environment: Mapping[str, str], *arguments: str) -> str:
    """What Python prints, which has to end with success."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout
