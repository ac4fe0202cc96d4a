"""Writes deploy/THIRD-PARTY.md: the packages that users get with the wheels, and their licenses.

    .venv/bin/python deploy/third_party.py > deploy/THIRD-PARTY.md   # with Python 3.11

Names and versions are those of the lock; the licenses are what each installed package says of
itself. Packages that only our development needs, or other platforms than Linux, are left out.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
OURS = frozenset({"counterpoise", "counterpoise-server"})
TESTING = "testing"


def wanted() -> Iterator[tuple[str, str]]:
    """The direct dependencies of both wheels, and for what; those of tests are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in project["dependencies"]:
        yield text, "consumers"
    for extra, texts in project["optional-dependencies"].items():
        for text in texts if extra != TESTING else ():
            yield text, f"[{extra}]"
    server = tomllib.loads((ROOT / "deploy/server/pyproject.toml").read_text("utf-8"))["project"]
    for text in server["dependencies"]:
        yield text, "service"
    for extra, texts in server["optional-dependencies"].items():
        for text in texts:
            yield text, f"service [{extra}]"


def needed(text: str, extras: frozenset[str] = frozenset()) -> Iterator[tuple[str, frozenset[str]]]:
    """The package that a requirement names, with its extras, if this platform needs it."""
    requirement = Requirement(text)
    name = canonicalize_name(requirement.name)
    applies = requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
    )
    if applies and name not in OURS:
        yield name, frozenset(requirement.extras)


def closure() -> dict[str, set[str]]:
    """Every package, and who gets it."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str], str]] = set()
    waiting = [(*one, why) for text, why in wanted() for one in needed(text)]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        name, extras, why = item
        found.setdefault(name, set()).add(why)
        for text in distribution(name).requires or ():
            waiting += [(*one, why) for one in needed(text, extras)]
    return found


def license_of(package: Distribution) -> str:
    """What the package says: its SPDX expression, else its classifiers, else its first line."""
    expression = package.metadata.get("License-Expression")
    if expression:
        return expression
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in package.metadata.get_all("Classifier") or ()
        if text.startswith("License ::") and text.count("::") > 1
    ]
    text = (package.metadata.get("License") or "").strip()
    short = text.splitlines()[0] if text else ""
    return " or ".join(classifiers) or (short if len(short) < 60 else "") or "see the package"


def page() -> str:
    """The whole file."""
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    versions = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", lock, re.MULTILINE))
    rows = []
    for name, why in sorted(closure().items()):
        try:
            stated = license_of(distribution(name))
        except PackageNotFoundError:
            stated = "not installed"
        rows.append(f"| {name} | {versions.get(name, '?')} | {stated} | {', '.join(sorted(why))} |")
    head = (
        "# Third-party packages\n\n"
        "What is installed with the wheels, in the locked versions (Linux). Written by "
        "`deploy/third_party.py`.\n\n"
        "| package | version | license | comes with |\n|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
