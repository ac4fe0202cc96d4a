"""An archive of Spark's classes: with it the JVMs of the tests start with half of the work.

Half of what a short-lived Spark costs is reading and verifying some 15,000 classes. Java can map
them from a file instead (class data sharing, JEP 310 and 350). Making the file costs as much as a
few starts, so the long tests use it, which start a hundred: `make test-long` runs this module once.

The result is a directory for `JAVA_HOME` (`tests/conftest.py` sets it, where the directory exists)
whose `bin/java` runs the real one with the archive where that fits: with the jars of this PySpark.
With others Java would also go without the archive of its own classes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.counterpoise.spark.small import SMALL_JAVA
from tests.processes import descendants

HOME = Path(sys.prefix, "java-for-tests")
ARCHIVE = HOME / "spark.jsa"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def use() -> None:
    """Let every JVM that this process and its children start use the archive, if it was made."""
    if ARCHIVE.exists():
        os.environ["JAVA_HOME"] = str(HOME)


def make() -> None:
    """Make the archive and the directory. Raises CalledProcessError if Java cannot use it."""
    from counterpoise.spark.driver.environment import ensure_java

    ARCHIVE.unlink(missing_ok=True)
    java = ensure_java()
    assert java is not None, "there is no Java"
    program = java / "bin" / "java"
    unfinished = ARCHIVE.with_suffix(".new")
    (HOME / "bin").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        classes = Path(directory, "classes")
        class_path = _note_classes(Path(directory, "driver"), classes)
        run = [str(program), *SMALL_JAVA.split(), "-cp", class_path, *QUIET.split()]
        run.append(f"-XX:SharedArchiveFile={unfinished}")
        for action in (
            ["-Xshare:dump", f"-XX:SharedClassListFile={classes}"],
            ["-Xshare:on", "-version"],
        ):
            subprocess.run([*run, *action], check=True, stderr=subprocess.DEVNULL)
    script = HOME / "bin" / "java"
    start = f"exec {shlex.quote(str(program))} {QUIET}"
    archive = f"-XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))}"
    # Directories are not in the archive, and clusters have another one in front.
    jars = Path(class_path.split(":")[1]).parent
    fits = f"*:{shlex.quote(str(jars))}/*"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in {fits}) {start} {archive} "$@" ;; esac\n{start} "$@"\n'
    )
    script.chmod(0o755)
    unfinished.replace(ARCHIVE)


def _note_classes(directory: Path, classes: Path) -> str:
    """Let Java list the classes that a driver has needed when it is warm. Returns its class path,
    which must be the same whenever the archive is used.
    """
    from tests.counterpoise.spark.jobs.drivers import Driver, Setup

    java = f"{SMALL_JAVA} -XX:DumpLoadedClassList={classes}"
    driver = Driver(directory, Setup(config={"spark__driver__extraJavaOptions": java}))
    try:
        driver.until_warm()
        (jvm,) = [one.pid for one in descendants(driver.pid) if one.name == "java"]
        command = Path(f"/proc/{jvm}/cmdline").read_text().split("\0")
    finally:
        driver.kill()
    return command[command.index("-cp") + 1]


if __name__ == "__main__":
    make()
