"""Settings of small Sparks that start soon, for the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

LOCAL = "local[2]"
# Two executors with a JVM and a core each; tasks reach them over the network as on any cluster.
CLUSTER = "local-cluster[2,1,1024]"
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SPARK_HOME = "spark-home"
POLLING_DELAY = "100ms"
# A micro-batch takes half as long with it.
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming."
    + ("" if pyspark.__version__.startswith("4.0.") else "checkpointing.")
    + "FileSystemBasedCheckpointFileManager"
)
SMALL = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__driver__host": "127.0.0.1",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__memory": "512m",
    "spark__driver__extraJavaOptions": SMALL_JAVA,
    "spark__log__level": "ERROR",
    "spark__sql__session__timeZone": "UTC",
    "spark__sql__shuffle__partitions": "1",
    # Spark asks a source without news a hundred times a second otherwise.
    "spark__sql__streaming__pollingDelay": POLLING_DELAY,
    "spark__sql__streaming__checkpointFileManagerClass": CHECKPOINT_MANAGER,
}
SMALL_EXECUTORS = {
    "spark__executor__memory": "512m",
    "spark__executor__extraJavaOptions": SMALL_JAVA,
}


def with_small_java() -> dict[str, str]:
    """The environment for a program that creates its own sessions."""
    settings = {
        "spark.driver.defaultJavaOptions": SMALL_JAVA,
        "spark.sql.streaming.pollingDelay": POLLING_DELAY,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    }
    conf = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell"}


def spark_home(parent: Path) -> Path:
    """A home of Spark in which PySpark's archives are directories; made there if it is not yet.

    What Spark's processes import from an archive, each of them compiles anew. That takes longer
    than all else that a short-lived one does.
    """
    directory = parent / SPARK_HOME
    if directory.exists():
        return directory
    directory.mkdir()
    real = Path(pyspark.__file__).parent
    for part in real.iterdir():
        if part.name != "python":
            (directory / part.name).symlink_to(part)
    for archive in (real / "python" / "lib").glob("*.zip"):
        package = "py4j" if archive.name.startswith("py4j") else "pyspark"
        instead = directory / "python" / "lib" / archive.name
        instead.mkdir(parents=True)
        (instead / package).symlink_to(real.parent / package)
    return directory
