"""The measured service: `counterpoise serve` as a process, on a database of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """`counterpoise serve` on a database of its own; its URL."""
    command = [str(Path(sys.executable).with_name("counterpoise")), "serve", "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COUNTERPOISE_")}
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(directory / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = [word for word in line.split() if word.startswith("http://")]
        if not found:
            raise RuntimeError(f"the service did not start:\n{(directory / 'log').read_text()}")
        yield found[0].rstrip("/.,")
    finally:
        process.terminate()
        process.wait(30)


def measure_a_service(
    measure: Callable[[str, argparse.Namespace], Coroutine[Any, Any, None]],
    parser: argparse.ArgumentParser,
) -> None:
    """Run `measure` with the service's URL and the arguments; `--url` names a service that runs
    already.
    """
    parser.add_argument("--url", help="of a running service, instead of one of our own")
    arguments = parser.parse_args()
    if arguments.url is not None:
        asyncio.run(measure(arguments.url, arguments))
        return
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as url:
        asyncio.run(measure(url, arguments))


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
