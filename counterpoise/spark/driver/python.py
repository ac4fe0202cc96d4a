"""The Python that Spark starts for a query's source and for its tasks, on the driver's machine.

Spark sets PYTHONPATH for these processes and begins it with archives of PySpark. What Python
imports from an archive it compiles anew in each process: 0.9 s of CPU time instead of 0.3 s with
the installed package, which is the same PySpark. A query's source must connect within ten seconds,
a limit that is fixed in Spark, and on a loaded machine this was too short.

So for a master on this machine PYSPARK_PYTHON is a script that takes these archives off the path
and runs Python. Everything else on the path stays.
"""

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from counterpoise.spark.driver.launchers import written

LAUNCHER = """\
#!/bin/sh
# Made by Counterpoise: runs Python with the installed PySpark instead of its archives.
rest=$PYTHONPATH:
kept=
while [ -n "$rest" ]; do
  entry=${{rest%%:*}}
  rest=${{rest#*:}}
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) [ "${{entry%/*}}" -ef {archives} ] && continue ;;
  esac
  kept=$kept${{kept:+:}}$entry
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


@contextlib.contextmanager
def installed_pyspark(master: str | None) -> Iterator[None]:
    """Let a Spark that is started meanwhile run its Python with the installed PySpark.

    Changes nothing if processes may run on other machines, or if PYSPARK_PYTHON is another Python.
    """
    python = os.environ.get("PYSPARK_PYTHON")
    if python != sys.executable or not re.fullmatch(r"local(\[.*\])?", master or ""):
        yield
        return
    os.environ["PYSPARK_PYTHON"] = str(_launcher() or python)
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = python


def launcher_script(python: str, archives: Path) -> str:
    """A shell script that runs `python` without what is in `archives` on its path."""
    return LAUNCHER.format(python=shlex.quote(python), archives=shlex.quote(str(archives)))


def _launcher() -> Path | None:
    """A program that does so, if it runs here."""
    spec = importlib.util.find_spec("pyspark")
    if os.name != "posix" or spec is None or spec.origin is None:
        return None
    archives = Path(spec.origin).parent / "python" / "lib"
    for program in written("python", launcher_script(sys.executable, archives)):
        # Spark's own scripts do not quote it.
        if not re.search(r"\s", str(program)) and _runs(program):
            return program
    return None


def _runs(program: Path) -> bool:
    try:
        return not subprocess.run([program, "-I", "-S", "-c", ""], timeout=60).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
