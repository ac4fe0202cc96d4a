"""The rooms of the code: folders without import circles, and none too large to survey.

The modules of a folder are one room. Its interface (`__init__` and `__main__`) is a room of its
own, because it may import from the folders below. Every form of import counts, also inside a
function or only for type checkers.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.test_imports import ROOT

PACKAGES = ("api", "broker", "counterpoise")
MOST_LINES = 400
MOST_MODULES = 14
INTERFACES = frozenset({"__init__.py", "__main__.py"})


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the packages by its dotted name; a package by the name of its folder."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of this repository that a module imports; ruff ensures that no import is
    relative.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            names = [
                name if (name := f"{node.module}.{alias.name}") in modules else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        yield from (name for name in names if name in modules)


def room_of(path: Path, root: Path) -> str:
    """The folder of the module, or the folder's interface."""
    folder = path.parent.relative_to(root).as_posix()
    return f"{folder}/ (its interface)" if path.name in INTERFACES else folder


def circles(root: Path) -> dict[tuple[str, ...], list[str]]:
    """The rooms that import each other in a circle, and the imports between them."""
    modules = modules_of(root)
    imports: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, path in modules.items():
        for other in imported(path.read_text("utf-8"), modules):
            here, there = room_of(path, root), room_of(modules[other], root)
            if here != there:
                imports[here][there].append(f"{name} imports {other}")
    reached = {room: _reached(room, imports) for room in list(imports)}
    found = {
        tuple(sorted(other for other in reached[room] if room in reached.get(other, ())))
        for room in reached
        if room in reached[room]
    }
    return {
        circle: [one for a in circle for b in circle for one in imports[a].get(b, ())]
        for circle in sorted(found)
    }


def _reached(room: str, imports: Mapping[str, Mapping[str, object]]) -> set[str]:
    seen: set[str] = set()
    waiting = [room]
    while waiting:
        for other in imports.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def lines(root: Path) -> dict[str, int]:
    """The number of lines of each module."""
    return {
        path.relative_to(root).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in modules_of(root).values()
    }


def sizes(root: Path) -> dict[str, int]:
    """The number of modules in each folder, without its `__init__`."""
    counted: defaultdict[str, int] = defaultdict(int)
    for path in modules_of(root).values():
        counted[path.parent.relative_to(root).as_posix()] += path.name != "__init__.py"
    return dict(counted)


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert not circles(ROOT)


def test_no_module_is_too_long() -> None:
    assert not {name: count for name, count in lines(ROOT).items() if count > MOST_LINES}


def test_no_folder_is_too_large() -> None:
    assert not {name: count for name, count in sizes(ROOT).items() if count > MOST_MODULES}


# ------------------------------------------------------------------ the rule itself


def house(root: Path, **files: str) -> Path:
    """Modules with these texts; `a__b` is a/b.py."""
    for name, text in files.items():
        path = root / "counterpoise" / f"{re.sub(r'(?<=[a-z])__(?=[a-z])', '/', name)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


@pytest.mark.parametrize(
    "back",
    [
        "from counterpoise.a.one import x",
        "import counterpoise.a.one",
        "from counterpoise.a import one",
        "def late():\n    from counterpoise.a.one import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import counterpoise.a.one",
    ],
)
def test_a_circle_is_found_however_it_is_imported(tmp_path: Path, back: str) -> None:
    root = house(tmp_path, a__one="import counterpoise.b.two", b__two="", b__three=back)
    ((circle, why),) = circles(root).items()
    assert circle == ("counterpoise/a", "counterpoise/b")
    assert "counterpoise.b.three imports counterpoise.a.one" in why


def test_an_interface_may_import_its_modules_but_they_do_not_import_it(
    tmp_path: Path,
) -> None:
    root = house(
        tmp_path,
        __init__="from counterpoise.a.one import x",
        a__one="from counterpoise.low import y",
        low="",
    )
    assert not circles(root)
    house(tmp_path, low="from counterpoise import x")
    assert len(circles(root)) == 1
