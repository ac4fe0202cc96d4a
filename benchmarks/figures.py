"""What a benchmark returns: figures, as ratios to a yardstick of the same run where there is one.

An absolute time holds for one machine in one hour. So a figure names its *yardstick*, something
simple that was measured beside it (`benchmarks.yardsticks`), and its target bounds the ratio of
both. A figure without a yardstick (bytes, counts) is compared with its target itself.

A benchmark is a module with

    def figures(quick: bool = False) -> list[Figure]

and `quick` asks for fewer rounds, in about a tenth of the time. Such a list may also have `Series`,
how a cost grows with a size, which are drawn (`benchmarks.plots`).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` and `spread` are in `unit`, `ratio` is in units of `yardstick`."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    yardstick: str | None = None
    target: float | None = None
    """What has to be reached: by the ratio, or by the value if there is no yardstick."""
    at_least: bool = False
    """More is better, so the target is the least."""
    spread: tuple[float, float] | None = None
    """The 10th and the 90th percentile of the rounds."""
    rounds: int = 1
    column: str = ""
    """Figures of one name stand beside each other, each in its column."""

    @property
    def title(self) -> str:
        """The name with the column."""
        return f"{self.name}, {self.column}" if self.column else self.name

    @property
    def reached(self) -> float:
        """What the target is compared with."""
        return self.value if self.ratio is None else self.ratio

    @property
    def holds(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.target is None:
            return None
        return self.reached >= self.target if self.at_least else self.reached <= self.target

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:>8.2f} {self.yardstick}"
        line = f"{self.title:<60}{ratio:<17} {self.value:>12,.2f} {self.unit:<5}"
        if self.spread is not None:
            line += f" ({self.spread[0]:,.2f} to {self.spread[1]:,.2f}, {self.rounds} rounds)"
        if self.target is not None:
            sign = "≥" if self.at_least else "≤"
            line += f"  target {sign} {self.target:g}{'' if self.holds else ': MISSED'}"
        return line.rstrip()


@dataclass(frozen=True, slots=True)
class Series:
    """A cost at growing sizes: one line of the plot `plot`."""

    plot: str
    """The name of the picture, and what is varied in it."""
    name: str
    size_unit: str
    unit: str
    points: tuple[tuple[float, float], ...]
    """(size, cost)"""

    @property
    def slope(self) -> float:
        """The exponent of the growth, by least squares of the logarithms: 0 is flat, 1 linear."""
        sizes = [math.log(size) for size, _ in self.points]
        costs = [math.log(cost) for _, cost in self.points]
        return statistics.linear_regression(sizes, costs).slope


def rate(
    name: str,
    per_second: Sequence[float],
    yardstick: str | None = None,
    yardstick_per_second: Sequence[float] = (),
    target: float | None = None,
) -> Figure:
    """The median of some rounds, messages a second; the ratio is of neighbouring rounds."""
    pairs = zip(per_second, yardstick_per_second, strict=True) if yardstick else ()
    ratios = [one / yard for one, yard in pairs]
    return Figure(
        name,
        statistics.median(per_second),
        "/s",
        statistics.median(ratios) if ratios else None,
        yardstick,
        target,
        at_least=True,
        spread=spread(per_second),
        rounds=len(per_second),
    )


def timed(
    name: str,
    seconds: Sequence[float],
    yardstick: str | None = None,
    yardstick_seconds: float | None = None,
    target: float | None = None,
) -> Figure:
    """The median of some rounds in milliseconds, and its ratio to the yardstick's seconds."""
    median = statistics.median(seconds)
    return Figure(
        name,
        median * 1e3,
        "ms",
        None if yardstick_seconds is None else median / yardstick_seconds,
        yardstick,
        target,
        spread=spread([one * 1e3 for one in seconds]),
        rounds=len(seconds),
    )


def counted(name: str, counts: Sequence[float], target: float | None = None) -> Figure:
    """The median of a count in some rounds, which depends on the clock only a little."""
    median = statistics.median(counts)
    return Figure(name, median, "", None, None, target, spread=spread(counts), rounds=len(counts))


def beside(column: str, *figures: Figure) -> list[Figure]:
    """The same figures, in this column."""
    return [replace(one, column=column) for one in figures]


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The 10th and the 90th percentile; None for fewer than five values."""
    if len(values) < 5:
        return None
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[len(ordered) - 1 - len(ordered) // 10]


def print_measured(description: str, measure: Callable[[int, int], Sequence[Figure]]) -> None:
    """Parse how many messages and rounds, call `measure` with them, and print what it found."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for figure in measure(arguments.messages, arguments.rounds):
        print(figure)
