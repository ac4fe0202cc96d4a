"""Both wheels, built from the committed files; and environments that have nothing else.

`install` needs the package index, like `make setup`. `environment_like_ours` does not.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.architecture.test_repository import ROOT, tracked_files


def run(*command: str | Path, cwd: Path) -> str:
    """The output of the command. On an error, fails with all of it."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, as they are now, and nothing else."""
    directory = tmp_path_factory.mktemp("checkout")
    for name in tracked_files():
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name, follow_symlinks=False)
    return directory


@pytest.fixture(scope="session")
def wheels(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both wheels, built without an sdist."""
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


def new_environment(directory: Path) -> Path:
    """The `bin` of a new and empty virtual environment."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    return directory / "bin"


def pip(binaries: Path, *arguments: str | Path) -> None:
    """Our own pip, on the environment of these `bin`. What it installs is compiled when used."""
    command = (sys.executable, "-m", "pip", "--quiet", "--python", binaries / "python")
    run(*command, *arguments, cwd=binaries)


def install(binaries: Path, wheels: Path, versions: Path, name: str) -> None:
    """Install one of the wheels and its dependencies, in the locked versions."""
    sources = ("--constraint", versions, "--find-links", wheels)
    pip(binaries, "install", "--no-compile", *sources, name)


def environment_like_ours(wheels: Path, names: Sequence[str], directory: Path) -> Path:
    """The `bin` of a new virtual environment with both wheels, and what they declare for `names`.

    The dependencies are the files that `make setup` installed for the tests: linked, not copied.
    """
    binaries = new_environment(directory)
    offline = ("--no-deps", "--no-index", "--find-links", wheels)
    pip(binaries, "install", *offline, "counterpoise", "counterpoise-server")
    (site,) = directory.glob("lib/python*/site-packages")
    ours = {canonicalize_name(each.name): each for each in metadata.distributions(path=[str(site)])}
    for name, distribution in declared(ours, names).items():
        if name not in ours:
            link(distribution, directory)
    return binaries


def declared(
    ours: dict[NormalizedName, metadata.Distribution], names: Sequence[str]
) -> dict[NormalizedName, metadata.Distribution]:
    """All distributions that are required, by name: those of `ours`, and the installed ones.

    Fails if the version of one does not fit.
    """
    found: dict[NormalizedName, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    wanted = [Requirement(name) for name in names]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        found[name] = ours.get(name) or metadata.distribution(name)
        assert requirement.specifier.contains(found[name].version, prereleases=True), requirement
        for extra in {"", *requirement.extras} - {extra for one, extra in seen if one == name}:
            seen.add((name, extra))
            wanted += _required(found[name], extra)
    return found


def _required(distribution: metadata.Distribution, extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def link(distribution: metadata.Distribution, directory: Path) -> None:
    """Hard links to its files; its programs start the Python of the new environment."""
    prefix = Path(sys.prefix).resolve()
    for source in _files(distribution):
        target = directory / source.relative_to(prefix)
        if not source.exists() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.parent.name == "bin" and target.parent.parent == directory:
            program = source.read_bytes()
            target.write_bytes(
                program.replace(os.fsencode(prefix / "bin"), os.fsencode(directory / "bin"), 1)
            )
            target.chmod(0o755)
        else:
            _link(source, target)


def _files(distribution: metadata.Distribution) -> Iterator[Path]:
    """Its files, and what was compiled of them: uv does not list it, and a new environment would
    compile anew all that it imports.
    """
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file))).resolve()
        yield path
        if path.suffix == ".py":
            yield Path(cache_from_source(path))


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system
        shutil.copy2(source, target)
