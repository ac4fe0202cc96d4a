"""The measured service: `counterpoise serve` as a process, on a database of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from broker.postgres.embedded import EmbeddedPostgres, url_of_running
from broker.postgres.migrations import upgrade
from broker.service import Broker
from tests.service import running as running_here
from tests.service import settings_for

T = TypeVar("T")

# All callers of a benchmark have one address and do nothing but call.
UNLIMITED = {
    "COUNTERPOISE_ADDRESS_REQUESTS_PER_SECOND": "0",
    "COUNTERPOISE_FLOW_REQUESTS_PER_SECOND": "0",
    "COUNTERPOISE_ADDRESS_STREAMS": "100000",
    "COUNTERPOISE_FLOW_STREAMS": "100000",
}


@dataclass(frozen=True)
class Served:
    """A service that runs."""

    url: str
    database_url: str
    """Of its own Postgres."""
    pid: int


@contextmanager
def started(
    command: list[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """A process that prints its URL and stops on SIGTERM; without a database."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("COUNTERPOISE_")}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**own, **(environment or {})},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = [word for word in line.split() if word.startswith("http://")]
        if not found:
            raise RuntimeError(f"{command[-1]} did not start:\n{log.read_text()}")
        yield Served(found[0].rstrip("/.,"), "", process.pid)
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def running(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """`counterpoise serve` on a database of its own, with these settings as COUNTERPOISE_…"""
    data = directory / "data"
    command = [str(Path(sys.executable).with_name("counterpoise")), "serve", "--port", "0"]
    with started([*command, "--data-dir", str(data)], directory / "log", environment) as one:
        database_url = url_of_running(data)
        assert database_url is not None
        yield Served(one.url, database_url, one.pid)


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """`counterpoise serve` on a database of its own; its URL."""
    with running(directory) as service:
        yield service.url


@contextmanager
def served_here() -> Iterator[str]:
    """A service in this process, on a database of its own; its URL."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(Path(directory)) as database:
        upgrade(database)
        settings = settings_for(database)
        with running_here(Broker(settings), settings) as service:
            yield service.url


def run_service(
    measure: Callable[[Served], Coroutine[Any, Any, T]],
    environment: Mapping[str, str] | None = None,
) -> T:
    """What `measure` finds on a service in a temporary directory."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory), environment) as service,
    ):
        return asyncio.run(measure(service))


def measure_a_service(
    measure: Callable[[str, argparse.Namespace], Coroutine[Any, Any, None]],
    parser: argparse.ArgumentParser,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `measure` with the service's URL and the arguments; `--url` names a service that runs
    already.
    """
    parser.add_argument("--url", help="of a running service, instead of one of our own")
    arguments = parser.parse_args()
    if arguments.url is not None:
        asyncio.run(measure(arguments.url, arguments))
        return
    run_service(lambda service: measure(service.url, arguments), environment)


def metric(url: str, name: str) -> float | None:
    """The present value of a service metric without labels; None if the service lacks it."""
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return None


def memory_mb(url: str) -> float | None:
    """The resident memory of the service according to its metrics; None if they lack it."""
    found = metric(url, "process_resident_memory_bytes")
    return None if found is None else found / 2**20
