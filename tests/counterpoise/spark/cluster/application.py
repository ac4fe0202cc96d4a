"""PySpark applications on a cluster of two executors with a JVM each (`local-cluster`).

Their executors run a Python without `counterpoise`: they use the package that was shipped to them,
in one of the two ways of docs/cluster.md. The jobs record from where each executor loads it.

This module is also the module of the jobs: they do the work of another one, once the package is
shipped.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counterpoise.spark import application as plain
from tests.counterpoise.spark.application import Application, on_a_cluster
from tests.counterpoise.spark.cluster.environments import PACKAGE
from tests.counterpoise.spark.jobs.drivers import Setup
from tests.counterpoise.spark.state.application import StatefulApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control

MODULE = "tests.counterpoise.spark.cluster.application"


def check_executors(application: Application, ending: str) -> None:
    """Both of its executors have loaded the shipped package, which `ending` is part of."""
    executors = json.loads((application.home / "executors").read_text())
    assert len({jvm for jvm, _ in executors}) == 2, "two executors, each with a daemon of its own"
    for _, file in executors:
        assert not Path(file).is_relative_to(PACKAGE)
        assert ending in file


def setup_for(application: Application, python: Path | str) -> Setup:
    """A cluster whose executors have this Python, and nothing of the driver's own environment."""
    return replace(
        cluster := on_a_cluster(application.home),
        environment={**cluster.environment, "PYTHONPATH": None, "PYSPARK_PYTHON": str(python)},
        directory=application.home,  # a relative path of Python starts here
        first_query=False,  # the executors do not have the package
    )


class WithFile(Application):
    """The package is shipped as a file for Python. `python`: of the executors."""

    module = MODULE

    def __init__(self, *arguments: Any, file: Path, python: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file = str(file)
        self._python = python

    def setup(self) -> Setup:
        cluster = setup_for(self, self._python)
        # The source's own process runs on the driver's machine, not on an executor's.
        return replace(
            cluster,
            environment={
                **cluster.environment,
                "PYTHONPATH": self._file,
                "PYSPARK_SUBMIT_ARGS": f"--py-files {self._file} pyspark-shell",
            },
            config={"spark__executorEnv__PYTHONPATH": ""},
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"does": Application.module}


class WithEnvironment(StatefulApplication):
    """Stateful; the package is shipped in `archive`, with the executors' Python.

    `unpacked`: the same as a directory. The driver's side of the source runs with the same relative
    Python.
    """

    module = MODULE

    def __init__(self, *arguments: Any, archive: Path, unpacked: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._archive = archive
        (self.home / "environment").symlink_to(unpacked)

    def setup(self) -> Setup:
        cluster = setup_for(self, "./environment/bin/python")
        return replace(cluster, config={"spark__archives": f"{self._archive}#environment"})

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"does": StatefulApplication.module}


def where_it_is(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Runs on executors: this worker's JVM, and the file that `counterpoise` comes from."""
    import counterpoise

    yield os.getppid(), counterpoise.__file__


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from pyspark.cloudpickle import register_pickle_by_value

    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where_it_is).collect()
    Path(settings["home"], "executors").write_text(json.dumps(found))
    # The driver ends with this job. The executors have no module of the tests.
    module = importlib.import_module(settings["does"])
    for one in {module, plain}:
        register_pickle_by_value(one)
    module.run(spark, settings, control)
