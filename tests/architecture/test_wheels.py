"""Both wheels, built from the committed files and installed into new environments.

These tests need the package index, like `make setup`.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.test_repository import ROOT, tracked_files

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("wheels")]

CONSUMERS = frozenset({"counterpoise"})
SERVICE = frozenset({"api", "broker", "migrations"})


def run(*command: str | Path, cwd: Path) -> str:
    """The output of the command. On an error, fails with all of it."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions as constraints, without hashes, because our own wheels have none."""
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    path = tmp_path_factory.mktemp("versions") / "constraints.txt"
    path.write_text(re.sub(r"\s*\\\n\s+--hash=\S+", "", lock), "utf-8")
    return path


def environment_with(wheels: Path, versions: Path, name: str, directory: Path) -> Path:
    """The `bin` of a new virtual environment with the wheel and its dependencies."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=wheels)
    binaries = directory / "bin"
    run(
        *(sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet"),
        *("--constraint", versions, "--find-links", wheels, name),
        cwd=wheels,
    )
    return binaries


def packages_of_ours(binaries: Path, directory: Path) -> set[str]:
    """Which of the repository's packages can be imported in that environment."""
    program = (
        "import importlib.util as u, sys;"
        "print(*[name for name in sys.argv[1:] if u.find_spec(name)])"
    )
    names = sorted(CONSUMERS | SERVICE | {"tests", "benchmarks"})
    return set(run(binaries / "python", "-I", "-c", program, *names, cwd=directory).split())


@pytest.mark.parametrize(
    ("pattern", "packages"),
    [("counterpoise-*.whl", CONSUMERS), ("counterpoise_server-*.whl", SERVICE)],
)
def test_a_wheel_has_all_files_of_its_packages_and_nothing_else(
    wheels: Path, pattern: str, packages: frozenset[str]
) -> None:
    [wheel] = wheels.glob(pattern)
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    committed = {
        name
        for name in tracked_files()
        if name.partition("/")[0] in packages and (ROOT / name).is_file()
    }
    assert carried == committed


def test_a_consumer_gets_no_service(wheels: Path, versions: Path, tmp_path: Path) -> None:
    binaries = environment_with(wheels, versions, "counterpoise", tmp_path / "venv")
    assert packages_of_ours(binaries, tmp_path) == CONSUMERS
    assert "Usage" in run(binaries / "counterpoise", "--help", cwd=tmp_path)


def test_the_service_brings_both(wheels: Path, versions: Path, tmp_path: Path) -> None:
    binaries = environment_with(wheels, versions, "counterpoise-server", tmp_path / "venv")
    assert packages_of_ours(binaries, tmp_path) == CONSUMERS | SERVICE
    helped = run(binaries / "counterpoise", "--help", cwd=tmp_path)
    assert "serve" in helped
    assert "migrate" in helped
    assert "--database-url" in run(binaries / "counterpoise", "serve", "--help", cwd=tmp_path)
