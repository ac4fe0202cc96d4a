"""The demo: `counterpoise demo`. Start reading at `scenario`, then `verdict`."""

import argparse
from collections.abc import Sequence

from counterpoise.demo.work.sabotage import SABOTAGES


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
        "--sabotage", choices=SABOTAGES, help="break a promise; the verdict must be bad"
    )
    options = parser.parse_args(arguments)
    from counterpoise.demo.scenario import run

    return run(options.rows, options.sabotage)
