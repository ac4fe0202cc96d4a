"""`make faults`: break everything that may break, and check the promises.

    python -m tests.faults [--seconds 300] [--seed 1] [--keep DIRECTORY] [--complete]

Four parts: the campaign, for so many seconds; a full disk; queues that are resized, split and
merged all the time; and the writers of fenced sinks. Each shows its table when it ends. Exits with
1 when a promise was broken, and with `--complete` also when a part could not be played here.
`--keep` leaves journal and logs in a new directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import campaign, disk, reshaping, sinks
from tests.judge.judge import Verdict


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

    complaints = []
    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        for part in _parts(given, directory, say):
            print(f"\n{part.table}\n", flush=True)
            complaints += part.complaints
    for complaint in complaints:
        print(f"\n{complaint}")
    return 1 if complaints else 0


class Part(NamedTuple):
    """What one part found: shown when it ends, so that a later part that fails hides nothing."""

    table: str
    complaints: list[str]


def _parts(
    given: argparse.Namespace, directory: Path, say: Callable[[str], None]
) -> Iterator[Part]:
    result = campaign.run(directory, given.seconds, given.seed, say)
    yield Part(f"{result.faults_table()}\n\n{result.table()}", result.complaints())
    yield _full_disk(disk.run(directory / "disk", given.seed, say), given.complete)
    if not given.no_reshaping:
        for shape in reshaping.run(directory / "reshaping", given.seed, say):
            yield Part(shape.table(), shape.complaints())
    if not given.no_sinks:
        for sink in sinks.run(directory / "sinks", given.seed, say):
            complaints = sink.complaints()
            if sink.not_run is not None and given.complete:
                complaints.append(f"not complete: {sink.table()}")
            yield Part(sink.table(), complaints)


def _full_disk(verdict: Verdict | None, complete: bool) -> Part:
    if verdict is None:
        missing = [f"not complete: {disk.KIND} was not run"] if complete else []
        return Part(f"{disk.KIND}: {disk.NOT_RUN}", missing)
    broken = f"PROMISES BROKEN WITH A FULL DISK\n{verdict.examples()}"
    return Part(
        f"{disk.KIND}, {disk.TIMES} times:\n\n{verdict.table()}", [] if verdict.kept else [broken]
    )


if __name__ == "__main__":
    sys.exit(main())
