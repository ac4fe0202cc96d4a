"""Spark sessions as the benchmarks have them: on one machine, on loopback, and quiet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As docs/performance.md says of a checkpoint on a local disk.
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(name: str, cores: int, directory: Path, **more: str) -> SparkSession:
    """A session with so many cores, whose files are in `directory`; `more` settings of Spark."""
    from counterpoise import spark

    settings = {
        "spark__master": f"local[{cores}]",
        "spark__ui__enabled": "false",
        "spark__ui__showConsoleProgress": "false",
        "spark__driver__host": "127.0.0.1",
        "spark__driver__bindAddress": "127.0.0.1",
        "spark__driver__memory": "1g",
        "spark__local__dir": str(directory),
        "spark__log__level": "ERROR",
    }
    return spark.session(name, **{**settings, **more})
