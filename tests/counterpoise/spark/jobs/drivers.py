"""Warm drivers: Sparks that run the applications of tests, one after the other.

A Spark takes some ten seconds until its first micro-batch is done; most of that is loading classes.
So a test does not start a Spark. It gets one that is warm.

A *driver* is a Python process with a JVM and a Spark session that has run one query (`program.py`).
It runs one job at a time. A *job* is one life of an application: start this query, stop it, report.
A test sees it as an `Application`; the work is the function `run` of the application's module.

*Shared by a driver's jobs*: the process, the JVM, the Spark context and Spark's Python workers.
*Of each job alone*: a Spark session, and with it settings, the registered source, the listener and
the queries. An application that comes back gets another driver than before, so that only its
checkpoint connects its two lives.

*A job leaves nothing behind*: no running query in any session, no process of a source, no cached
data; environment, working directory, signal handlers and our threads are as before. The driver
checks this after each job. If something is left, the test fails (`LeftBehind`) and the driver is
killed.

*A driver is not used again* when it was killed, when it died, when a job left something, or when
a job handles SIGTERM: such a job ends the program, so tests see a real exit code. When no other
driver is free, `Drivers` starts one at once, which gets warm while the test goes on.

A `Setup` is what must be settled before a JVM starts: a cluster, Spark's pages, another Python. An
application with a setup has a driver of its own for each of its lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.counterpoise.spark.small import LOCAL
from tests.counterpoise.spark.waiting import until
from tests.processes import kill_family, running

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = "tests.counterpoise.spark.jobs.program"
# The limit for a machine that is busy with other work.
WARM_SECONDS = 400.0
STOP_SECONDS = 240.0


@dataclass(frozen=True)
class Setup:
    """The settings of a driver that must be made before it starts.

    `config`: settings of Spark, with `__` for dots. `environment`: None removes a variable.
    `directory`: its working directory, if that matters. `first_query`: whether it runs one to get
    warm.
    """

    master: str = LOCAL
    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    directory: Path | None = None
    first_query: bool = True


@dataclass(frozen=True)
class Job:
    """`module`: its function `run` is the job. `last`: the driver ends with it, like a program."""

    module: str
    settings: Mapping[str, Any]
    last: bool = False


STOP = "stop"
"""What a job is told to end it."""


@dataclass(frozen=True)
class Warm:
    """The driver is ready for its first job. `pyspark`: the version that it runs."""

    pyspark: str


class Started:
    """The query of the job runs."""


@dataclass(frozen=True)
class Ended:
    """The job has ended, and was not the last. `failure`: its traceback, if it has failed.

    `left`: what it has left behind.
    """

    failure: str | None
    left: tuple[str, ...]


class LeftBehind(AssertionError):
    """A job has left something in its driver, for the next one to find."""


class Driver:
    """One driver, seen from the tests."""

    def __init__(self, directory: Path, setup: Setup, program: str = PROGRAM) -> None:
        """Starts it; `warm` tells when it is warm. It lives in `directory`, and ends with this
        process.

        It gets no Counterpoise setting from the environment, and imports the same PySpark as this
        process: whatever stands in the path stays there, before the tests.
        """
        directory.mkdir(parents=True)
        self.log = directory / "log"
        self._connection, theirs = Pipe()
        environment = {k: v for k, v in os.environ.items() if "COUNTERPOISE" not in k}
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        with self.log.open("ab") as log, contextlib.closing(theirs):
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "PYTHONPATH": path, "TMPDIR": str(directory)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.is_warm = False
        self._gone = False
        self._started = False
        self._ended: Ended | None = None
        self._said_before = 0
        self._send((setup, directory))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def connection(self) -> Connection:
        """Readable when there is a message."""
        return self._connection

    def until_warm(self) -> None:
        """Wait until it is warm. If it ends instead, raises AssertionError with its output."""

        def is_settled() -> bool:
            self.listen()
            return self.is_warm or self.process.poll() is not None

        until(is_settled, "the driver is warm", WARM_SECONDS)
        assert self.is_warm, self.log.read_text(errors="replace")

    def start(self, job: Job) -> None:
        """Begin a job; the driver must be warm and idle."""
        assert self.is_warm, "not warm"
        self._started, self._ended = False, None
        self._said_before = self.log.stat().st_size
        self._send(job)

    def listen(self, seconds: float = 0.0) -> None:
        """Receive its messages; wait for so long if there is none."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while not self._gone and self._connection.poll(seconds):
                match self._connection.recv():
                    case Warm(pyspark):
                        assert pyspark == version("pyspark"), pyspark
                        self.is_warm = True
                    case Started():
                        self._started = True
                    case Ended() as ended:
                        self._ended = ended
                seconds = 0.0

    def started(self) -> bool:
        """Whether the query of the job runs, or has run."""
        self.listen()
        return self._started

    def over(self) -> bool:
        """Whether the job has ended, or the driver with it."""
        self.listen()
        return self._ended is not None or self.process.poll() is not None

    def stop(self) -> None:
        """Tell the job to stop."""
        if not self.over():
            self._send(STOP)

    def until_job_ended(self) -> Ended:
        """Wait until a job that is not the last has ended. A job that takes too long is killed."""
        try:
            until(self.over, "the job has ended", STOP_SECONDS)
        finally:
            if self._ended is None:
                self.kill()
        assert self._ended is not None, f"the driver died with {self.process.returncode}"
        return self._ended

    def said(self) -> bytes:
        """The job's output, on standard output and error."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read()

    def until_ended(self) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to all its processes: driver, JVM, and the Python workers, which left their
        group.
        """
        if self._gone:
            return
        victims = kill_family(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)
        until(lambda: not victims & running(), f"driver {self.pid} is gone")
        self._connection.close()
        self._gone = True

    def _send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died; its user will notice
            self._connection.send(message)


class Drivers:
    """Has `count` drivers when `replace` is called, and more in use. The first call begins.

    `program`: the module that they run.
    """

    def __init__(self, directory: Path, count: int, program: str = PROGRAM) -> None:
        self._directory = directory
        self._count = count
        self._program = program
        self._made = 0
        self._free: list[Driver] = []
        """Warm, or getting warm; the one that is free for longest comes first."""
        self._taken: set[Driver] = set()

    def replace(self) -> None:
        """Start the missing drivers; does not wait for them."""
        while len(self._free) + len(self._taken) < self._count:
            self._free.append(self.own(Setup()))

    def own(self, setup: Setup) -> Driver:
        """A driver outside the pool. The caller ends it."""
        self._made += 1
        return Driver(self._directory / str(self._made), setup, self._program)

    def take(self, other_than: Driver | None = None) -> Driver:
        """A warm driver, until `give_back` or `lose`. Waits for one if there is none.

        Raises AssertionError with a driver's output if drivers do not get warm.
        """
        while True:
            self._drop_dead()
            usable = [driver for driver in self._free if driver is not other_than]
            for driver in usable:
                driver.listen()
                if driver.is_warm:
                    self._free.remove(driver)
                    self._taken.add(driver)
                    return driver
            if not usable:
                self._free.append(self.own(Setup()))
                continue
            ready = wait([driver.connection for driver in usable], WARM_SECONDS)
            assert ready, f"no driver gets warm: {usable[0].log.read_text(errors='replace')}"

    def give_back(self, driver: Driver, ended: Ended) -> None:
        """After a job. If it has left something: kills the driver and raises LeftBehind."""
        if ended.left:
            self.lose(driver)
            raise LeftBehind(", ".join(ended.left))
        self._taken.remove(driver)
        self._free.append(driver)
        self._drop_surplus()

    def lose(self, driver: Driver) -> None:
        """Kill it if it lives. If none is free, another one starts, unless it was `own`."""
        driver.kill()
        if driver in self._taken:
            self._taken.remove(driver)
            if not self._free:
                self._free.append(self.own(Setup()))

    def close(self) -> None:
        """End them all."""
        for driver in (*self._free, *self._taken):
            driver.kill()

    def _drop_dead(self) -> None:
        for driver in [one for one in self._free if one.process.poll() is not None]:
            self._free.remove(driver)
            driver.kill()
            died = f"a driver has died:\n{driver.log.read_text(errors='replace')[-5000:]}"
            assert driver.is_warm, died  # the next one would, too
            print(died)

    def _drop_surplus(self) -> None:
        while len(self._free) + len(self._taken) > self._count and self._free:
            self._free.pop(0).kill()
