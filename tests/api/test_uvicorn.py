"""What `api.connections` takes for granted of uvicorn is as it was.

Its protocol has no promises, so the package is bounded to the versions that were read. When this
test fails after a raise of the bound, read what has changed there, adapt `api.connections`, and
record it: REWRITE=1 .venv/bin/pytest tests/api/test_uvicorn.py
"""

import ast
import hashlib
import inspect
import os
import textwrap
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api import connections
from api.connections import Connection
from tests.architecture.test_repository import ROOT

RECORDED = Path(__file__).with_name("uvicorn.txt")
TREE = ast.parse(inspect.getsource(connections))
(OURS,) = (one for one in TREE.body if isinstance(one, ast.ClassDef) and one.name == "Connection")


def attributes_of(made: type) -> set[str]:
    """The methods of a class, and what they set on `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return stored | {name for name in vars(made) if not name.startswith("__")}


def used_of(owner: str) -> set[str]:
    """The attributes that the class uses of what ends so: `self`, `cycle`, `cycle.flow`."""
    return {
        node.attr
        for node in ast.walk(OURS)
        if isinstance(node, ast.Attribute)
        if ast.unparse(node.value).rpartition(".")[2] == owner
    }


def overridden() -> set[str]:
    return {name for name in vars(Connection) if not name.startswith("__")} & set(
        dir(HttpToolsProtocol)
    )


def state() -> Iterator[tuple[str, str]]:
    """Each method that is overridden, with a digest of its text in uvicorn; and the two classes
    whose objects are changed.
    """
    for name in ("__init__", *sorted(overridden())):
        yield f"HttpToolsProtocol.{name}", digest(getattr(HttpToolsProtocol, name))
    for made in (FlowControl, RequestResponseCycle):
        yield made.__name__, digest(made)


def digest(thing: object) -> str:
    return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()[:16]  # type: ignore[arg-type]


def test_what_is_overridden_is_as_it_was_read() -> None:
    found = dict(state())
    if os.environ.get("REWRITE"):
        RECORDED.write_text("".join(f"{name} {text}\n" for name, text in found.items()), "utf-8")
    recorded = dict(line.split() for line in RECORDED.read_text("utf-8").splitlines())
    changed = sorted(
        name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)
    )
    assert not changed, (
        f"uvicorn {metadata.version('uvicorn')} differs from what api/connections.py was written "
        f"for, or overrides differ, in {', '.join(changed)}: see the head of this module"
    )


@pytest.mark.parametrize(
    ("owner", "made"),
    [("self", HttpToolsProtocol), ("cycle", RequestResponseCycle), ("flow", FlowControl)],
)
def test_what_is_used_is_there(owner: str, made: type) -> None:
    own = {*vars(Connection), *Connection.__slots__} if owner == "self" else set()
    used = used_of(owner) - own
    assert len(used) > 1
    missing = sorted(used - attributes_of(made))
    assert not missing, (
        f"api/connections.py uses {', '.join(missing)} of uvicorn's {made.__name__}, which has "
        f"none in version {metadata.version('uvicorn')}"
    )


def test_only_versions_that_were_read_are_installed() -> None:
    """Its insides change with a minor version."""
    project = tomllib.loads((ROOT / "deploy/server/pyproject.toml").read_text("utf-8"))
    (needed,) = (
        one for one in map(Requirement, project["project"]["dependencies"]) if one.name == "uvicorn"
    )
    installed = Version(metadata.version("uvicorn"))
    assert installed in needed.specifier
    assert f"{installed.major}.{installed.minor - 1}" not in needed.specifier
    assert f"{installed.major}.{installed.minor + 1}" not in needed.specifier
