"""The tests' application with a fenced sink: its rows go to Postgres, in the tasks that read them.

Where it holds is told by a file, as in the other application, but there are more places:

* `before`: in `foreachBatch`, before the sink is called;
* `inside P`: on an executor, in the transaction of partition P, after its rows were written;
* `inside`: the same, of any partition, so that every task holds in its first;
* `after`: in `foreachBatch`, after the sink, before Spark's commit log.

To stop it between Spark's commit log and its commit at the service it runs with a trigger interval
and without Spark's events: then positions are committed when Spark asks for more, and not before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.counterpoise.spark.application import SMALL, Application, run_until_told, until


class FencedApplication(Application):
    """`interval_seconds`: its trigger's. With one, it hears none of Spark's events."""

    module = "tests.counterpoise.spark.sink.application"

    def __init__(
        self, name: str, directory: Path, url: str, queue: str, database: str, **options: object
    ) -> None:
        super().__init__(name, directory, url, queue, drain_seconds=None, **options)
        (self.home / "database").write_text(database)

    def start(self, interval_seconds: float = 0) -> FencedApplication:
        (self.home / "interval").write_text(str(interval_seconds))
        super().start()
        return self

    def kill(self) -> None:
        """SIGKILL to all of it; Spark's Python workers have left the process group."""
        assert self.process is not None
        victims = _family(self.process.pid)
        for victim in victims:
            _kill(victim)
        super().kill()
        until(lambda: not any(map(_lives, victims)), f"{self.name} is gone")

    def finished_batches(self) -> int:
        """How many micro-batches are in Spark's commit log."""
        commits = self.home / "checkpoint" / "commits"
        return len([one for one in commits.glob("*") if one.name.isdecimal()])

    def until_finished(self, batch: int) -> None:
        """Wait until this micro-batch is in Spark's commit log."""
        until(lambda: self.finished_batches() > batch, f"{self.name} has finished batch {batch}")


def _family(root: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(status.parent.name))
    family, found = [], [root]
    while found:
        family.append(one := found.pop())
        found += children.get(one, [])
    return family


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_if(home: Path, where: str) -> None:
    hold = home / "hold"
    while _text(hold) in (where, where.partition(" ")[0]):
        (home / "held").touch()
        time.sleep(0.02)
    (home / "held").unlink(missing_ok=True)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


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
        wait_if(self.home, f"inside {scope.partition}")


def run(settings: Mapping[str, Any]) -> None:
    """The application itself."""
    from counterpoise.spark import FencedSink, session

    home = Path(settings["home"])
    name = settings["name"]
    spark = session(name, **SMALL, spark__master="local[2]", spark__local__dir=str(home / "spark"))
    interval = float((home / "interval").read_text())
    if interval:
        spark.streams.removeListener(vars(spark)["_counterpoise_listener"])
    sink = FencedSink(
        (home / "database").read_text(), WriteEvents(home, name), name="events", confirm_seconds=30
    )

    def write(batch: Any, batch_id: int) -> None:
        wait_if(home, "before")
        sink(batch, batch_id)
        wait_if(home, "after")

    # Keys that end in 3 are filtered out: whole ranges of them leave no row.
    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    query = (
        messages.where("not key like '%3'")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(processingTime=f"{interval} seconds")
        .start()
    )

    run_until_told(query, home)
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.stdin.readline()))
