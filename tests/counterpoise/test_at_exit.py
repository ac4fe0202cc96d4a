"""What is done at the end of a process is done once, and by this process only."""

import subprocess
import sys

import pytest

PROGRAM = """
import {imported}, os, sys
from counterpoise.at_exit import at_exit

at_exit(lambda: print("the parent", flush=True))
if os.fork() == 0:
    sys.exit()
os.wait()
"""


@pytest.mark.parametrize("imported", ["os", "multiprocessing.util"])
def test_a_forked_process_does_not_do_it_for_its_parent(imported):
    program = PROGRAM.format(imported=imported)
    said = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=240, check=True
    )
    assert said.stdout == "the parent\n"
