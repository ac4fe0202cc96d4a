"""A PySpark application on a cluster of two executors with a JVM each (`local-cluster`).

Its executors run a Python that does not have `counterpoise`: what they use is what was shipped to
them, in one of the two ways that docs/cluster.md describes. The sink writes down from where each
executor has it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.counterpoise.spark.application import Application, Sink, run_until_told, session_for
from tests.counterpoise.spark.small import CLUSTER


class ClusterApplication(Application):
    """`ship`: `py_file` or `archive`; `file`: what is shipped; `python`: that of the executors."""

    module = "tests.counterpoise.spark.cluster.application"

    def __init__(
        self, directory: Path, url: str, *, ship: str, file: Path | str, python: Path | str
    ) -> None:
        super().__init__("cluster", directory, url, "flights", master=CLUSTER)
        self.options |= {"_ship": ship, "_file": file, "_python": python}


def where_it_is(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Runs on executors: this worker's JVM, and the file that `counterpoise` comes from."""
    import counterpoise

    yield os.getppid(), counterpoise.__file__


def run(settings: Mapping[str, Any]) -> None:
    """The application itself."""
    from counterpoise.spark import register

    options = dict(settings["options"])
    ship, file, python = (options.pop(name) for name in ("_ship", "_file", "_python"))
    home = Path(settings["home"])
    # Nothing of the driver's own surroundings is to reach the executors.
    os.environ.pop("PYTHONPATH", None)
    os.environ["PYSPARK_PYTHON"] = python
    os.chdir(home)  # a relative Python is looked for from here
    if ship == "archive":
        config = {"spark__archives": f"{file}#environment"}
    else:
        # The source's own process, on the driver's machine, is none of the executors'.
        os.environ["PYTHONPATH"] = file
        config = {"spark__executorEnv__PYTHONPATH": ""}
    spark = session_for(settings, **config)
    if ship == "py_file":
        spark.sparkContext.addPyFile(file)
        register(spark)  # with what was shipped
    messages = spark.readStream.format("counterpoise").options(**options).load()
    query = (
        messages.writeStream.foreachBatch(Sink(home))
        .option("checkpointLocation", str(home / "checkpoint"))
        .start()
    )
    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where_it_is).collect()
    (home / "executors").write_text(json.dumps(found))

    run_until_told(query, home)
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.stdin.readline()))
