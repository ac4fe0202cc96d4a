"""Shared by the examples: their options, and with `--mock` all servers on this machine.

An application of your own does not need this module. `main` runs an example's `application` with a
running service, or its `play` on a `Stage`: a Postgres, the service, and the applications as
processes, all on 127.0.0.1, in a temporary directory. They end with the example.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from broker.demo.processes import session as processes_of
from counterpoise import Client, Publisher
from counterpoise.errors import ServiceUnavailable

# Spark settings for several applications on one machine. Do not use them on a cluster.
SMALL = {
    "spark__master": "local[2]",
    "spark__driver__memory": "512m",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__host": "127.0.0.1",
    "spark__driver__extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__log__level": "ERROR",
    "spark__sql__shuffle__partitions": "1",
}
WAIT_SECONDS = 400.0
LOOK_SECONDS = 0.4
# The machine was too busy for Python to start in time (docs/spark-options.md).
NOT_CONNECTED = "Python worker failed to connect back"


@dataclass(frozen=True)
class Given:
    """The options of the command line for an application."""

    service: str
    queue: str
    name: str
    directory: Path

    @property
    def checkpoint(self) -> str:
        """The checkpoint location; each application needs its own."""
        return str(self.directory / f"checkpoint-{self.name}")


class Stage:
    """The service, a queue, a publisher, and applications that join and leave."""

    def __init__(self, queue: str, directory: Path, ending: ExitStack) -> None:
        self.queue = queue
        self.directory = directory
        self.results = ""  # URL of a database for results, once `open` was called
        self._began = time.monotonic()
        self._ending = ending
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Settings for the user's own service do not apply here.
        self._environment = {k: v for k, v in os.environ.items() if "COUNTERPOISE" not in k}

    def open(self, **queue: Any) -> None:
        """Start Postgres and the service, and create the queue."""
        import psycopg

        from broker.postgres.embedded import EmbeddedPostgres

        database = self._ending.enter_context(EmbeddedPostgres(self.directory / "data"))
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE DATABASE results")
        self.results = database.rpartition("/")[0] + "/results"
        self._environment["COUNTERPOISE_SINK_URL"] = self.results
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.service = f"http://127.0.0.1:{port}"
        command = ["-m", "broker.demo.service", "serve", "--port", str(port)]
        log = self._ending.enter_context(self._log("service").open("wb"))
        self._environment["COUNTERPOISE_DATABASE_URL"] = database
        self._spawn([*command, "--log-level", "warning"], log, log)
        del self._environment["COUNTERPOISE_DATABASE_URL"]
        self.client = self._ending.enter_context(Client(self.service))
        self.until(self._answers, "the service is up")
        # Short times, for a short example.
        made = self.client.create_queue(
            self.queue, **{"rebalance_delay": 0.5, "max_handoff_time": 60.0, **queue}
        )
        self.say(f"the queue {made.name} has {made.partition_count} partitions; log: {made.log}")
        self.publisher = self._ending.enter_context(Publisher(self.queue, url=self.service))

    def start(self, *names: str) -> None:
        """Start the example's application under these names, and wait until they share evenly."""
        for name in names:
            self._launch(name)
        self.until(self._is_even, f"{' and '.join(self._running)} own the same number each")

    def leave(self, name: str) -> None:
        """SIGTERM: the application hands everything over, and ends with exit code 0."""
        process = self._running.pop(name)
        process.terminate()
        self.until(lambda: process.poll() is not None, f"{name} was told to end, and has left")
        if process.returncode != 0:
            self._fail(name, process)
        self.until(self._is_even, f"{' and '.join(self._running)} owns everything")

    def kill(self, name: str) -> None:
        """SIGKILL for the application and all its children."""
        _kill(self._running.pop(name))
        self.say(f"{name} is killed; its partitions wait until its lease expires")
        self.until(self._is_even, f"{' and '.join(self._running)} owns everything")

    def until_done(self) -> None:
        """Wait until all published messages are processed and committed."""
        self.publisher.flush()
        self.until(
            lambda: all(one.lag == 0 for one in self.client.partitions(self.queue)),
            "all published messages are processed",
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for the condition, then print `what`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            for name, process in list(self._running.items()):
                if process.poll() is None:
                    continue
                if NOT_CONNECTED not in self._log(name).read_text(errors="replace"):
                    self._fail(name, process)
                self.say(
                    f"{name} is started again, because Spark waits for Python ten seconds only"
                )
                self._launch(name)
            if time.monotonic() > deadline:
                raise SystemExit(f"Not within {WAIT_SECONDS:g} s: {what}")
            time.sleep(LOOK_SECONDS)
        self.say(what)

    def say(self, what: str) -> None:
        """Print a line with the time."""
        print(f"{time.monotonic() - self._began:5.1f} s  {what}", flush=True)

    def _launch(self, name: str) -> None:
        options = ["--service", self.service, "--queue", self.queue]
        options += ["--name", name, "--directory", str(self.directory)]
        # Its output is shown; Spark's log goes to a file.
        log = self._ending.enter_context(self._log(name).open("wb"))
        self._running[name] = self._spawn([sys.argv[0], *options], None, log)

    def _is_even(self) -> bool:
        """Whether the running applications own all partitions, each the same number."""
        flows = {one.flow_id: one.client_name for one in self.client.flows(self.queue)}
        owners = [flows.get(one.owner or "") for one in self.client.partitions(self.queue)]
        shares = {owners.count(name) for name in self._running}
        return len(shares) == 1 and 0 not in shares and set(owners) == set(self._running)

    def _answers(self) -> bool:
        with suppress(ServiceUnavailable):
            self.client.queues()
            return True
        return False

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _fail(self, name: str, process: subprocess.Popen[bytes]) -> NoReturn:
        said = self._log(name).read_text(errors="replace").splitlines()
        print(*said[-15:], sep="\n", file=sys.stderr)
        raise SystemExit(f"{name} has ended with exit code {process.returncode}")

    def _spawn(self, arguments: list[str], output: Any, log: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=log,
            env=self._environment,
            start_new_session=True,
        )
        self._ending.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    while running := list(processes_of(process.pid)):
        for one in running:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.wait()


def verdict(is_kept: bool, what: str) -> None:
    """Print whether the example's promise was kept; if not, end with exit code 1."""
    print(f"{'KEPT' if is_kept else 'BROKEN'}: {what}", flush=True)
    if not is_kept:
        raise SystemExit(1)


def main(
    about: str, application: Callable[[Given], None], play: Callable[[Stage], None], queue: str
) -> None:
    """Parse the command line; run the application, or with `--mock` the whole play."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--mock", action="store_true", help="start everything on this machine")
    address = os.environ.get("COUNTERPOISE_URL", "http://127.0.0.1:8640")
    parser.add_argument("--service", default=address, help="the service's address")
    parser.add_argument("--queue", default=queue)
    parser.add_argument("--name", default="first", help="of this application")
    parser.add_argument("--directory", type=Path, help="for checkpoints; default: a temporary one")
    given = parser.parse_args()
    # So that `--mock` stops all processes on SIGTERM.
    with ExitStack() as ending:
        temporary = tempfile.TemporaryDirectory(prefix="example-", ignore_cleanup_errors=True)
        directory: Path = given.directory or Path(ending.enter_context(temporary))
        directory.mkdir(parents=True, exist_ok=True)
        if given.mock:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            play(Stage(given.queue, directory, ending))
        else:
            application(Given(given.service, given.queue, given.name, directory))
