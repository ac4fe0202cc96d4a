"""Runs one benchmark in this process and writes what it finds to a file.

python -m benchmarks.collect NAME FILE [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Series


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    module: Any = importlib.import_module(f"benchmarks.{arguments.name}")
    found = module.figures(quick=arguments.quick)
    for one in found:
        print(one)
    write(found, arguments.file)


def write(found: Sequence[Figure | Series], file: Path) -> None:
    """Figures and series as JSON."""
    file.write_text(json.dumps([[type(one).__name__, asdict(one)] for one in found]))


def read(file: Path) -> list[Figure | Series]:
    """What `write` wrote."""
    found: list[Figure | Series] = []
    for kind, values in json.loads(file.read_text()):
        if kind == "Figure":
            spread = values.pop("spread")
            found.append(Figure(**values, spread=None if spread is None else tuple(spread)))
        else:
            points = tuple((size, cost) for size, cost in values.pop("points"))
            found.append(Series(**values, points=points))
    return found


if __name__ == "__main__":
    main()
