"""docs/api has every public name of the Python packages, as the docstrings describe it."""

import ast
import re
import runpy

import pytest
from msgspec import Struct

from counterpoise import wire
from tests.architecture.test_documents import blocks, text
from tests.architecture.test_repository import ROOT, tracked_files

SCRIPT = runpy.run_path(str(ROOT / "docs/api_pages.py"))
WRITTEN: dict[str, str] = SCRIPT["pages"]()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_what_the_docstrings_say(name: str) -> None:
    path = ROOT / "docs/api" / name
    assert path.read_text("utf-8") == WRITTEN[name], "run make reference"


def test_there_is_no_other_page() -> None:
    assert {path.name for path in (ROOT / "docs/api").iterdir()} == set(WRITTEN)


@pytest.mark.parametrize(
    "package",
    [
        f"counterpoise{rest}"
        for rest in ("", ".consumer", ".flow", ".logs", ".publisher", ".spark", ".testing")
    ],
)
def test_every_public_name_of_a_package_is_on_a_page(package: str) -> None:
    described = set(re.findall(r"^### (\w+)$", "\n".join(WRITTEN.values()), re.M))
    assert {name for name, _ in SCRIPT["public"](package)} - described == set()


def test_what_a_page_names_of_the_documents_is_on_a_page() -> None:
    """So no call returns what the pages leave out as of HTTP alone."""
    shapes = {name for name, one in vars(wire).items() if isinstance(one, type(Struct))}
    shapes.remove("Struct")
    pages = "\n".join(WRITTEN.values())
    code = " ".join(re.findall(r"^```py\n.*?^```$|`[^`\n]+`", pages, re.M | re.S))
    named = shapes & set(re.findall(r"\w+", code))
    assert len(named) > 30
    assert named - set(re.findall(r"^### (\w+)$", pages, re.M)) == set()


def imports() -> dict[str, str]:
    """What the documents and examples import from the packages, each with a place."""
    found: dict[str, str] = {}
    public = re.compile(r"counterpoise(?!_demo)")
    codes = [(one.id, one.values[0]) for one in blocks("python")]
    examples = (name for name in tracked_files() if re.match(r"docs/examples/.*\.py$", name))
    codes += [(name, text(name)) for name in examples]
    for name, code in codes:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and public.match(node.module or ""):
                found |= {alias.name: f"{name}: {node.module}" for alias in node.names}
    return found


def test_what_the_documents_import_is_on_a_page() -> None:
    described = set(re.findall(r"^### (\w+)$", "\n".join(WRITTEN.values()), re.M))
    found = imports()
    assert len(found) > 20
    assert {name: place for name, place in found.items() if name not in described} == {}
