"""Both wheels, built from the committed files; and environments that have nothing else.

The fixtures need the package index, like `make setup`.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.architecture.test_repository import ROOT, tracked_files


def run(*command: str | Path, cwd: Path) -> str:
    """The output of the command. On an error, fails with all of it."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both wheels, made from a checkout of tracked files only."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in tracked_files():
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    directory = tmp_path_factory.mktemp("wheels")
    for project in (".", "deploy/server"):
        run(
            *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
            *("--outdir", directory, project),
            cwd=checkout,
        )
    return directory


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions as constraints, without hashes, because our own wheels have none."""
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    path = tmp_path_factory.mktemp("versions") / "constraints.txt"
    path.write_text(re.sub(r"\s*\\\n\s+--hash=\S+", "", lock), "utf-8")
    return path


def environment_with(wheels: Path, versions: Path, names: Sequence[str], directory: Path) -> Path:
    """The `bin` of a new virtual environment with the wheels and their dependencies."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=wheels)
    binaries = directory / "bin"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        binaries / "python",
        "install",
        "--quiet",
    ]
    run(*pip, "--constraint", versions, "--find-links", wheels, *names, cwd=wheels)
    return binaries
