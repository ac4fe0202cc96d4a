"""The layers of docs/design.md hold: each module is in one, and imports none of a higher one.

The lists there are the one list. `→` divides layers; one imports itself and those before it. A
circle within a layer is found by `test_rooms`.
"""

import re
from collections.abc import Iterator

import pytest

from tests.architecture.structure import ROOT, SOURCES, imports, modules

pytestmark = SOURCES

LIST = re.compile(r"^\* `([a-z/]+)`: (.+\n(?:  .+\n)*)", re.M)


def layers() -> dict[str, list[set[str]]]:
    """The layers of each list, the lowest first: the dotted names of their members."""
    page = (ROOT / "docs/design.md").read_text("utf-8")
    return {
        package: [
            {f"{package}.{name}" for name in re.findall(r"`(\w+)`", layer)}
            for layer in found[2].split("→")
        ]
        for found in LIST.finditer(page)
        for package in [found[1].replace("/", ".")]
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


def test_the_page_has_a_list_of_each_package() -> None:
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
