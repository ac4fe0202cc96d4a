"""Many seeds: one after another in a process, and in several processes side by side."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import draw
from tests.simulation.world import run

ROOT = Path(__file__).parents[2]
# What a run leaves behind is collected after so many: cheaper than as Python does it.
COLLECT_EVERY = 50
# So many to a process, which takes a second to start.
CHUNK = 1250


@dataclass
class Report:
    """What came of some seeds. `failures`: (seed, promise, what was wrong)."""

    seeds: int = 0
    failures: list[tuple[int, int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0

    def add(self, other: Report) -> None:
        self.seeds += other.seeds
        self.failures += other.failures
        self.counts.update(other.counts)
        self.cpu_seconds += other.cpu_seconds

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "counts": dict(self.counts)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Report:
        failures = [(seed, promise, text) for seed, promise, text in values["failures"]]
        return cls(values["seeds"], failures, Counter(values["counts"]), values["cpu_seconds"])


def play(first: int, count: int, mutant: str | None = None, *, until_found: bool = False) -> Report:
    """Plays these seeds here. `until_found`: no further than to the first violation."""
    report = Report()
    began = time.process_time()
    gc.collect()
    # What is there before the first run need not be looked at again and again.
    gc.freeze()
    gc.disable()
    try:
        for seed in range(first, first + count):
            with MUTANTS[mutant].planted() if mutant else nullcontext():
                outcome = run(draw(seed))
            report.seeds += 1
            report.counts.update(outcome.counts)
            if outcome.violation is not None:
                promise, text = outcome.violation.promise, outcome.violation.text
                report.failures.append((seed, promise, text))
                if until_found:
                    break
            if report.seeds % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    report.cpu_seconds = time.process_time() - began
    return report


def hunt(names: Sequence[str], most: int) -> Report:
    """Plants these bugs one after another, and plays until each is found, `most` seeds at the most.

    Each one found is a failure whose text begins with its name.
    """
    total = Report()
    for name in names:
        report = play(0, most, name, until_found=True)
        report.failures = [(seed, no, f"{name}: {text}") for seed, no, text in report.failures]
        total.add(report)
    return total


class Stopped(Exception):
    """Nobody wants to know any more."""


def spread(
    jobs: Sequence[Sequence[str]],
    processes: int | None = None,
    *,
    niceness: int = 0,
    stop: threading.Event | None = None,
) -> Iterator[Report]:
    """The reports of `python -m tests.simulation` with each of these arguments, as they end.

    Raises Stopped when `stop` is set; the processes are killed.
    """
    waiting = list(reversed(jobs))
    running: list[subprocess.Popen[str]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (processes or os.cpu_count() or 1):
                running.append(_start(waiting.pop(), niceness))
            ended = _first_to_end(running, stop)
            out, _ = ended.communicate()
            running.remove(ended)
            if ended.returncode != 0:
                raise RuntimeError(f"{ended.args!r} ended with {ended.returncode}")
            yield Report.from_json(json.loads(out))
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _start(arguments: Sequence[str], niceness: int) -> subprocess.Popen[str]:
    nice = ["nice", "-n", str(niceness)] if niceness else []
    command = [*nice, sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _first_to_end(
    running: Sequence[subprocess.Popen[str]], stop: threading.Event | None
) -> subprocess.Popen[str]:
    """Waits for one of them. What they write fits into a pipe."""
    while True:
        for process in running:
            if stop is not None and stop.is_set():
                raise Stopped
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            return process


def many(
    first: int,
    count: int,
    told: Callable[[Report], object] = lambda report: None,
    *,
    niceness: int = 0,
    stop: threading.Event | None = None,
) -> Report:
    """Plays these seeds in as many processes as there are processors. Raises Stopped."""
    jobs = [
        ("chunk", str(start), str(min(CHUNK, first + count - start)))
        for start in range(first, first + count, CHUNK)
    ]
    total = Report()
    for report in spread(jobs, niceness=niceness, stop=stop):
        total.add(report)
        told(total)
    total.failures.sort()
    return total


class Beside:
    """Seeds that are played beside something else, with what that leaves of the processors."""

    def __init__(self, first: int, count: int) -> None:
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "seeds")
        self._report = self._thread.submit(many, first, count, niceness=19, stop=self._stop)

    def report(self) -> Report:
        """Waits for it."""
        return self._report.result()

    def stop(self) -> None:
        """Ends it if it still runs."""
        self._stop.set()
        self._thread.shutdown()
