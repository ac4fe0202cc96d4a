"""Applications whose executors are processes of their own, with shipped packages.

`local-cluster` is a standalone cluster within one machine: a master, workers, and executors with a
JVM each, to which tasks and files go over the network as on any cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tests.counterpoise.spark.cluster.application import ClusterApplication
from tests.counterpoise.spark.stage import Stage
from tests.counterpoise.spark.test_applications import check_order, duplicates
from tests.counterpoise.spark.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(420), pytest.mark.xdist_group("spark 1")]

SOURCE_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
PACKAGE = Path(__file__).resolve().parents[4] / "counterpoise"


def environment(directory: Path, *, with_package: bool) -> Path:
    """A Python environment with all libraries, and `counterpoise` only if asked for.

    It is compiled and has run once, because Spark gives the process of a source ten seconds to
    connect.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    # Only the libraries: an editable package's .pth line has no effect from here.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if with_package:
        shutil.copytree(
            PACKAGE, packages / "counterpoise", ignore=shutil.ignore_patterns("__pycache__")
        )
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "compileall", "-q", packages], check=True)
    subprocess.run([python, "-c", f"import {SOURCE_PROCESS}, pyarrow"], check=True)
    return directory


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python that cannot import counterpoise."""
    python = environment(tmp_path / "bare", with_package=False) / "bin" / "python"
    command = [str(python), "-c", "import pyspark, pyarrow, psycopg; import counterpoise"]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
    assert "No module named 'counterpoise'" in failed.stderr, failed.stderr
    return str(python)


def check(stage: Stage, application: ClusterApplication, ending: str) -> None:
    """It reads everything, on executors with the shipped package, and hands over in order."""
    local = stage.application("local")
    stage.publish(300)
    until(lambda: stage.all_seen() or application.over(), "everything is seen", 240)
    assert not application.over(), application.said()
    executors = json.loads((application.home / "executors").read_text())
    assert len({jvm for jvm, _ in executors}) == 2, "two executors, each with a daemon of its own"
    for _, file in executors:
        assert not Path(file).is_relative_to(PACKAGE)
        assert ending in file
    # Another application takes over its share while messages arrive.
    local.start()
    stage.publish(300)
    until(lambda: stage.owned("local") == 2 and stage.ready(), "shared")
    stage.publish(300)
    until(stage.all_seen, "everything is seen")
    until(lambda: stage.committed() == stage.published, "everything is committed")
    assert application.stop() == 0
    until(lambda: stage.owned("local") == 4, "the other one owns all")
    assert local.stop() == 0
    assert duplicates(stage.rows()) == {}
    check_order(stage.rows())


def test_shipped_as_a_file_for_python(stage: Stage, tmp_path: Path, bare_python: str) -> None:
    stage.queue(4, rebalance_delay=0.2, max_handoff_time=60)
    archive = shutil.make_archive(
        str(tmp_path / "package" / "counterpoise"), "zip", PACKAGE.parent, PACKAGE.name
    )
    application = ClusterApplication(
        tmp_path, stage.url, stage.drivers, ship="py_file", file=archive, python=bare_python
    )
    stage.applications.append(application)
    application.start()
    check(stage, application, "counterpoise.zip")


def test_shipped_as_an_archive_of_an_environment(stage: Stage, tmp_path: Path) -> None:
    stage.queue(4, rebalance_delay=0.2, max_handoff_time=60)
    packed = tmp_path / "environment.tar.gz"
    directory = environment(tmp_path / "packed", with_package=True)
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(directory, arcname=".")
    # The driver's side of the source runs with the same relative Python.
    home = tmp_path / "cluster"
    home.mkdir()
    (home / "environment").symlink_to(directory)
    application = ClusterApplication(
        tmp_path,
        stage.url,
        stage.drivers,
        ship="archive",
        file=packed,
        python="./environment/bin/python",
    )
    stage.applications.append(application)
    application.start()
    check(stage, application, "environment/lib")
