"""Settings of small Sparks that start soon, for the tests.

Most of what a JVM with Spark does before its first micro-batch is to read, check and link some
15,000 classes. Java can write them down as it ends, and map them the next time, which halves the
start (application class-data sharing, JEP 350). `ArchiveBeside` has it done once in an environment,
by a process that plays what the tests' applications do, and keeps the file there. Until it is there
a JVM starts as ever, and so does one that the file does not fit.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyspark
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from counterpoise.demo.application import warm_up
from counterpoise.spark import session
from counterpoise.spark.driver.java import ensure_java
from tests.log_support import until
from tests.processes import kill_family, running

THIS = "tests.counterpoise.spark.small"  # also where it is run as a program
LOCAL = "local[2]"
# Two executors with a JVM and a core each, to which tasks go over the network as on any cluster.
CLUSTER = "local-cluster[2,1,1024]"
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__driver__host": "127.0.0.1",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__memory": "512m",
    "spark__log__level": "ERROR",
    "spark__sql__session__timeZone": "UTC",
    "spark__sql__shuffle__partitions": "1",
    "spark__sql__streaming__checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
SMALL_EXECUTORS = {
    "spark__executor__memory": "512m",
    "spark__executor__extraJavaOptions": SMALL_JAVA,
}
ROCKSDB = {
    "spark__sql__streaming__stateStore__providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


def java_options() -> str:
    """A JVM that is small, and uses the archive if it was made."""
    archive = _archive()
    usable = archive.exists() and archive.stat().st_size
    return f"{SMALL_JAVA} -XX:SharedArchiveFile={archive}" if usable else SMALL_JAVA


def with_archive() -> dict[str, str]:
    """The environment for a program that makes sessions of its own, so that they use it too."""
    submit = f"--conf 'spark.driver.defaultJavaOptions={java_options()}' pyspark-shell"
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": submit}


class ArchiveBeside:
    """The archive is made beside whatever runs now, unless it is there."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if _archive().exists():
            return
        self._directory = tempfile.TemporaryDirectory(dir=_archive().parent)
        self._process = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", THIS, "make", self._directory.name],
            cwd=Path(__file__).resolve().parents[3],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Until it is made, or known not to be."""
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """Made by then or not, nothing of it goes on."""
        if self._process is not None:
            if self._process.poll() is None:
                victims = kill_family(self._process.pid)
                self._process.wait()
                until(lambda: not victims & running())
            self._directory.cleanup()


def make(directory: Path) -> None:
    """Make the archive. Takes as long as a few starts."""
    # Its output ends when its JVM, which writes as it ends, has ended too.
    command = [sys.executable, "-m", THIS, "play", str(directory)]
    subprocess.run(command, capture_output=True, check=False)
    made = directory / "archive"
    made.touch()  # an empty one says that this Java makes none
    made.replace(_archive())


@functools.cache
def _archive() -> Path:
    """Where it is: named for the Java and the Spark whose classes it has."""
    with mock.patch.dict(os.environ):  # what finds its Java itself is to find it in the tests too
        java = Path(str(ensure_java()), "bin", "java").resolve()
    of = f"{java} {java.stat().st_mtime_ns} {pyspark.__version__}"
    return Path(sys.prefix, f"spark-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa")


class OneByOne(DataSourceStreamReader):
    """Each micro-batch has one number more."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"number": start["number"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["number"], end["number"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"number": pa.array([partition.value], pa.int64())})


class Numbers(DataSource):
    """A source in Python, which Spark asks in processes of its own."""

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: Any) -> OneByOne:  # noqa: N802
        return OneByOne()


class Count(StatefulProcessor):
    """How often a key has come."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        known = self.count.get()
        n = (known[0] if known else 0) + len(list(rows))
        self.count.update((n,))
        yield Row(number=n)

    def close(self) -> None: ...


def play(directory: Path) -> None:
    """What the tests' applications do, in a JVM that writes its classes down as it ends."""
    options = f"{SMALL_JAVA} -XX:ArchiveClassesAtExit={directory / 'archive'}"
    spark = session(
        "archive",
        **SMALL,
        **ROCKSDB,
        spark__master=LOCAL,
        spark__local__dir=str(directory),
        spark__driver__extraJavaOptions=options,
    )
    warm_up(spark, directory)
    spark.dataSource.register(Numbers)
    numbers = spark.readStream.format("Numbers").load()
    counted = numbers.groupBy("number").transformWithState(Count(), "number long", "Update", "None")
    writer = counted.writeStream.outputMode("Update").foreachBatch(lambda rows, _: rows.toArrow())
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
    while query.isActive and len(query.recentProgress) < 3:
        query.awaitTermination(1)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    {"make": make, "play": play}[sys.argv[1]](Path(sys.argv[2]))
