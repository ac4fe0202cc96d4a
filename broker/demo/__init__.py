"""The demo: `counterpoise demo`. Start reading at `scenario` and `split`, then `verdict`."""

import argparse
from collections.abc import Sequence

from broker.demo.work.staging import ALL_SABOTAGES, SABOTAGES, SPLIT_SABOTAGES


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo with these options; returns the exit code of `scenario.run`."""
    parser = argparse.ArgumentParser(
        prog="counterpoise demo",
        description="PySpark applications share a queue of 336,776 flights while one joins, one "
        "leaves and one is killed; ends with a verdict computed from their journal.",
        epilog="exit codes: 0 good verdict, 1 bad verdict, 2 the demo could not be played",
    )
    parser.add_argument("--rows", type=int, help="only this many flights (at least 10,000)")
    parser.add_argument(
        "--split",
        action="store_true",
        help="another demo: one partition becomes hot, is split twice and merged back",
    )
    parser.add_argument(
        "--sabotage",
        choices=ALL_SABOTAGES,
        help="break a promise; the verdict must be bad. "
        f"{', '.join(SABOTAGES)}; with --split {', '.join(SPLIT_SABOTAGES)}",
    )
    parser.add_argument(
        "--sink",
        choices=("sqlite", "delta"),
        default="sqlite",
        help="delta: the flights go into a Delta table as well, and the verdict reads it back",
    )
    options = parser.parse_args(arguments)
    if options.sink == "delta" and (options.split or options.sabotage):
        parser.error("argument --sink: delta is for the demo without --split and --sabotage")
    fitting = SPLIT_SABOTAGES if options.split else SABOTAGES
    if options.sabotage and options.sabotage not in fitting:
        parser.error(f"argument --sabotage: this demo has {', '.join(fitting)}")
    from broker.demo.playing import run

    return run(
        options.rows, options.sabotage, split=options.split, into_lake=options.sink == "delta"
    )
