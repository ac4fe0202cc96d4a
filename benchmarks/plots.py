"""Draws the figures: what reaches its target, and how costs grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Series

REACHED, MISSED, LINES = "#2a7f62", "#b5412c", ("#1f5fa8", "#c2701c", "#2a7f62", "#7a4fa3")


def draw(found: Mapping[str, Sequence[Figure | Series]], directory: Path) -> list[Path]:
    """All pictures, as PNG files in `directory`; returns their paths."""
    directory.mkdir(exist_ok=True)
    for old in directory.glob("*.png"):
        old.unlink()
    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    _pyplot().rcParams.update(style)
    pictures = []
    targets = [
        one
        for of in found.values()
        for one in of
        if isinstance(one, Figure) and one.target is not None
    ]
    if targets:
        pictures.append(_targets(targets, directory / "targets.png"))
    series = [one for of in found.values() for one in of if isinstance(one, Series)]
    for plot in dict.fromkeys(one.plot for one in series):
        lines = [one for one in series if one.plot == plot]
        pictures.append(_growth(plot, lines, directory / f"{plot.replace(' ', '-')}.png"))
    return pictures


def _targets(figures: Sequence[Figure], file: Path) -> Path:
    """A bar for each figure: how far it is from its target, 1 at the target, left is better."""
    names, lengths = [], []
    for one in figures:
        assert one.target is not None
        reached = one.target / one.reached if one.at_least else one.reached / one.target
        sign = "≥" if one.at_least else "≤"
        unit = one.yardstick if one.ratio is not None else one.unit
        told = f"{one.reached:,.2f} {unit}".rstrip()
        names.append(f"{one.title}\n{told}, target {sign} {one.target:,g}")
        lengths.append(reached)
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.62 * len(names)), layout="constrained")
    colours = [REACHED if length <= 1 else MISSED for length in lengths]
    bars = axes.barh(names, lengths, color=colours, height=0.6)
    axes.set_xscale("log")
    axes.set_xlim(min(0.1, min(lengths) / 2), 2 * max(2, *lengths))
    axes.xaxis.set_major_formatter(_plain)
    axes.axvline(1, color="black", linewidth=1.2)
    # A label may cross the line.
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes.bar_label(bars, [f"{length:.2f}" for length in lengths], padding=4, bbox=box)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("part of what the target allows; up to 1 it is reached")
    axes.set_title("Figures and their targets", loc="left", weight="bold")
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return file


def _pyplot() -> Any:
    """Imported only to draw, because that takes a second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _plain(value: float, _position: int) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _growth(plot: str, lines: Sequence[Series], file: Path) -> Path:
    """A panel for each line, because their units differ; both axes logarithmic."""
    plt = _pyplot()
    figure, panels = plt.subplots(
        1, len(lines), figsize=(5.6 * len(lines), 4.4), squeeze=False, layout="constrained"
    )
    for axes, one, colour in zip(panels[0], lines, LINES, strict=False):
        sizes, costs = zip(*one.points, strict=True)
        axes.plot(sizes, costs, "o-", color=colour, linewidth=2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        # At least two decades, so that noise on a flat line does not look like growth.
        middle = (min(costs) * max(costs)) ** 0.5
        axes.set_ylim(min(min(costs) / 1.5, middle / 10), max(max(costs) * 1.5, middle * 10))
        axes.xaxis.set_major_formatter(_plain)
        axes.yaxis.set_major_formatter(_plain)
        axes.set_xlabel(one.size_unit)
        axes.set_ylabel(f"{one.unit} (CPU)")
        axes.set_title(f"{one.name}: slope {one.slope:.2f}", loc="left")
        axes.grid(which="major", alpha=0.3)
    figure.suptitle(plot[:1].upper() + plot[1:], x=0.01, ha="left", weight="bold")
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return file
