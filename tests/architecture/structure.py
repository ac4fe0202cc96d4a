"""The modules of our packages and what they import, read from the syntax trees.

Every form of import counts, also inside a function or only for type checkers; and so do names
of modules for `import_module`, in the call or in a table. `from a import b` is
an import of the module `a.b` if there is one, else of `a`.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# Tests of the syntax trees, of which one worker so needs no more than one each.
SOURCES = pytest.mark.xdist_group("sources")
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("counterpoise", "broker", "api")


@dataclass(frozen=True)
class Module:
    """One file: its dotted name (a package by the name of its folder) and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but a docstring (a plain `__init__`)."""
        return all(isinstance(one, ast.Expr) for one in self.tree.body)

    def classes(self) -> Iterator[str]:
        """The public classes at its top level."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the packages below `root`, by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text("utf-8")
            found[name] = Module(name, path, text, tree_of(path))
    return found


@functools.cache
def modules() -> dict[str, Module]:
    """The modules of this repository."""
    return read_modules(ROOT)


def texts(nodes: Sequence[ast.expr]) -> Iterator[str]:
    """The texts among these expressions."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def imported(module: Module, known: Mapping[str, Module]) -> set[str]:
    """The modules of `known` that it imports; ruff ensures that no import is relative."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                names.add(name if name in known else str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
            names.update(texts(node.args))
        elif isinstance(node, ast.Tuple):
            names.update(texts(node.elts))
    return {name for name in names if name in known and name != module.name}


@functools.cache
def imports() -> dict[str, set[str]]:
    """Of each module of this repository, the modules that it imports."""
    return graph_of(modules())


def graph_of(known: Mapping[str, Module]) -> dict[str, set[str]]:
    """Of each of these modules, those of them that it imports."""
    return {name: imported(module, known) for name, module in known.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], index[other])
        if lowest[name] == index[name]:
            start = stack.index(name)
            circle, stack[start:] = stack[start:], []
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def defined_twice(known: Mapping[str, Module]) -> dict[str, list[str]]:
    """The public classes that several modules define, each with these modules."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in known.values():
        for name in module.classes():
            places[name].append(module.name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}
