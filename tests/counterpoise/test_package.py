"""The names in `import counterpoise`, and the modules that it does not load."""

import subprocess
import sys

import pytest

import counterpoise


def test_every_public_name_is_there():
    assert [getattr(counterpoise, name).__name__ for name in counterpoise.__all__] == (
        counterpoise.__all__
    )
    assert {*counterpoise.__all__, "__version__"} <= {*dir(counterpoise)}
    with pytest.raises(AttributeError, match="nothing"):
        _ = counterpoise.nothing  # type: ignore[attr-defined]


def test_importing_it_loads_neither_http_nor_arrow():
    code = "import sys, counterpoise; print({'httpx', 'pyarrow', 'psycopg'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


# What is missing with the wheel alone is missing here, too: httpx loads a command line of its own
# if it finds one.
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("click", "pyarrow", "rich")))
before = {*sys.modules}
from counterpoise import Client, Consumer, DeadLetter, Message, Publisher, Retry
print(*{name for name, module in sys.modules.items() if module is not None} - before)
"""


def test_a_consumer_and_a_publisher_of_the_builtin_log_import_only_what_they_use():
    """Modules are counted, which are most of the memory at the start; no size is measured."""
    command = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "click", "numpy", "pandas", "pyarrow", "pygments", "rich", "typer"}
    assert not heavy & {name.partition(".")[0] for name in said}
    assert len(said) <= 242
