"""Writes to the journal when the machine itself is too slow for the run: a fault that nobody
planned.

    python -m tests.faults.machine JOURNAL

A process that does not get the processor for two seconds misses deadlines of two seconds, and that
says nothing about the service. The sign is the time that a piece of work of BURST_SECONDS takes: if
other processes use the processors, it takes several times as long. A service that is slow by
itself, waiting or computing, does not show here unless it uses all processors.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from statistics import median

from tests.judge.journal import OVERLOADED, Journal, Mended

BURST_SECONDS, PAUSE_SECONDS = 0.02, 0.3
# The limit is less than a third of a processor, by most of the SAMPLES of three seconds: about as
# long as a deadline. Shorter load, such as starting processes, excuses nothing.
STRETCHED, SAMPLES = 3.0, 9


def stretch() -> float:
    """How many times longer than its time on the processor a piece of work takes."""
    began, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < BURST_SECONDS:
        pass
    return (time.monotonic() - began) / BURST_SECONDS


def main(path: str) -> None:
    journal = Journal(Path(path))
    samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
    overloaded = False
    while True:
        samples.append((time.monotonic(), stretch()))
        now_overloaded = median(each for _, each in samples) > STRETCHED
        if now_overloaded and not overloaded:
            journal.write(OVERLOADED, at=samples[0][0])
        elif overloaded and not now_overloaded:
            journal.write(Mended(*OVERLOADED))
        overloaded = now_overloaded
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
