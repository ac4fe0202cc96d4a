"""The command without the packages of its extra."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == sys.argv[1] else real(name)
from counterpoise.cli import main
main()
"""


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_the_command_says_in_one_line_how_to_install_it(missing: str) -> None:
    command = [sys.executable, "-c", PROGRAM, missing]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    expected = "counterpoise: the command needs click and rich: pip install 'counterpoise[cli]'\n"
    assert done.stderr == expected
