"""Python environments for executors, with and without the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[4] / "counterpoise"
SOURCE_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


def environment(directory: Path, *, with_package: bool) -> Path:
    """A Python environment with all libraries, and `counterpoise` only if asked for.

    It is compiled and has run once, because Spark gives the process of a source ten seconds to
    connect.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    # Only the libraries: an editable package's .pth line has no effect from here.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if with_package:
        shutil.copytree(
            PACKAGE, packages / "counterpoise", ignore=shutil.ignore_patterns("__pycache__")
        )
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "compileall", "-q", packages], check=True)
    subprocess.run([python, "-c", f"import {SOURCE_PROCESS}, pyarrow"], check=True)
    return directory


def packed(directory: Path, file: Path) -> Path:
    """The environment as an archive (`.tar.gz`)."""
    with tarfile.open(file, "w:gz") as tar:
        tar.add(directory, arcname=".")
    return file


def bare_python(directory: Path) -> Path:
    """A Python that cannot import counterpoise."""
    python = environment(directory, with_package=False) / "bin" / "python"
    command = [str(python), "-c", "import pyspark, pyarrow, psycopg; import counterpoise"]
    failed = subprocess.run(command, cwd=directory, capture_output=True, text=True, env={})
    assert "No module named 'counterpoise'" in failed.stderr, failed.stderr
    return python


def zipped_package(directory: Path) -> Path:
    """The package as a file for `--py-files`."""
    name = str(directory / "counterpoise")
    return Path(shutil.make_archive(name, "zip", PACKAGE.parent, PACKAGE.name))
