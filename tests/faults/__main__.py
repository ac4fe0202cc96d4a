"""`make faults`: break everything that may break, and check the promises.

    python -m tests.faults [--seconds 300] [--seed 1] [--keep DIRECTORY] [--complete]

Four parts: the campaign, for so many seconds; a full disk; queues that are resized, split and
merged all the time; and the writers of fenced sinks. Exits with 1 when a promise was broken, and
with `--complete` also when a part could not be played here. `--keep` leaves journal and logs in a
new directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import campaign, disk, reshaping, sinks


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="how long things break")
    parser.add_argument("--seed", type=int, default=1, help="which faults in which order")
    parser.add_argument("--keep", type=Path, help="where journal and logs are left")
    parser.add_argument(
        "--complete", action="store_true", help="fail where something cannot be broken here"
    )
    parser.add_argument(
        "--no-reshaping", action="store_true", help="leave the third part out, five minutes"
    )
    parser.add_argument(
        "--no-sinks", action="store_true", help="leave the fourth part out, about five minutes"
    )
    given = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        result = campaign.run(directory, given.seconds, given.seed, say)
        full = disk.run(directory / "disk", given.seed, say)
        shaped = (
            [] if given.no_reshaping else reshaping.run(directory / "reshaping", given.seed, say)
        )
        tortured = [] if given.no_sinks else [*sinks.run(directory / "sinks", given.seed, say)]
    complaints = result.complaints()
    tables = [result.table()]
    if full is None:
        done = f"{'-':>5}  {'-':>8}  {disk.KIND}: {disk.NOT_RUN}"
        if given.complete:
            complaints.append(f"not complete: {disk.KIND} was not run")
    else:
        done = f"{disk.TIMES:>5}  {'-':>8}  {disk.KIND}"
        tables.append(f"{disk.KIND}:\n\n{full.table()}")
        if not full.kept:
            complaints.append(f"PROMISES BROKEN WITH A FULL DISK\n{full.examples()}")
    for shape in shaped:
        complaints += shape.complaints()
        tables.append(shape.table())
    for sink in tortured:
        complaints += sink.complaints()
        if sink.not_run is not None and given.complete:
            complaints.append(f"not complete: {sink.table()}")
        tables.append(sink.table())
    print(f"\n{result.faults_table()}\n{done}\n\n" + "\n\n".join(tables))
    for complaint in complaints:
        print(f"\n{complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
