"""Spark's Python processes import the installed PySpark, which is compiled, not its archives.

A real Spark shows it in `test_java.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from counterpoise.spark.driver import environment

LIB = Path(pyspark.__file__).parent / "python" / "lib"
[PY4J] = LIB.glob("py4j-*-src.zip")
ASK = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.path, sys.argv[1:]]))"


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def launched(path: Sequence[object], *arguments: str) -> list:
    """What the launcher's Python has: PYTHONPATH, its path, its arguments."""
    with environment.installed_pyspark("local[2]"):
        program = os.environ["PYSPARK_PYTHON"]
    assert program != sys.executable
    return json.loads(
        subprocess.run(
            [program, "-c", ASK, *arguments],
            env=dict(os.environ, PYTHONPATH=":".join(map(str, path))),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_the_archives_of_the_installed_spark_are_not_on_the_path(tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(LIB)
    path = [LIB / "pyspark.zip", PY4J, linked / "pyspark.zip", "/its/spark.jar", "/a b/*"]
    variable, really, arguments = launched(path, "-m", "a b", "")
    assert variable == "/its/spark.jar:/a b/*"
    assert not [entry for entry in really if entry.endswith(".zip") and "spark" in entry]
    assert arguments == ["-m", "a b", ""]


def test_archives_of_another_spark_stay(tmp_path: Path) -> None:
    others = [tmp_path / "pyspark.zip", tmp_path / PY4J.name]
    assert launched([*others, LIB / "pyspark.zip"])[0] == ":".join(map(str, others))


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]", None])
def test_other_machines_get_no_path_of_this_one(master: str | None) -> None:
    with environment.installed_pyspark(master):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_another_python_that_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    with environment.installed_pyspark("local"):
        assert os.environ["PYSPARK_PYTHON"] == "/another/python"


def test_only_a_spark_that_starts_meanwhile_gets_it() -> None:
    with environment.installed_pyspark("local[*]"):
        assert os.environ["PYSPARK_PYTHON"] != sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_directory_whose_name_has_a_space_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark's own scripts would take it for two words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary files"))
    with environment.installed_pyspark("local"):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
