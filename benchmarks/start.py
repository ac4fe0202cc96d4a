"""What a start of the service costs on a data directory that exists, in CPU (Linux).

    python -m benchmarks.start [--rounds 11]

A start ends when `/readyz` answers 200. Its CPU is that of the service's own process. What it
starts (Postgres, and the program that bounds logins) is a line of its own. A busy machine changes
CPU far less than the time until then. Y13 is an empty Python (`python -c pass`), measured next to
each start.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.figures import Figure, timed
from benchmarks.service import running

Y13 = "Y13"
TARGET = 60
# A start of every day finds compiled modules, whatever the environment of this program says.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
# Empty Pythons next to each start.
EMPTY = 5


class Start(NamedTuple):
    """Seconds of CPU of the service and of what it started, and seconds until it was ready."""

    own: float
    children: float
    waited: float


class Used(NamedTuple):
    """Of a process: its parent, and the CPU of itself and of the children that it outlived."""

    parent: int
    own: float
    ended: float


def start(directory: Path) -> Start:
    """One start, and the stop."""
    began = time.perf_counter()
    with running(directory, COMPILED) as service:
        httpx.get(f"{service.url}/readyz", timeout=60).raise_for_status()
        waited = time.perf_counter() - began
        used = _used()
        own = used[service.pid]
        return Start(own.own, own.ended + _of_children(service.pid, used), waited)


def _used() -> dict[int, Used]:
    """Of each process of the machine, by its number."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        own, own_kernel, ended, ended_kernel = map(int, fields[11:15])
        found[int(file.parent.name)] = Used(
            int(fields[1]), (own + own_kernel) / tick, (ended + ended_kernel) / tick
        )
    return found


def _of_children(pid: int, used: dict[int, Used]) -> float:
    children = {number: one for number, one in used.items() if one.parent == pid}
    return sum(one.own + one.ended + _of_children(n, used) for n, one in children.items())


def empty_python() -> float:
    """Seconds of CPU of one empty Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(EMPTY):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return total / EMPTY


def measure(rounds: int) -> list[Figure]:
    """The medians of some starts."""
    starts, empty = [], []
    with tempfile.TemporaryDirectory() as name:
        # Makes the data directory, and compiles what was not compiled yet.
        start(Path(name))
        for _ in range(rounds):
            empty.append(empty_python())
            starts.append(start(Path(name)))
    own, children, waited = zip(*starts, strict=True)
    return [
        _beside(timed("serve to ready: CPU of the service", own, Y13, target=TARGET), own, empty),
        _beside(timed("serve to ready: CPU of what it starts", children, Y13), children, empty),
        timed("serve to ready: wait", waited),
        timed("Y13: an empty Python: CPU", empty),
    ]


def _beside(figure: Figure, seconds: Sequence[float], empty: Sequence[float]) -> Figure:
    """With the median ratio of neighbours: the load of a machine changes between the rounds."""
    ratios = [one / yard for one, yard in zip(seconds, empty, strict=True)]
    return replace(figure, ratio=statistics.median(ratios))


def figures(quick: bool = False) -> list[Figure]:
    """What a start costs."""
    return measure(3 if quick else 11)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    for figure in measure(parser.parse_args().rounds):
        print(figure)


if __name__ == "__main__":
    main()
