"""A PySpark application on a cluster of two executors with a JVM each (`local-cluster`).

Its executors run a Python without `counterpoise`: they use the package that was shipped to them, in
one of the two ways of docs/cluster.md. The sink records from where each executor loads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counterpoise.spark.application import Application, Sink, on_a_cluster
from tests.counterpoise.spark.jobs.drivers import Drivers, Setup
from tests.counterpoise.spark.starting import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control


class ClusterApplication(Application):
    """`ship`: `py_file` or `archive`; `file`: the shipped file; `python`: the executors' Python."""

    module = "tests.counterpoise.spark.cluster.application"

    def __init__(
        self,
        directory: Path,
        url: str,
        drivers: Drivers,
        *,
        ship: str,
        file: Path | str,
        python: Path | str,
    ) -> None:
        super().__init__("cluster", directory, url, "flights", drivers)
        self._ship = ship
        self._file = str(file)
        self._python = str(python)

    def setup(self) -> Setup:
        cluster = on_a_cluster(self.home)
        # Nothing of the driver's own environment may reach the executors.
        environment = {**cluster.environment, "PYTHONPATH": None, "PYSPARK_PYTHON": self._python}
        if self._ship == "archive":
            config = {"spark__archives": f"{self._file}#environment"}
        else:
            # The source's own process runs on the driver's machine, not on an executor's.
            environment["PYTHONPATH"] = self._file
            config = {"spark__executorEnv__PYTHONPATH": ""}
        return replace(
            cluster,
            config=config,
            environment=environment,
            directory=self.home,  # a relative path of Python starts here
            first_query=False,  # the executors do not have the package
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"ship": self._ship, "file": self._file}


def where_it_is(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Runs on executors: this worker's JVM, and the file that `counterpoise` comes from."""
    import counterpoise

    yield os.getppid(), counterpoise.__file__


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from counterpoise.spark import register

    home = Path(settings["home"])
    if settings["ship"] == "py_file":
        spark.sparkContext.addPyFile(settings["file"])
        register(spark)  # with the shipped package
    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    query = started(
        messages.writeStream.foreachBatch(Sink(home)).option(
            "checkpointLocation", str(home / "checkpoint")
        )
    )
    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where_it_is).collect()
    (home / "executors").write_text(json.dumps(found))
    control.run(query)
