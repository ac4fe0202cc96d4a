"""Many seeds: one after another in a process, or on all processors."""

from __future__ import annotations

import gc
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import draw
from tests.simulation.world import run

ROOT = Path(__file__).parents[2]
# After so many runs their garbage is collected: cheaper than Python's own schedule.
COLLECT_EVERY = 50
# How many seeds a process plays at a time: about two seconds.
CHUNK = 100
# Ctrl-C is for the waiting process; the others end with their present seeds.
_IGNORE_INTERRUPTS = (signal.SIGINT, signal.SIG_IGN)


@dataclass
class Report:
    """The result of some seeds. `failures`: (seed, promise, what was wrong)."""

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
    """Plays these seeds here, with a planted bug if one is named.

    `until_found`: stop at the first violation.
    """
    report = Report()
    began = time.process_time()
    # Objects from before the first run need not be examined by each garbage collection.
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


def many(first: int, count: int, told: Callable[[Report], object] = lambda report: None) -> Report:
    """Plays these seeds on all processors. `told` is repeatedly given the total so far."""
    total = Report()
    # Not forked: a process must not inherit anything of this one.
    pool = ProcessPoolExecutor(
        mp_context=get_context("spawn"), initializer=signal.signal, initargs=_IGNORE_INTERRUPTS
    )
    try:
        jobs = [
            pool.submit(play, start, min(CHUNK, first + count - start))
            for start in range(first, first + count, CHUNK)
        ]
        for job in as_completed(jobs):
            total.add(job.result())
            told(total)
    finally:
        pool.shutdown(cancel_futures=True)
    total.failures.sort()
    return total
