"""A PySpark application for the tests, and its control: `Application`.

Its sink appends every message to a journal, one line of JSON per micro-batch. A test controls it by
a file and can stop it at a given place: while `hold` exists the sink waits, before or after it has
written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.counterpoise.spark.jobs.drivers import WARM_SECONDS, Driver, Drivers, Job, Setup
from tests.counterpoise.spark.small import CLUSTER, LOCAL, spark_home
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.counterpoise.spark.jobs.program import Control


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
    """The application: each of its lives is a job of a driver."""

    module = "tests.counterpoise.spark.application"
    patience_seconds = WARM_SECONDS

    def __init__(
        self,
        name: str,
        directory: Path,
        url: str,
        queue: str,
        drivers: Drivers,
        *,
        master: str = LOCAL,
        drain_seconds: float | None = None,
        **options: Any,
    ) -> None:
        """`drain_seconds`: drain on SIGTERM, within so much time. `options` are the source's."""
        self.name = name
        self.home = directory / name
        self.home.mkdir(parents=True, exist_ok=True)
        self.options = {"url": url, "queue": queue, "clientName": name, **options}
        self._drivers = drivers
        self._master = master
        self._drain_seconds = drain_seconds
        self._driver: Driver | None = None
        self._last: Driver | None = None
        self._prepared: Driver | None = None
        self.ends_driver = drain_seconds is not None
        self._ends_driver = False
        self._said = b""

    def settings(self) -> dict[str, Any]:
        """The settings of its job."""
        return {
            "name": self.name,
            "home": str(self.home),
            "options": {key: str(value) for key, value in self.options.items()},
            "drain_seconds": self._drain_seconds,
        }

    def setup(self) -> Setup | None:
        """The setup of its drivers; None: the drivers that all tests use."""
        return None if self._master == LOCAL else on_a_cluster(self.home)

    def prepare(self) -> None:
        """Start a driver for its next life in the background, so that it gets warm."""
        if (setup := self.setup()) is None:
            self._drivers.replace()
        elif self._prepared is None:
            self._prepared = self._drivers.own(setup)

    def start(self) -> Self:
        """Start it and wait until its query runs."""
        self.launch()
        return self.until_started()

    def launch(self) -> None:
        """Start it and do not wait."""
        if self.setup() is not None:
            self.prepare()
        if self._prepared is not None:
            driver, self._prepared = self._prepared, None
            driver.until_warm()
            self._ends_driver = True
        else:
            driver = self._drivers.take(other_than=self._last)
            self._ends_driver = self.ends_driver
        self._driver = self._last = driver
        driver.start(Job(self.module, self.settings(), self._ends_driver))

    def until_started(self) -> Self:
        """Wait until its query runs; if it ends instead, fail with its output."""
        driver = self._driver
        assert driver is not None
        until(
            lambda: driver.started() or driver.over(),
            f"{self.name} started",
            self.patience_seconds,
        )
        assert not self.over(), f"{self.name} ended:\n{self.said()[-8000:]}"
        return self

    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._driver is not None

    def over(self) -> bool:
        """Whether it does not run, or has ended by itself."""
        return self._driver is None or self._driver.over()

    def said(self) -> str:
        """All its output, in all its lives."""
        now = self._driver.said() if self._driver is not None else b""
        return (self._said + now).decode(errors="replace")

    def hold(self, where: str) -> None:
        """Let the sink wait, `before` or `after` it writes."""
        (self.home / "hold").write_text(where)

    def held(self) -> bool:
        return (self.home / "held").exists()

    def go_on(self) -> None:
        (self.home / "hold").unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """Everything that its sink got, over all its lives, in order."""
        journal = self.home / "journal"
        # Text after the last line end is still being written.
        *lines, _ = journal.read_text().split("\n") if journal.exists() else [""]
        return [Row(self.name, *row) for line in lines for row in json.loads(line)]

    def stop(self) -> int:
        """`query.stop()`, and the end of the application. Returns its exit code.

        Raises LeftBehind if it has left something in a driver that others will use.
        """
        if self._driver is None:
            return 0
        self.go_on()
        self._driver.stop()
        if self._ends_driver:
            return self.ended()
        ended = self._driver.until_job_ended()
        self._drivers.give_back(self._leave(), ended)
        return 0 if ended.failure is None else 1

    def drained_from_outside(self) -> None:
        """Wait until its query has ended because an administrator drained it."""
        until(self.over, f"{self.name} ends by itself")
        assert "drained by an administrator" in self.said()
        assert "Traceback" not in self.said()
        assert self.stop() == 0

    def unbound_from_outside(self) -> None:
        """Wait until its query has failed because an administrator unbound it."""
        until(self.over, f"{self.name} ends by itself")
        assert "an administrator has unbound this consumer" in self.said()
        assert self.stop() == 1

    def terminate(self) -> None:
        """SIGTERM, to the Python process alone."""
        assert self._driver is not None
        self._driver.process.terminate()

    def ended(self) -> int:
        """Wait until it has ended by itself. Returns its exit code."""
        assert self._driver is not None
        code = self._driver.until_ended()
        self._drivers.lose(self._leave())
        return code

    def kill(self) -> None:
        """SIGKILL to all its processes: driver, JVM, and the Python workers, which left their
        group.
        """
        if self._driver is not None:
            self._driver.kill()
            self._drivers.lose(self._leave())
        (self.home / "held").unlink(missing_ok=True)

    def end(self) -> None:
        """End all its processes, and those that were prepared."""
        self.kill()
        if self._prepared is not None:
            self._prepared.kill()
            self._prepared = None

    def _leave(self) -> Driver:
        assert self._driver is not None
        driver, self._driver = self._driver, None
        self._said += driver.said()
        return driver


class Sink:
    """Runs in the application: appends the micro-batch to the journal, and holds when told."""

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

        A query that owns nothing yet has an empty first micro-batch, which is not held.
        """
        if not rows:
            return
        self.wait_if("before")
        with (self.home / "journal").open("ab", buffering=0) as journal:
            journal.write(json.dumps(rows).encode() + b"\n")  # complete, even after a kill
        self.wait_if("after")

    def wait_if(self, where: str) -> None:
        while text(self.home / "hold") == where:
            (self.home / "held").touch()
            time.sleep(0.02)
        (self.home / "held").unlink(missing_ok=True)


def text(path: Path) -> str:
    """What is in the file; nothing if it is not there, or not any more."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def on_a_cluster(home: Path) -> Setup:
    """For an application whose executors are processes of their own."""
    # Workers write their directories into Spark's home, so it has one of its own.
    return Setup(CLUSTER, environment={"SPARK_HOME": str(spark_home(home))})


def run(spark: SparkSession, settings: Mapping[str, Any], control: Control) -> None:
    """The application itself."""
    from counterpoise.spark import drain_on_sigterm

    home = Path(settings["home"])
    if settings["drain_seconds"] is not None:
        drain_on_sigterm(spark, settings["drain_seconds"], end_seconds=150)
    messages = spark.readStream.format("counterpoise").options(**settings["options"]).load()
    query = started(
        messages.writeStream.foreachBatch(Sink(home)).option(
            "checkpointLocation", str(home / "checkpoint")
        )
    )
    control.run(query)
