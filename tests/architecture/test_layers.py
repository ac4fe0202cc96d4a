"""The layers of docs/design.md hold: each module is in one, and imports none of a higher one.

The tables there are the one list. The first cell of a row names modules and packages; a row imports
itself and the rows above it. A circle within a row is found by `test_rooms`.
"""

import re
from collections.abc import Iterator

import pytest

from tests.architecture.structure import ROOT, SOURCES, imports, modules

pytestmark = SOURCES

TABLE = re.compile(r"^\| `([a-z/]+)` \| task \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.M)


def layers() -> dict[str, list[set[str]]]:
    """The rows of each table, the lowest first: the dotted names of their members."""
    page = (ROOT / "docs/design.md").read_text("utf-8")
    return {
        table[1].replace("/", "."): [
            {f"{table[1].replace('/', '.')}.{name}" for name in re.findall(r"`(\w+)`", cell)}
            for cell in re.findall(r"^\| ([^|]+) \|", table[2], re.M)
        ]
        for table in TABLE.finditer(page)
    }


LAYERS = layers()


def member(module: str, package: str) -> str:
    """The part of the package that a module of it belongs to."""
    return ".".join(module.split(".")[: package.count(".") + 2])


def floors(package: str) -> dict[str, int]:
    return {name: floor for floor, row in enumerate(LAYERS[package]) for name in row}


def inside(package: str) -> Iterator[str]:
    """The modules below the package, without its own `__init__`."""
    return (name for name in modules() if name.startswith(f"{package}."))


def test_the_page_has_a_table_of_each_package() -> None:
    assert set(LAYERS) == {
        "broker",
        "api",
        "counterpoise",
        "counterpoise.spark",
        "counterpoise.spark.source",
    }


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_is_in_a_layer(package: str) -> None:
    found = {member(name, package) for name in inside(package)}
    assert found == set(floors(package))


@pytest.mark.parametrize("package", LAYERS)
def test_no_name_is_in_two_layers(package: str) -> None:
    names = [name for row in LAYERS[package] for name in row]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_to_the_same_layer_or_lower_ones(package: str) -> None:
    floor = floors(package)
    graph = imports()
    upwards = [
        f"{name} imports {other}"
        for name in inside(package)
        for other in graph[name]
        if floor.get(member(name, package), 0) < floor.get(member(other, package), 0)
        if other.startswith(f"{package}.")
    ]
    assert not upwards
