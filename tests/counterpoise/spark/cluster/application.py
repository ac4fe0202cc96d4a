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

import pyspark

from tests.counterpoise.spark.application import SMALL, Application, Sink, run_until_told


class ClusterApplication(Application):
    """`ship`: `py_file` or `archive`; `file`: what is shipped; `python`: that of the executors."""

    module = "tests.counterpoise.spark.cluster.application"
    patience_seconds = 240.0  # four more JVMs

    def __init__(
        self, directory: Path, url: str, *, ship: str, file: Path | str, python: Path | str
    ) -> None:
        super().__init__("cluster", directory, url, "flights")
        self.options |= {"_ship": ship, "_file": file, "_python": python}


def where_it_is(_: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Runs on executors: this worker's JVM, and the file that `counterpoise` comes from."""
    import counterpoise

    yield os.getppid(), counterpoise.__file__


def run(settings: Mapping[str, Any]) -> None:
    """The application itself."""
    from counterpoise.spark import register, session

    options = dict(settings["options"])
    ship, file, python = (options.pop(name) for name in ("_ship", "_file", "_python"))
    home = Path(settings["home"])
    # Nothing of the driver's own surroundings is to reach the executors.
    os.environ.pop("PYTHONPATH", None)
    spark_home = home / "spark-home"
    if not spark_home.exists():
        spark_home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            (spark_home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(spark_home)  # workers leave their directories there
    os.environ["PYSPARK_PYTHON"] = python
    os.chdir(home)  # a relative Python is looked for from here
    if ship == "archive":
        config = {"spark__archives": f"{file}#environment"}
    else:
        # The source's own process, on the driver's machine, is none of the executors'.
        os.environ["PYTHONPATH"] = file
        config = {"spark__executorEnv__PYTHONPATH": ""}
    spark = session(
        settings["name"],
        **SMALL,
        **config,
        spark__master="local-cluster[2,1,1024]",
        spark__executor__memory="512m",
        spark__executor__extraJavaOptions="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        spark__local__dir=str(home / "spark"),
    )
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
