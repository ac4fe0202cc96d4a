"""The rooms of the code: no circles, packages that are worth a folder, one meaning for each name.

`python -m tests.architecture.shape` (`make shape`) prints what no rule can decide.
"""

from pathlib import Path

import pytest

from tests.architecture.structure import (
    ROOT,
    SOURCES,
    Module,
    circles,
    defined_twice,
    graph_of,
    imported,
    imports,
    modules,
    read_modules,
)

pytestmark = SOURCES

# Public class names that several modules define, each with its reason.
WIRE = """
    Child ChildrenItem CommitItem Condition Handoff Lineage LogAccess Move Partition Queue ReadyItem
    Rebalance ReleaseItem Result
"""
ERRORS = """
    FlowGone FlowNotFound Forbidden Invalid Overtaken QueueExists QueueInUse QueueNotFound
    QueueUnreadable ResizeUnsettled StateKept Unauthorized
"""
REQUESTS = "NewKey Root"
TWICE = {
    "Rows": "what a read of a log has brought; and what a target of a sink takes",
    **dict.fromkeys(
        WIRE.split(),
        "one thing on the wire (counterpoise.wire) and in the service",
    ),
    **dict.fromkeys(
        ERRORS.split(),
        "one problem on the wire: what the service raises, and what the client raises for its code",
    ),
    **dict.fromkeys(REQUESTS.split(), "what a call takes, and what the service makes of it"),
    "Results": "of aggregates, and what a call of a flow answers",
    "Flow": "the consumer's binding, and the row that the core has of it",
    "Grant": "a grant in the ledger of a consumer, and in the records of the core",
    "Granted": "the notice to a program, and the record of the core",
    "Message": "what a handler gets (with its grant), and what a log has",
    "Node": "a partition in the graph: of the core, and as it is drawn",
    "Pause": "of a partition, on the wire and in the service; and a step of a program that waits",
    "Pin": "of a partition, on the wire and in the service",
    "Settings": "of a queue, and of the service",
    "Status": "of a consumer, and of a queue",
}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circles(imports())


def lone(found: dict[str, Module]) -> list[str]:
    """The packages that are no more than one file: fewer than two modules beside a plain
    `__init__`, or none beside one with code.
    """
    return [
        name
        for name, module in found.items()
        if module.is_package
        and "." in name
        and sum(other.rpartition(".")[0] == name for other in found) + (not module.is_plain) < 2
    ]


def test_a_package_has_at_least_two_modules() -> None:
    assert not lone(modules())


def test_a_public_class_is_defined_once_or_has_a_reason() -> None:
    found = defined_twice(modules())
    assert not {name: places for name, places in found.items() if name not in TWICE}
    assert not TWICE.keys() - found.keys(), "no longer defined twice: take it off the list"


# ------------------------------------------------------------------ the rules themselves


def house(root: Path, files: dict[str, str]) -> dict[str, Module]:
    """Modules of `counterpoise` with these texts, by their paths."""
    for name, text in files.items():
        path = root / "counterpoise" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return read_modules(root)


@pytest.mark.parametrize(
    "back",
    [
        "from counterpoise.a.one import x",
        "import counterpoise.a.one",
        "from counterpoise.a import one",
        "def late():\n    from counterpoise.a.one import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import counterpoise.a.one",
        "import_module('counterpoise.a.one')",
        "KINDS = {'one': ('counterpoise.a.one', 'One')}",
    ],
)
def test_a_circle_is_found_however_it_is_imported(tmp_path: Path, back: str) -> None:
    found = house(tmp_path, {"a/one.py": "import counterpoise.b.two", "b/two.py": back})
    assert circles(graph_of(found)) == [["counterpoise.a.one", "counterpoise.b.two"]]


def test_a_module_imports_the_module_or_the_package_that_has_the_name(tmp_path: Path) -> None:
    files = {"a/__init__.py": "x = 1", "a/one.py": "from counterpoise.a import x, two"}
    found = house(tmp_path, {**files, "a/two.py": ""})
    one = found["counterpoise.a.one"]
    assert imported(one, found) == {"counterpoise.a", "counterpoise.a.two"}


def test_a_package_of_one_file_is_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "only/__init__.py": "x = 1",
        "one/__init__.py": '"""A docstring."""',
        "one/module.py": "",
        "two/__init__.py": "",
        "two/first.py": "",
        "two/second.py": "",
        "whole/__init__.py": "x = 1",
        "whole/other.py": "",
    }
    found = house(tmp_path, files)
    assert lone(found) == ["counterpoise.one", "counterpoise.only"]


def test_a_class_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    found = house(tmp_path, dict.fromkeys(("one.py", "two.py"), "class A: ...\nclass _B: ..."))
    assert defined_twice(found) == {"A": ["counterpoise.one", "counterpoise.two"]}


def test_the_modules_are_those_of_the_repository() -> None:
    assert modules()["broker.core.rebalancer"].path == ROOT / "broker/core/rebalancer.py"
