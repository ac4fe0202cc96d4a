"""Both wheels, installed into new environments."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.footprint import installed
from tests.architecture.conftest import environment_like_ours, install, new_environment, pip, run
from tests.architecture.test_repository import ROOT, tracked_files

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheels")]

CONSUMERS = frozenset({"counterpoise"})
SERVICE = frozenset({"api", "broker", "migrations"})


def packages_of_ours(binaries: Path, directory: Path) -> set[str]:
    """Which of the repository's packages can be imported in that environment."""
    program = (
        "import importlib.util as u, sys;"
        "print(*[name for name in sys.argv[1:] if u.find_spec(name)])"
    )
    names = sorted(CONSUMERS | SERVICE | {"tests", "benchmarks"})
    return set(run(binaries / "python", "-I", "-c", program, *names, cwd=directory).split())


@pytest.mark.parametrize(
    ("pattern", "packages", "more"),
    [
        # By which Spark finds the source.
        ("counterpoise-*.whl", CONSUMERS, {"pyspark_counterpoise.py"}),
        ("counterpoise_server-*.whl", SERVICE, set()),
    ],
)
def test_a_wheel_has_all_files_of_its_packages_and_nothing_else(
    wheels: Path, pattern: str, packages: frozenset[str], more: set[str]
) -> None:
    [wheel] = wheels.glob(pattern)
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    committed = {
        name
        for name in tracked_files()
        if name.partition("/")[0] in packages and (ROOT / name).is_file()
    }
    assert carried == committed | more


@pytest.mark.parametrize(
    ("project", "name"), [(".", "counterpoise"), ("deploy/server", "counterpoise_server")]
)
def test_an_sdist_makes_the_same_wheel(
    checkout: Path, wheels: Path, tmp_path: Path, project: str, name: str
) -> None:
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path)
    run(*build, project, cwd=checkout)  # the sdist, and from that the wheel
    [sdist] = tmp_path.glob("*.tar.gz")
    [wheel] = tmp_path.glob("*.whl")
    assert sdist.name.startswith(f"{name}-")
    assert wheel.read_bytes() == (wheels / wheel.name).read_bytes()


@pytest.mark.parametrize("pattern", ["counterpoise-*.whl", "counterpoise_server-*.whl"])
def test_a_wheel_carries_its_licenses_and_a_page(wheels: Path, pattern: str) -> None:
    [wheel] = wheels.glob(pattern)
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert texts["NOTICE"] == (ROOT / "deploy/NOTICE").read_bytes()
    assert b"\nDescription-Content-Type: text/markdown\n" in texts["METADATA"]


@pytest.mark.matrix(of="newcomers")
def test_a_consumer_gets_no_service_and_the_service_brings_both(
    wheels: Path, versions: Path, tmp_path: Path
) -> None:
    """One after the other in one environment, as they need much the same."""
    binaries = new_environment(tmp_path / "venv")
    install(binaries, wheels, versions, "counterpoise")
    assert packages_of_ours(binaries, tmp_path) == CONSUMERS
    # What a plain consumer weighs; `python -m benchmarks.footprint` has the rest of the figures.
    found = installed(binaries / "python")
    assert found.packages <= 12
    assert found.size_bytes <= 40_000_000
    refused = subprocess.run([binaries / "counterpoise"], capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "pip install 'counterpoise[cli]'" in refused.stderr
    install(binaries, wheels, versions, "counterpoise[cli]")
    assert "Usage" in run(binaries / "counterpoise", "--help", cwd=tmp_path)
    pip(binaries, "uninstall", "--yes", "counterpoise")
    install(binaries, wheels, versions, "counterpoise-server")
    assert packages_of_ours(binaries, tmp_path) == CONSUMERS | SERVICE
    helped = run(binaries / "counterpoise", "--help", cwd=tmp_path)
    assert "serve" in helped
    assert "migrate" in helped
    assert "--database-url" in run(binaries / "counterpoise", "serve", "--help", cwd=tmp_path)


@pytest.mark.matrix(of="newcomers")
def test_users_test_their_consumers_with_one_install(wheels: Path, tmp_path: Path) -> None:
    """docs/testing.md: the plugin's fixture is found by its entry point."""
    binaries = environment_like_ours(wheels, ["counterpoise[testing]"], tmp_path / "venv")
    page = (ROOT / "docs/testing.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_example.py").write_text(example, "utf-8")
    assert "2 passed" in run(binaries / "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
