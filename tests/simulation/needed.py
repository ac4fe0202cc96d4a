"""How many seeds it takes to find every planted bug and to meet everything that must occur.

For each bug and item, the file `first_seeds.json` names the first seed that finds or meets it. The
file belongs to one state of the code: a change of the product may shift some seeds. The tests first
try the seeds of the file. What these no longer find or meet is searched for from seed 0 on.

`SEEDS` seeds are as many as it takes to find the bugs, and few more; a search ends there. `make
test` also plays the seeds that the file names for the rarest items, up to `MOST`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation import coverage
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import draw
from tests.simulation.world import run

FILE = Path(__file__).with_name("first_seeds.json")
# `make test` plays the seeds below the first; one of them finds each bug. One below the second
# meets each item.
SEEDS = 500
MOST = 1500


class OutOfDate(UserWarning):
    """A seed of the file no longer finds or meets what the file says."""


@dataclass
class FirstSeeds:
    """The first seed that finds each planted bug, and the first that meets each item of the
    coverage.
    """

    bugs: Mapping[str, int]
    items: Mapping[str, int]

    def save(self, path: Path = FILE) -> None:
        text = json.dumps(vars(self), indent=2, sort_keys=True)
        path.write_text(f"{text}\n")

    @classmethod
    def load(cls, path: Path = FILE) -> FirstSeeds:
        return cls(**json.loads(path.read_text()))


def finds(bug: str, seed: int) -> bool:
    """Whether this seed breaks a promise with the planted bug, and only with it."""
    with MUTANTS[bug].planted():
        found = run(draw(seed)).violation is not None
    return found and run(draw(seed)).violation is None


def first_that_finds(bug: str, seeds: Iterable[int] = range(SEEDS)) -> int | None:
    """The first of these seeds that finds the bug, or None."""
    return next((seed for seed in seeds if finds(bug, seed)), None)


def meets(seed: int) -> frozenset[str]:
    """The items that a seed meets, of those that must occur."""
    counts = run(draw(seed)).counts
    return frozenset(item for item in coverage.expected() if counts[item])


def search(told: Any = lambda line: None) -> tuple[FirstSeeds, Counter[str]]:
    """The present first seeds, and how many of the `MOST` meet each item.

    Takes some minutes. Raises LookupError if they miss a bug or an item.
    """
    bugs = {}
    for bug in MUTANTS:
        first = first_that_finds(bug)
        if first is None:
            raise LookupError(f"{bug!r} is not found by {SEEDS} seeds")
        bugs[bug] = first
        told(f"{first:6}  {bug}")
    items: dict[str, int] = {}
    often: Counter[str] = Counter()
    for seed in range(MOST):
        met = meets(seed)
        often.update(met)
        items = {**dict.fromkeys(met, seed), **items}
    missing = set(coverage.expected()) - items.keys()
    if missing:
        raise LookupError(f"never met in {MOST} seeds: {sorted(missing)}")
    return FirstSeeds(bugs, items), often


def table(first: FirstSeeds, often: Mapping[str, int] | None = None) -> str:
    """One bug or item a line, the rarest first; `often`: how many seeds meet each item."""
    lines = [(seed, f"{seed:6}  planted bug: {bug}") for bug, seed in first.bugs.items()]
    for item, seed in first.items.items():
        by = f", met by {often[item]:,} of {MOST:,}" if often else ""
        lines.append((seed, f"{seed:6}  {item}{by}"))
    needed = f"{max(first.bugs.values()) + 1} seeds find all bugs, `make test` plays {SEEDS}"
    return "\n".join([*(line for _, line in sorted(lines, reverse=True)), needed])
