"""An archive of Spark's classes: with it the JVMs of the tests start with half of the work.

Half of what a short-lived Spark costs is reading and verifying some 15,000 classes. Java can map
them from a file instead (class data sharing, JEP 310 and 350). Making the file costs as much as a
few starts, so the long tests use it, which start a hundred: `make test-long` runs this module once.

The result is a directory for `JAVA_HOME` (`tests/conftest.py` sets it, where the directory exists)
whose `bin/java` runs the real one with the archive where that fits: with the jars of this PySpark,
also by way of a home of Spark (`small.spark_home`). With others Java would also go without the
archive of its own classes.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.counterpoise.spark.small import SMALL_JAVA, SPARK_HOME
from tests.counterpoise.spark.waiting import until
from tests.processes import descendants, find

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
        class_path = _note_classes(Path(directory, "driver"), unfinished)
    share = [f"-XX:SharedArchiveFile={unfinished}", "-Xshare:on", "-version"]
    used = [str(program), *SMALL_JAVA.split(), "-cp", class_path, *QUIET.split(), *share]
    subprocess.run(used, check=True, stderr=subprocess.DEVNULL)
    script = HOME / "bin" / "java"
    start = f"exec {shlex.quote(str(program))} {QUIET}"
    archive = f"-XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))}"
    # Java compares the files, not their paths.
    jars = Path(class_path.split(":")[1]).parent
    fits = f"*:{shlex.quote(str(jars))}/*|*/{SPARK_HOME}/jars/*"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in {fits}) {start} {archive} "$@" ;; esac\n{start} "$@"\n'
    )
    script.chmod(0o755)
    unfinished.replace(ARCHIVE)


def _note_classes(directory: Path, archive: Path) -> str:
    """Let a warm driver's Java archive its classes when it ends. Returns its class path, with which
    the archive fits.
    """
    from tests.counterpoise.spark.jobs.drivers import Driver, Setup

    java = f"{SMALL_JAVA} {QUIET} -XX:ArchiveClassesAtExit={archive}"
    driver = Driver(directory, Setup(config={"spark__driver__extraJavaOptions": java}))
    try:
        driver.until_warm()
        (jvm,) = [one for one in descendants(driver.pid) if one.name == "java"]
        command = Path(f"/proc/{jvm.pid}/cmdline").read_text().split("\0")
        os.kill(jvm.pid, signal.SIGTERM)
        until(lambda: find(jvm.pid) is None, "Java has ended")
    finally:
        driver.kill()
    return command[command.index("-cp") + 1]


if __name__ == "__main__":
    make()
