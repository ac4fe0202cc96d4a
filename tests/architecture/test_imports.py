"""The architecture is a test: imports run one way, core <- broker <- api, and counterpoise alone.

The rules are those of docs/design; `test_layers` has the layers within each package. Imports are
read from the syntax tree, so an import inside a function or under TYPE_CHECKING counts too.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.structure import ROOT, SOURCES, tree_of

pytestmark = SOURCES
OURS = frozenset({"api", "benchmarks", "broker", "counterpoise", "migrations", "tests"})


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a module imports; relative imports come as `.`-prefixed names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            # `from broker import core` imports broker.core
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.cache
def imports_under(directory: str) -> list[tuple[str, str]]:
    """(file, imported dotted name) for every module below `directory`."""
    return [
        (str(path.relative_to(ROOT)), name)
        for path in sorted((ROOT / directory).rglob("*.py"))
        for name in imports_of(tree_of(path))
    ]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_core_imports_only_the_standard_library_and_itself() -> None:
    strangers = [
        f"{path}: {name}"
        for path, name in imports_under("broker/core")
        if not within(name, "broker.core") and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not strangers


@pytest.mark.parametrize(
    "module",
    ["asyncio", "random", "secrets", "socket", "threading", "time", "uuid", "logging", "os"],
)
def test_core_is_pure(module: str) -> None:
    """No clock, no I/O, no randomness, no async: time and ids are arguments."""
    assert not [path for path, name in imports_under("broker/core") if within(name, module)]


@pytest.mark.parametrize(
    ("importer", "forbidden"),
    [
        ("broker", "api"),
        ("counterpoise", "broker"),
        ("counterpoise", "api"),
        *(("migrations", ours) for ours in sorted(OURS - {"migrations"})),
        *((ours, "broker.demo") for ours in ("api", "counterpoise")),
        *((ours, "tests") for ours in ("api", "broker", "counterpoise")),
        *((ours, "benchmarks") for ours in ("api", "broker", "counterpoise")),
    ],
)
def test_imports_run_one_way(importer: str, forbidden: str) -> None:
    assert not [
        f"{path}: {name}" for path, name in imports_under(importer) if within(name, forbidden)
    ]


def test_the_service_uses_of_the_consumers_what_the_page_says() -> None:
    """The table in docs/design.md is the one list.

    `counterpoise simulate --from` and `counterpoise keys` are no part of the service, but ask one
    as every client does. So does the demo.
    """
    page = (ROOT / "docs/design.md").read_text("utf-8")
    table = page.split("| of `counterpoise` | for |\n|---|---|\n")[1].split("\n\n")[0]
    listed = {f"counterpoise.{one}" for one in re.findall(r"`([\w.]+)`", table)}
    clients = ("broker/simulate/command.py", "broker/key_database.py", "broker/key_access.py")
    used = {
        name: path
        for service in ("api", "broker")
        for path, name in imports_under(service)
        # `from counterpoise import wire` names the package, too.
        if name.startswith("counterpoise.") and path not in clients and "broker/demo/" not in path
    }
    assert not {
        name: path for name, path in used.items() if not any(within(name, one) for one in listed)
    }
    assert not {one for one in listed if not any(within(name, one) for name in used)}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import api.app", {"api.app"}),
        ("from broker import core", {"broker", "broker.core"}),
        ("def f():\n    import time", {"time"}),
        ("from . import model", {".", "..model"}),
    ],
)
def test_the_rule_sees_every_form_of_import(source: str, names: set[str]) -> None:
    assert set(imports_of(ast.parse(source))) == names
