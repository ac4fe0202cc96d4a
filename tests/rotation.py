"""Matrices of long tests: `make test-long` plays a third of their cells, another one each time.

A *matrix* is a test of one thing in many combinations, such as kill points × targets × seeds. Its
cells find the same mistakes, most of the time. So a run plays one of three parts of each matrix,
and everything else whole:

    @pytest.mark.matrix("point", "target")   # the names of its parameters or fixtures
    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.parametrize("target", TARGETS)

A cell's *level* is the sum of the places of its values, and a part has every third level. Each
value is in each part so, if another dimension has three values or more. A matrix of one dimension
is cut into three. One of two cells has the first in one part and the second in the next. Each
matrix begins elsewhere, so that a part meets all targets, if not in each test. Cells that are no
long tests are always played.

A matrix may be spread over functions, as one thing needs another play in each situation. Each names
the matrix, and is one cell of it:

    @pytest.mark.matrix(of="crashes of writers")

Or over the tests that go through a kit: the mark is on the long values of its fixture then, and
each of these tests with such a value is a cell.

The short property tests, which the long ones draw more often (tests/budgets.py), are a matrix, too.

`--part 2/3` chooses a part, `--part commit` takes that of the commit's hash. Without it all parts
are played (`make test-all`).
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

PARTS = 3
OF_COMMIT = "commit"
Cell = TypeVar("Cell")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar=f"N/{PARTS}", help=f"this part of each matrix, or {OF_COMMIT}: the hash's"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the option in the controller, which hands its result to the workers."""
    config.option.part = _read(config.option.part)


def pytest_report_header(config: pytest.Config) -> str:
    part = config.option.part
    which = "all parts" if part is None else f"part {part} (again: make test-long PART={part})"
    return f"matrices: {which}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cells of other parts."""
    cells: defaultdict[str, dict[pytest.Item, int]] = defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("matrix")
        if mark and item.get_closest_marker("long"):
            name, level = _cell(item, mark)
            cells[name][item] = len(cells[name]) if level is None else level
        elif item.get_closest_marker("property") and not item.get_closest_marker("long"):
            cells["properties"][item] = len(cells["properties"])
    if config.option.part is None:
        return
    part = int(config.option.part.partition("/")[0])
    left_out = {
        item
        for name, levels in cells.items()
        for item in levels.keys() - chosen(part, name, levels)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def chosen(part: int, matrix: str, levels: Mapping[Cell, int]) -> set[Cell]:
    """The cells of a matrix in this part (1 to `PARTS`); `levels`: the level of each cell."""
    found = sorted(set(levels.values()))
    count = min(PARTS, len(found))
    turn = (part + crc32(matrix.encode())) % count
    return {cell for cell, level in levels.items() if found.index(level) % count == turn}


def _cell(item: pytest.Item, mark: pytest.Mark) -> tuple[str, int | None]:
    """The name of its matrix, and its level; None: the next one."""
    if "of" in mark.kwargs:
        return mark.kwargs["of"], None
    return item.nodeid.partition("[")[0], sum(_places(item, mark.args))


def _places(item: pytest.Item, dimensions: Collection[str]) -> list[int]:
    """The place of the item's value in each of the dimensions."""
    places: Mapping[str, int] = item.callspec.indices if hasattr(item, "callspec") else {}
    if not dimensions or not set(dimensions) <= places.keys():
        raise pytest.UsageError(
            f"{item.nodeid}: matrix() names the test's parameters: {', '.join(places) or 'none'}"
        )
    return [places[name] for name in dimensions]


def _read(part: str | None) -> str | None:
    if part == OF_COMMIT:
        # An unpacked archive has no commit.
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        return f"{int(found.stdout or '0', 16) % PARTS + 1}/{PARTS}"
    if part is not None and part not in (f"{number + 1}/{PARTS}" for number in range(PARTS)):
        raise pytest.UsageError(f"--part {part}: a part is 1/{PARTS} to {PARTS}/{PARTS}")
    return part
