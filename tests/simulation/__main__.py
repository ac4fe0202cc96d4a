"""`make sim`, `make sim-first` and `make sim-long`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation import campaign, coverage, long, needed
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Plan, draw
from tests.simulation.shrink import shrunk
from tests.simulation.world import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seeds = commands.add_parser("seeds", help="play seeds, shrink the first that fails")
    seeds.add_argument("which", help="a number of seeds, or a range: 500-600")
    one = commands.add_parser("seed", help="play one seed, with its transcript")
    one.add_argument("seed", type=int)
    one.add_argument("--mutant", choices=MUTANTS)
    one.add_argument("--shrink", action="store_true", help="if it fails")
    first = commands.add_parser(
        "first", help="the first seed that finds each planted bug, that meets each thing"
    )
    first.add_argument("--search", action="store_true", help="anew, and keep what is found")
    go_on = commands.add_parser("long", help="go on where it stopped last time")
    go_on.add_argument("--seeds", type=int, default=None, help="stop after so many of this code")
    arguments = parser.parse_args()
    if arguments.command == "first":
        return _first(arguments.search)
    if arguments.command == "seed":
        return _one(arguments.seed, arguments.mutant, arguments.shrink)
    if arguments.command == "long":
        return long.go_on(arguments.seeds)
    return _seeds(arguments.which)


def _seeds(which: str) -> int:
    first, _, last = which.rpartition("-")
    start = int(first) if first else 0
    count = int(last) - start + 1 if first else int(last)
    began = time.monotonic()
    report = campaign.many(start, count, _progress)
    seconds = time.monotonic() - began
    print(f"\r{coverage.table(report.counts)}")
    print(
        f"{report.seeds} seeds in {seconds:.1f} s ({report.cpu_seconds:.1f} s of CPU, "
        f"{1000 * report.cpu_seconds / max(1, report.seeds):.1f} ms a seed), "
        f"{len(report.failures)} failed"
    )
    for seed, promise, text in report.failures[:20]:
        print(f"seed {seed} breaks promise {promise}: {text}")
    if report.failures:
        print_shrunk(draw(report.failures[0][0]))
    return bool(report.failures)


def _first(search: bool) -> int:
    if not search:
        print(needed.table(needed.FirstSeeds.load()))
        return 0
    first, often = needed.search(lambda line: print(line, flush=True))
    first.save()
    print(f"\n{needed.table(first, often)}")
    return 0


def _progress(report: campaign.Report) -> None:
    print(f"\r{report.seeds} seeds, {len(report.failures)} failed", end="", flush=True)


def _one(seed: int, mutant: str | None, shrink: bool) -> int:
    if mutant is not None:
        with MUTANTS[mutant].planted():
            return _one(seed, None, shrink)
    outcome = run(draw(seed), recording=True)
    if shrink and outcome.violation is not None:
        print_shrunk(outcome.plan)
    else:
        print(outcome.plan.config)
        print("\n".join(outcome.transcript))
    return outcome.violation is not None


def print_shrunk(plan: Plan) -> None:
    """The transcript of a failing plan after shrinking."""
    small = shrunk(plan)
    outcome = run(small, recording=True)
    print(f"\nseed {plan.seed}, shrunk from {len(plan.events)} to {len(small.events)} events:")
    print(small.config)
    print("\n".join(outcome.transcript))


if __name__ == "__main__":
    sys.exit(main())
