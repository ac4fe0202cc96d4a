"""The tests' application with a fenced sink: its rows go to Postgres, in the tasks that read them,
or into a lake.

A file says where it holds, as in the other application, but there are more places:

* `before`: in `foreachBatch`, before the sink is called;
* `inside P`: on an executor, in the transaction of partition P, after its rows were written;
* `inside`: the same, of any partition, so every task holds in its first partition;
* `commit`: in a lake, when all files are written, before the commit;
* `after`: in `foreachBatch`, after the sink, before Spark's commit log.

To stop it between Spark's commit log and its commit at the service, the process of its source is
stopped: only that process tells the service.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counterpoise.spark.application import Application, text
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.counterpoise.spark.small import LOCAL
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until
from tests.processes import find, kill_family, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from counterpoise.spark.sink.lake import LakeTable
    from tests.counterpoise.spark.jobs.program import Control


class FencedApplication(Application):
    """An application with a query of its own; alone in its driver, or one of several."""

    module = "tests.counterpoise.spark.sink.application"

    def __init__(
        self,
        name: str,
        directory: Path,
        url: str,
        queue: str,
        drivers: Drivers,
        results: Mapping[str, str],
        *,
        master: str = LOCAL,
        **options: Any,
    ) -> None:
        super().__init__(name, directory, url, queue, drivers, master=master, **options)
        self._results = results

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"results": dict(self._results)}

    def held(self) -> bool:
        """Whether it holds where it was told last."""
        return _is_at(text(self.home / "held"), text(self.home / "hold"))

    def stop_its_source(self) -> None:
        """SIGSTOP to the process of its source (of each, with several queues): it plans nothing and
        tells the service nothing.
        """
        self._signal_its_source(signal.SIGSTOP)

    def continue_its_source(self) -> None:
        """SIGCONT to it."""
        self._signal_its_source(signal.SIGCONT)

    def _signal_its_source(self, number: signal.Signals) -> None:
        for pid in text(self.home / "source").split():
            os.kill(int(pid), number)

    def kill_executor(self, partition: int) -> None:
        """SIGKILL to the executor that wrote this partition last, and to its Python workers."""
        jvm = [jvm for number, jvm in self._writers() if number == partition][-1]
        victims = kill_family(jvm)
        until(lambda: not victims & running(), f"the executor {jvm} is gone")
        (self.home / "held").unlink(missing_ok=True)

    def executors(self) -> set[int]:
        """The processes of Spark whose tasks have written."""
        return {jvm for _, jvm in self._writers()}

    def _writers(self) -> list[tuple[int, int]]:
        """In the order of writing: the partition, and the JVM."""
        lines = (self.home / "writers").read_text().splitlines()
        return [(int(partition), int(jvm)) for partition, jvm in map(str.split, lines)]

    def planned_batches(self) -> int:
        """The number of micro-batches in Spark's log of offsets."""
        return self._entries("offsets")

    def finished_batches(self) -> int:
        """The number of micro-batches in Spark's commit log."""
        return self._entries("commits")

    def _entries(self, log: str) -> int:
        return sum(one.name.isdecimal() for one in (self.home / "checkpoint" / log).glob("*"))

    def until_finished(self, batch: int) -> None:
        """Wait until this micro-batch is in Spark's commit log."""
        until(lambda: self.finished_batches() > batch, f"{self.name} has finished batch {batch}")


class FencedApplications(Application):
    """Several of them in one driver, which live and die together.

    Each has a query, a checkpoint and a hold of its own.
    """

    module = FencedApplication.module

    def __init__(
        self, name: str, directory: Path, drivers: Drivers, members: Sequence[FencedApplication]
    ) -> None:
        super().__init__(name, directory, "", "", drivers)
        self.members = {one.name: one for one in members}

    def settings(self) -> dict[str, Any]:
        return {"members": [one.settings() for one in self.members.values()]}

    def go_on(self) -> None:
        for one in self.members.values():
            one.go_on()

    def kill(self) -> None:
        super().kill()
        for one in self.members.values():
            one.kill()  # it has no driver, but may have held


def wait_if(home: Path, where: str) -> None:
    while _is_at(where, text(home / "hold")):
        (home / "held").write_text(where)
        time.sleep(0.02)
    (home / "held").unlink(missing_ok=True)


def _is_at(where: str, hold: str) -> bool:
    """Whether `hold` means this place. "inside" means the inside of each partition."""
    return bool(where) and hold in (where, where.partition(" ")[0])


class WriteEvents:
    """Runs on the executors, in the transaction of the fence."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.name = name

    def __call__(self, connection: Any, rows: Any, scope: Any) -> None:
        from sqlalchemy import text

        connection.execute(
            text(
                "INSERT INTO events (application, batch, partition, position, epoch, key, value)"
                " VALUES (:application, :batch, :partition, :position, :epoch, :key, :value)"
            ),
            [
                {
                    "application": self.name,
                    "batch": scope.batch_id,
                    "partition": scope.partition,
                    "position": int(row["position"]),
                    "epoch": scope.epoch,
                    "key": row["key"],
                    "value": int(row["value"]),
                }
                for row in rows.select(["position", "key", "value"]).to_pylist()
            ],
        )
        daemon = find(os.getppid())  # a process of Spark, whose parent is the executor
        assert daemon is not None
        with (self.home / "writers").open("a") as writers:
            writers.write(f"{scope.partition} {daemon.parent}\n")
        wait_if(self.home, f"inside {scope.partition}")


def fenced_sink(
    home: Path, name: str, results: Mapping[str, str]
) -> Callable[[DataFrame, int], None]:
    """The sink into `results`: a database, or a directory with a lake."""
    from counterpoise.spark import FencedSink

    if "database" in results:
        write = WriteEvents(home, name)
        return FencedSink(
            results["database"],
            write,
            name="events",
            confirm_seconds=240,
            idle_seconds=600,  # a test may hold it inside of a transaction for long
        )
    from pyspark.sql.functions import lit

    from tests.counterpoise.spark.sink.lakes import LAKES

    place = LAKES[results["lake"]](Path(results["directory"]))
    sink = place.sink("events", confirm_seconds=240)
    target: Any = sink._target
    target._table = HoldingTable(target._table, home)

    def write_all(batch: DataFrame, batch_id: int) -> None:
        sink(batch.withColumns({"application": lit(name), "batch": lit(batch_id)}), batch_id)

    return write_all


class HoldingTable:
    """A table of a lake that may hold before a commit."""

    def __init__(self, table: LakeTable, home: Path) -> None:
        self.key, self.remedy, self.forget = table.key, table.remedy, table.forget
        self._table = table
        self._home = home

    def snapshot(self, *of: Any) -> Any:
        snapshot: Any = self._table.snapshot(*of)
        commit = snapshot.commit

        def commit_later(*what: Any) -> None:
            wait_if(self._home, "commit")
            commit(*what)

        snapshot.commit = commit_later
        return snapshot


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself, or several."""
    control.run(*(start(spark, one) for one in settings.get("members", [settings])))


def start(spark: SparkSession, settings: Mapping[str, Any]) -> StreamingQuery:
    """The query of one application."""
    home = Path(settings["home"])
    sink = fenced_sink(home, settings["name"], settings["results"])

    def write(batch: Any, batch_id: int) -> None:
        wait_if(home, "before")
        sink(batch, batch_id)
        wait_if(home, "after")

    # Keys that end in 3 are filtered out: whole ranges of them leave no row.
    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    return started_at(home, messages.where("not key like '%3'").writeStream.foreachBatch(write))


def started_at(home: Path, writer: DataStreamWriter, queues: int = 1) -> StreamingQuery:
    """Start it with a checkpoint in `home`, and note there which processes are its sources."""
    from tests.counterpoise.spark.jobs.program import source_processes

    others = source_processes()
    query = started(writer.option("checkpointLocation", str(home / "checkpoint")))
    # On a slow machine Spark gives the first one up, and starts another (`worker_starts`).
    until(lambda: len(source_processes() - others) == queues, "each source has one process")
    (home / "source").write_text(" ".join(map(str, source_processes() - others)))
    return query
