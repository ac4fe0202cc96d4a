"""`make faults`: break everything that may break, and see that the promises hold.

    python -m tests.faults [--seconds 300] [--seed 1] [--keep DIRECTORY]

Exits with 1 when a promise was broken. `--keep` leaves journal and logs in a new directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.campaign import LEASE_SECONDS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long things break")
    parser.add_argument("--seed", type=int, default=1, help="which faults in which order")
    parser.add_argument("--keep", type=Path, help="where journal and logs are left")
    given = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        result = run(directory, given.seconds, given.seed, say)
    print(f"\n{result.table()}")
    in_time = result.slowest_seconds <= LEASE_SECONDS + 1
    if not in_time:
        print("a killed consumer kept partitions for longer than its lease and a second")
    if not result.verdict.kept:
        print(f"\nPROMISES BROKEN\n{result.verdict.examples()}")
    return 0 if in_time and result.verdict.kept else 1


if __name__ == "__main__":
    sys.exit(main())
