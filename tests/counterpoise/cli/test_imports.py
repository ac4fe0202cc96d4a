"""A command imports what it uses, because most of its start are imports.

Modules are counted, and no time is measured: a slow machine does not fail this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Prints what the command has imported beyond what Python does at every start, whether the collector
# runs, how often it ran, whether it leaves alone what ends with the process, and how many routes
# of the service are complete, and whether packages can be searched again.
PROGRAM = """
import atexit, gc, json, sys
before = {*sys.modules}
real = lambda: {name for name, module in sys.modules.items() if module is not None}
runs = lambda: sum(one["collections"] for one in gc.get_stats()) - at_first
left = lambda: gc.get_freeze_count() > len(gc.get_objects())
routes = lambda: sys.modules["api.openapi"].all_routes() if "api.openapi" in sys.modules else []
complete = lambda: sum(hasattr(route, "dependant") for route in routes())
search = lambda: __import__("importlib.metadata").metadata.entry_points.__name__
shown = lambda: json.dumps(
    [sorted(real() - before), gc.isenabled(), runs(), left(), complete(), search()]
)
atexit.register(lambda: print(shown(), file=sys.__stderr__))
from counterpoise.cli import main
at_first = sum(one["collections"] for one in gc.get_stats())
sys.argv[0] = "counterpoise"
main()
"""
NO_SERVICE = ("--url", "http://127.0.0.1:1")
# Each of these takes as long as an empty Python does in all, or several times as long.
HEAVY = {
    "alembic", "asyncio", "asyncpg", "fastapi", "numpy", "pandas", "psycopg", "pyarrow", "pydantic",
    "pyspark", "rich", "sqlalchemy", "structlog", "typer", "uvicorn",
}  # fmt: skip
# Python's own modules import a few more in newer versions.
MORE = 0 if sys.version_info < (3, 12) else 10


def imported(*arguments: str, code: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stderr
    found: list[str]
    found, collects, runs, left, complete, search = json.loads(done.stderr.splitlines()[-1])
    assert collects
    assert not runs
    assert left
    assert not complete
    assert search == "entry_points"
    return found


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize(
    ("arguments", "code", "needless", "most"),
    [
        (("--help",), 0, HEAVY | {"dataclasses", "httpcore", "httpx", "msgspec", "ssl"}, 67),
        (("queues", "list", *NO_SERVICE), 1, HEAVY | {"difflib"}, 231),
        (("status", *NO_SERVICE), 1, HEAVY | {"difflib"}, 232),
    ],
)
def test_a_command_imports_only_what_it_uses(
    arguments: tuple[str, ...], code: int, needless: set[str], most: int
) -> None:
    modules = imported(*arguments, code=code)
    assert "click" in modules
    assert not packages(modules) & needless
    assert len(modules) <= most + MORE


def test_a_service_that_would_be_everybodys_is_refused_before_it_is_imported(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "none"
    where = ("--host", "0.0.0.0", "--port", "0", "--data-dir", str(directory))
    modules = imported("serve", *where, code=9)
    assert not packages(modules) & HEAVY
    assert "broker.launch" not in modules
    assert len(modules) <= 113 + MORE
    assert not directory.exists()


@pytest.mark.long
def test_a_service_imports_only_what_it_uses() -> None:
    # It imports all that it needs before it calls its database, and this one is away.
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    modules = imported("serve", "--port", "0", "--database-url", nobody, code=5)
    assert "api.server" in modules
    # Of the logs, only the one in its own database.
    needless = {"alembic", "confluent_kafka", "httpx", "pydantic_settings", "pygments", "redis"}
    needless |= {"colorama", "rich", "watchfiles"}
    assert not packages(modules) & needless
    assert "pydantic.v1" not in modules
    assert len(modules) <= 961 + MORE
