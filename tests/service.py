"""Real services for tests: uvicorn on a free port of 127.0.0.1, over a real database.

* `service`: one service in this process, on a database of its own.
* `services`: starts several on one database: `first, second = services(2)`.
* `served`: `counterpoise serve` as a process of its own, on a database of its own; a test can kill
  it.

All tests can use them (`tests/conftest.py`). For another broker or other settings call `running` or
`ServeProcess` directly.
"""

import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.app import create_app
from api.connections import HEAD_SECONDS
from api.routing import while_reachable
from api.server import Server, make_server
from broker.certificate import Certificate
from broker.service import Broker
from broker.settings import Settings, load
from tests.eventual import eventually as eventually  # used with services, mostly
from tests.forked import Forked

COUNTERPOISE = [str(Path(sys.executable).with_name("counterpoise"))]
# An address where nobody answers. Others may serve on the port of our own.
NO_SERVICE = "http://127.0.0.1:1"
START_SECONDS = 150.0
STOP_SECONDS = 150.0


@dataclass
class Service:
    """A service that runs in a thread of this process."""

    url: str
    app: FastAPI
    settings: Settings
    server: Server
    thread: threading.Thread

    @property
    def http(self) -> httpx.Client:
        """A new client with the base path /v1. Loading certificates, which it needs none of, takes
        longer than most tests.
        """
        return httpx.Client(base_url=f"{self.url}/v1", timeout=60, verify=False)

    def wait_for_the_database(self) -> None:
        """Answer no call with 503: what is slow on a machine with other work is no outage."""
        self.app.state.answered = partial(while_reachable, is_reachable=lambda: True)

    def stop(self) -> float:
        """Stop as on SIGTERM. Returns how many seconds that took. Another call does nothing."""
        started = time.monotonic()
        self.server.should_exit = True
        self.thread.join(STOP_SECONDS)
        assert not self.thread.is_alive(), "the service did not stop"
        return time.monotonic() - started


def free_port(second: int | None = None) -> int:
    """A port for a process that binds it later, perhaps several times.

    The system assigns ports from 32768 up to connections and to listeners on port 0; this port is
    below that. A UDP socket on the same number reserves it, so that no other pytest worker takes
    it. `second`: the process binds another port, so far above this one, which is free as well.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000 - (second or 0))
        ports = [port] if second is None else [port, port + second]
        with contextlib.ExitStack() as stack:
            try:
                for one in ports:
                    reservation = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                    reservation.bind(("127.0.0.1", one))
                    listen(port=one).close()
            except OSError:
                continue
            _reserved.enter_context(stack.pop_all())
            return port


# Held until this process ends.
_reserved = contextlib.ExitStack()
atexit.register(_reserved.close)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    return listener


@contextlib.contextmanager
def running(
    broker: Broker,
    settings: Settings,
    certificate: Certificate | None = None,
    head_seconds: float = HEAD_SECONDS,
) -> Iterator[Service]:
    """Serve `broker` on a free port until the block ends."""
    app = create_app(broker, settings)
    server = make_server(app, settings, certificate=certificate)
    server.head_seconds = head_seconds
    with listen(port=settings.port) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],), name="service")
        service = Service(url, app, settings, server, thread)
        thread.start()
        try:
            deadline = time.monotonic() + START_SECONDS
            while not server.started:
                assert thread.is_alive(), "the service ended while it started"
                assert time.monotonic() < deadline, "the service did not start"
                time.sleep(0.005)
            yield service
        finally:
            service.stop()


def settings_for(database_url: str, **given: object) -> Settings:
    """Settings of a service under test: any free port, no migration at start."""
    return load(**{"database_url": database_url, "port": 0, "shutdown_seconds": 3, **given})


@pytest.fixture
def services(migrated_url: str) -> Iterator[Callable[[int], Sequence[Service]]]:
    """Start services on one database; all stop when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(count: int) -> Sequence[Service]:
            settings = settings_for(migrated_url)
            return [stack.enter_context(running(Broker(settings), settings)) for _ in range(count)]

        yield start


@pytest.fixture
def service(services: Callable[[int], Sequence[Service]]) -> Service:
    """A service on a database of its own."""
    return services(1)[0]


class ServeProcess:
    """`counterpoise serve` as a process, forked from a warm one (`tests/forked.py`).

    It keeps its port when it is started again.
    """

    def __init__(
        self,
        log_file: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
    ) -> None:
        """`program`: the program to start instead, for example `COUNTERPOISE`."""
        self.log_file = log_file
        self.program = program
        self.arguments = list(arguments)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "COUNTERPOISE" not in name},
            **(environment or {}),
        }
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | Forked | None = None
        self.first_line = ""

    def start(self) -> "ServeProcess":
        """Start it and wait until it serves. If it ends instead, fail with its log."""
        command = ["serve", "--port", str(self.port), *self.arguments]
        with self.log_file.open("a") as log:
            if self.program is None:
                self.process = Forked(
                    "counterpoise.cli",
                    command,
                    environment=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            else:
                self.process = subprocess.Popen(
                    [*self.program, *command],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self.environment,
                )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        assert self.first_line, f"it did not start:\n{self.log_file.read_text()}"
        return self

    def end(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end. Returns the exit code. Does nothing when it has ended
        already.
        """
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        self.process = None
        return code

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def __enter__(self) -> "ServeProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


@pytest.fixture
def served(migrated_url: str, tmp_path: Path) -> Iterator[ServeProcess]:
    """`counterpoise serve` on a database of its own, as a process that a test may kill."""
    with ServeProcess(tmp_path / "serve.log", ["--database-url", migrated_url]) as process:
        yield process
