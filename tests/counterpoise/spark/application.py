"""A PySpark application for the tests, and what drives it: `Application` starts it as a process.

Its sink appends every message to a journal, one line of JSON per micro-batch. A file tells it what
to do, so that a test can stop it at a given place: while `hold` exists the sink waits, before or
after it has written.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from counterpoise.demo.application import warm_up
from tests.counterpoise.spark.small import CLUSTER, LOCAL, SMALL, SMALL_EXECUTORS, java_options
from tests.processes import kill_family, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 30.0
# What a prepared application is told.
GO = "go"


def until(condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    """Wait until the condition holds; fail when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    print(f"{time.monotonic() - deadline + seconds:7.2f} s until {what}")


@dataclass(frozen=True)
class Row:
    """One message as an application's sink got it."""

    application: str
    batch: int
    partition: int
    position: int
    epoch: int
    key: str | None
    value: str


class Application:
    """The application as a process of its own, with its JVM in its process group."""

    module = "tests.counterpoise.spark.application"
    patience_seconds = 240.0

    def __init__(
        self,
        name: str,
        directory: Path,
        url: str,
        queue: str,
        *,
        master: str = LOCAL,
        drain_seconds: float | None = None,
        **options: Any,
    ) -> None:
        """`drain_seconds`: drain on SIGTERM, within so much time. `options` are the source's."""
        self.name = name
        self.master = master
        self.drain_seconds = drain_seconds
        self.home = directory / name
        self.home.mkdir(parents=True, exist_ok=True)
        self.options = {"url": url, "queue": queue, "clientName": name, **options}
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._prepared: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Start what is to be launched next, up to where its query begins; it may live beside this.

        A Spark takes some ten seconds to start and more for its first micro-batch: with this they
        pass while the test does something else.
        """
        if self._prepared is None:
            self._prepared = self._spawn(prepared=True)

    def start(self) -> Application:
        """Start it and wait until its query runs."""
        self.launch()
        return self.until_started()

    def launch(self) -> None:
        """Start it, or let go on what was prepared, and do not wait."""
        (self.home / "started").unlink(missing_ok=True)
        if self._prepared is None:
            self.process = self._spawn(prepared=False)
            return
        self.process, self._prepared = self._prepared, None
        _tell(self.process, GO)

    def _spawn(self, *, prepared: bool) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if "COUNTERPOISE" not in key},
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        }
        settings = {
            "name": self.name,
            "home": str(self.home),
            "master": self.master,
            "options": {key: str(value) for key, value in self.options.items()},
            "drain_seconds": self.drain_seconds,
            "prepared": prepared,
            "java_options": java_options(),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        _tell(process, json.dumps(settings))
        return process

    def until_started(self) -> Application:
        """Wait until its query runs; fail with what it said if it ends instead."""
        until(
            lambda: (self.home / "started").exists() or self.over(),
            f"{self.name} started",
            self.patience_seconds,
        )
        assert not self.over(), f"{self.name} ended:\n{self.said()[-8000:]}"
        return self

    def over(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def hold(self, where: str) -> None:
        """Let the sink wait, `before` or `after` it writes."""
        (self.home / "hold").write_text(where)

    def held(self) -> bool:
        return (self.home / "held").exists()

    def go_on(self) -> None:
        (self.home / "hold").unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """Everything its sink got, over all its lives, in order."""
        journal = self.home / "journal"
        # What follows the last end of a line is being written.
        *lines, _ = journal.read_text().split("\n") if journal.exists() else [""]
        return [Row(self.name, *row) for line in lines for row in json.loads(line)]

    def stop(self) -> int:
        """`query.stop()`, and the end of the application. Returns its exit code."""
        if self.process is None:
            return 0
        self.go_on()
        process, self.process = self.process, None
        assert process.stdin is not None
        process.stdin.close()
        try:
            return process.wait(STOP_SECONDS)
        finally:
            self._sweep(process)

    def terminate(self) -> None:
        """SIGTERM, to the Python process alone."""
        assert self.process is not None
        self.process.terminate()

    def ended(self) -> int:
        """Wait until it has ended by itself. Returns its exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            return process.wait(STOP_SECONDS)
        finally:
            self._sweep(process)
            assert process.stdin is not None
            process.stdin.close()

    def kill(self) -> None:
        """SIGKILL to all of it: driver, JVM, and the Python workers, which left their group."""
        if self.process is not None:
            process, self.process = self.process, None
            self._kill(process)
        (self.home / "held").unlink(missing_ok=True)

    def end(self) -> None:
        """Leave nothing of it, nor of what was prepared."""
        self.kill()
        if self._prepared is not None:
            process, self._prepared = self._prepared, None
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        victims = kill_family(process.pid)
        self._sweep(process)
        until(lambda: not victims & running(), f"{self.name} is gone")
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    @staticmethod
    def _sweep(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


class Sink:
    """Runs in the application: appends the micro-batch to the journal, and holds where told."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, batch: Any, batch_id: int) -> None:
        columns = ("partition", "position", "epoch", "key", "value")
        table = batch.select(*columns).toArrow()
        rows = [
            [batch_id, partition, int(position), epoch, key, value.decode()]
            for partition, position, epoch, key, value in zip(
                *(table.column(name).to_pylist() for name in columns), strict=True
            )
        ]
        self.put(rows)

    def put(self, rows: list[list[Any]]) -> None:
        """Append rows: batch, partition, position, epoch, key, value.

        A query that owns nothing yet has an empty first micro-batch, which is not to be held.
        """
        if not rows:
            return
        self.wait_if("before")
        with (self.home / "journal").open("ab", buffering=0) as journal:
            journal.write(json.dumps(rows).encode() + b"\n")  # whole, also when killed
        self.wait_if("after")

    def wait_if(self, where: str) -> None:
        hold = self.home / "hold"
        while hold.exists() and hold.read_text() == where:
            (self.home / "held").touch()
            time.sleep(0.02)
        (self.home / "held").unlink(missing_ok=True)


def run_until_told(query: Any, home: Path) -> None:
    """Say that the query runs; stop it when standard input ends, raise what ends it before."""
    told = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    (home / "started").touch()
    while query.isActive and not told.wait(0.1):
        pass
    if error := query.exception():
        raise error
    query.stop()


def own_spark_home(home: Path) -> None:
    """Workers leave their directories in Spark's home: give this application one of its own."""
    spark_home = home / "spark-home"
    if not spark_home.exists():
        spark_home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            (spark_home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(spark_home)


def session_for(settings: Mapping[str, Any], **config: str) -> SparkSession:
    """The application's session, with the master that it was told; `config` goes before the rest.

    If it was prepared this takes until it is told to go on.
    """
    from counterpoise.spark import session

    home = Path(settings["home"])
    executors: dict[str, str] = {}
    if settings["master"] == CLUSTER:
        own_spark_home(home)
        executors = SMALL_EXECUTORS
    spark = session(
        settings["name"],
        **{
            **SMALL,
            **executors,
            "spark__local__dir": str(home / "spark"),
            "spark__driver__extraJavaOptions": settings["java_options"],
            **config,
        },
        spark__master=settings["master"],
    )
    if settings["prepared"]:
        warm_up(spark, Path(tempfile.mkdtemp(dir=home)))
        if sys.stdin.readline() != f"{GO}\n":
            sys.exit()
    return spark


def run(settings: Mapping[str, Any]) -> None:
    """The application itself."""
    from counterpoise.spark import drain_on_sigterm

    home = Path(settings["home"])
    spark = session_for(settings)
    if settings["drain_seconds"] is not None:
        drain_on_sigterm(spark, settings["drain_seconds"])
    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    query = (
        messages.writeStream.foreachBatch(Sink(home))
        .option("checkpointLocation", str(home / "checkpoint"))
        .start()
    )

    run_until_told(query, home)
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.stdin.readline()))
