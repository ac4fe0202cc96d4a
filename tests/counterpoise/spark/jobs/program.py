"""The program of a driver: gets warm, and runs the jobs that it is sent (`drivers.py`)."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from counterpoise.logs.columns import integers
from tests.counterpoise.spark.jobs import pythons
from tests.counterpoise.spark.jobs.drivers import Ended, Job, Setup, Started, Warm
from tests.counterpoise.spark.small import CLUSTER, LOCAL, SMALL, SMALL_EXECUTORS
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.forked import run
from tests.processes import descendants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# The time limit for what a job leaves. The process of a source ends by itself after its query, and
# is waited for longer.
CLEAR_SECONDS = 15.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SOURCE_PROCESS = b"python_streaming_source_runner"


class OneByOne(DataSourceStreamReader):
    """Each micro-batch has one number more. PySpark 4.0 and 4.1 do not name the start."""

    number = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"number": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        self.number += 1
        return {"number": self.number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["number"], end["number"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([integers([partition.value])], names=["number"])


class Numbers(DataSource):
    """A source in Python, for which Spark starts processes."""

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: Any) -> OneByOne:  # noqa: N802
        return OneByOne()


def use_a_source(spark: SparkSession) -> None:
    """The first micro-batch of a source in Python takes as long as Spark's start."""
    spark.dataSource.register(Numbers)
    numbers = spark.readStream.format("Numbers").load()
    query = started(numbers.writeStream.foreachBatch(lambda rows, _: rows.toArrow()))
    while query.isActive and not query.recentProgress:
        query.awaitTermination(1)
    query.stop()


class Control:
    """The job's connection to the test."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, *queries: StreamingQuery) -> None:
        """Report that they run; stop them when told or when one ends, and raise its error."""
        self.wait(*queries)
        errors = [query.exception() for query in queries]
        for query in queries:
            query.stop()
        for error in filter(None, errors):
            raise error

    def wait(self, *queries: StreamingQuery) -> None:
        """Report that they run, and return when told or when one ends."""
        self._connection.send(Started())
        while all(query.isActive for query in queries) and not self._told():
            pass

    def _told(self) -> bool:
        if not self._connection.poll(0.1):
            return False
        try:
            self._connection.recv()
        except EOFError:
            os._exit(1)  # the tests have ended; a sink that holds would hold this program too
        return True


@dataclass(frozen=True)
class Surroundings:
    """The surroundings that a job finds and must not change."""

    environment: Mapping[str, str]
    directory: str
    handlers: Mapping[str, Any]
    threads: frozenset[str]

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            dict(os.environ),
            os.getcwd(),
            {one.name: signal.getsignal(one) for one in SIGNALS},
            # Threads of the bridge to the JVM come and go with calls.
            frozenset(one.name for one in threading.enumerate() if "counterpoise" in one.name),
        )

    def changed(self) -> list[str]:
        """The differences from before."""
        now = Surroundings.now()
        found = []
        for name, value in vars(self).items():
            if getattr(now, name) != value:
                found.append(f"{name}: {_difference(value, getattr(now, name))}")
        return found


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, Mapping):
        return f"{sorted(dict(after.items() ^ before.items()))} changed"
    return f"{after} instead of {before}"


def in_use(spark: SparkSession) -> list[str]:
    """What runs or is cached in the JVM, in any session."""
    found = [f"a query runs: {run}" for run in queries_of(spark)]
    cached = spark.sparkContext._jsc.getPersistentRDDs().size()
    if cached:
        found.append(f"{cached} RDDs are kept")
    if sources := source_processes():
        found.append(f"processes of sources run: {sorted(sources)}")
    return found


def queries_of(spark: SparkSession) -> list[str]:
    """The queries that run in the JVM, in any session."""
    return [str(run) for run in spark._jsparkSession.sharedState().activeStreamingQueries()]


def source_processes() -> set[int]:
    """The processes of this driver in which sources plan: one for each query."""
    found = [one for one in descendants(os.getpid()) if SOURCE_PROCESS in _command(one.pid)]
    # A launcher without a fork does nothing yet.
    return {
        one.stands_for or one.pid for one in found if one.stands_for or not _is_launcher(one.pid)
    }


def _is_launcher(pid: int) -> bool:
    return pythons.FLAGS.encode() in _command(pid).split(b"\0")


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Program:
    """The driver in its own process."""

    def __init__(self, connection: Connection, setup: Setup, directory: Path) -> None:
        self._connection = connection
        self._directory = directory
        self._spark = self._session(setup)
        if setup.first_query:
            use_a_source(self._spark)
        connection.send(Warm(pyspark.__version__))

    def _session(self, setup: Setup) -> SparkSession:
        from counterpoise.spark import session

        for name, value in setup.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if setup.directory is not None:
            os.chdir(setup.directory)
        executors = SMALL_EXECUTORS if setup.master == CLUSTER else {}
        config = {**SMALL, **executors, "spark__local__dir": str(self._directory), **setup.config}
        return session("tests", **config, spark__master=setup.master)

    def work(self) -> None:
        """Do jobs until there are no more, or the last one."""
        with contextlib.suppress(EOFError):
            while True:
                job: Job = self._connection.recv()
                if job.last:
                    self._run(job)
                    break
                self._connection.send(self._do(job))
        self._spark.stop()

    def _do(self, job: Job) -> Ended:
        """A job after which others may follow."""
        before = Surroundings.now()
        failure = None
        try:
            self._run(job)
        except Exception:
            failure = traceback.format_exc()
            print(failure, file=sys.stderr, flush=True)
        with contextlib.suppress(AssertionError):  # then the next job is told
            until(lambda: not in_use(self._spark), "nothing of the job runs", CLEAR_SECONDS)
        with contextlib.suppress(AssertionError):
            until(
                lambda: queries_of(self._spark) or not source_processes(),
                "no source's process runs",
            )
        return Ended(failure, (*in_use(self._spark), *before.changed()))

    def _run(self, job: Job) -> None:
        from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

        from counterpoise.spark import register

        module = importlib.import_module(job.module)
        spark = self._spark.newSession()
        # Otherwise a source that the earlier session knows would be refused in this one.
        spark._jsparkSession.setActiveSession(spark._jsparkSession)
        register(spark)
        # Its definitions go to executors by value, like those of a program.
        register_pickle_by_value(module)
        try:
            module.run(spark, job.settings, Control(self._connection))
        finally:
            unregister_pickle_by_value(module)
            spark.streams.removeListener(vars(spark)["_counterpoise_listener"])


def main() -> None:
    """A driver; and in each process that is forked for its Spark, what that is to do."""
    connection = Connection(int(sys.argv[1]))
    setup, directory = connection.recv()
    ours = setup.master == LOCAL and "PYSPARK_PYTHON" not in setup.environment
    request = pythons.forked(directory) if ours else None
    if request is None:
        Program(connection, setup, directory).work()
    else:
        connection.close()
        run(request)


if __name__ == "__main__":
    main()
