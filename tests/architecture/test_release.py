"""`make release`, played in a repository of its own that has the tracked files of this one."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from tests.architecture.test_repository import ROOT

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheels")]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
TAG = f"v{VERSION}"
FILES = {
    f"counterpoise-{VERSION}-py3-none-any.whl",
    f"counterpoise-{VERSION}.tar.gz",
    f"counterpoise_server-{VERSION}-py3-none-any.whl",
    f"counterpoise_server-{VERSION}.tar.gz",
    f"counterpoise-{VERSION}.tgz",
    f"counterpoise-{VERSION}.cdx.json",
    "constraints.txt",
    "NOTES.md",
    "provenance.json",
    "SHA256SUMS",
}
# Of CycloneDX 1.6, what the document uses; nothing else may be in it.
CYCLONEDX = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "component": {
            "type": "object",
            "additionalProperties": False,
            "required": ["type", "bom-ref", "name", "version", "purl", "licenses"],
            "properties": {
                "type": {"enum": ["application", "library"]},
                "bom-ref": {"type": "string", "minLength": 1},
                "name": {"type": "string", "minLength": 1},
                "version": {"type": "string", "minLength": 1},
                "purl": {"type": "string", "pattern": "^pkg:pypi/[a-z0-9.-]+@[^@]+$"},
                "licenses": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        "oneOf": [
                            {"required": ["expression"], "additionalProperties": False}
                            | {"properties": {"expression": {"type": "string"}}},
                            {
                                "required": ["license"],
                                "additionalProperties": False,
                                "properties": {
                                    "license": {
                                        "required": ["name"],
                                        "additionalProperties": False,
                                        "properties": {"name": {"type": "string"}},
                                    }
                                },
                            },
                        ]
                    },
                },
                "components": {"type": "array", "items": {"$ref": "#/definitions/component"}},
                "properties": {
                    "type": "array",
                    "items": {
                        "required": ["name", "value"],
                        "additionalProperties": {"type": "string"},
                    },
                },
                "externalReferences": {
                    "type": "array",
                    "items": {
                        "additionalProperties": False,
                        "required": ["type", "url", "hashes"],
                        "properties": {
                            "type": {"const": "distribution"},
                            "url": {"type": "string"},
                            "hashes": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "additionalProperties": False,
                                    "required": ["alg", "content"],
                                    "properties": {
                                        "alg": {"const": "SHA-256"},
                                        "content": {"pattern": "^[0-9a-f]{64}$"},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        }
    },
    "type": "object",
    "additionalProperties": False,
    "required": ["$schema", "bomFormat", "specVersion", "serialNumber", "version", "components"],
    "properties": {
        "$schema": {"const": "http://cyclonedx.org/schema/bom-1.6.schema.json"},
        "bomFormat": {"const": "CycloneDX"},
        "specVersion": {"const": "1.6"},
        "serialNumber": {"pattern": "^urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        "version": {"const": 1},
        "metadata": {
            "additionalProperties": False,
            "properties": {
                "timestamp": {"type": "string", "format": "date-time"},
                "component": {"$ref": "#/definitions/component"},
            },
        },
        "components": {"type": "array", "items": {"$ref": "#/definitions/component"}},
    },
}


class Repository:
    """A clone with one commit, in which a release can be made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        author = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        command = ("git", *author, *arguments)
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.directory / name).read_text("utf-8")
        assert old in text
        (self.directory / name).write_text(text.replace(old, new), "utf-8")

    def commit(self) -> None:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", "all of it")

    def release(
        self, target: Path, *options: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "deploy/release", str(target), *options)
        return subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )


def repository_in(directory: Path, checkout: Path) -> Repository:
    """As it is when 0.1.0 comes out: with its section of the changelog and the real addresses."""
    subprocess.run(["cp", "-R", checkout, directory], check=True)
    made = Repository(directory)
    made.edit("CHANGELOG.md", "## Unreleased\n", f"## Unreleased\n\n## {VERSION} (today)\n")
    for name in ("pyproject.toml", "deploy/server/pyproject.toml"):
        made.edit(name, "counterpoise.example", "counterpoise.test")
    made.commit()
    return made


@pytest.fixture
def repository(checkout: Path, tmp_path: Path) -> Repository:
    return repository_in(tmp_path / "repository", checkout)


@pytest.fixture(scope="module")
def dry_run(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, bytes]]:
    """The commit, and the files by name."""
    directory = tmp_path_factory.mktemp("dry-run")
    repository = repository_in(directory / "repository", checkout)
    done = repository.release(directory / "files")
    assert done.returncode == 0, done.stderr
    assert "dry run" in done.stdout
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=directory / "files", check=True
    )
    return repository.git("rev-parse", "HEAD"), contents(directory / "files")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_commit_makes_the_same_bytes(repository: Repository, tmp_path: Path) -> None:
    """Elsewhere, on another day, by another user's habits."""
    repository.git("tag", TAG)
    done = repository.release(tmp_path / "one", "--tag", TAG)
    assert done.returncode == 0, done.stderr
    clone = tmp_path / "another" / "place"
    repository.git("clone", "--quiet", "--no-hardlinks", ".", str(clone))
    (clone / "counterpoise/left_by_somebody.py").write_text("not committed")
    again = Repository(clone).release(
        *(tmp_path / "two", "--tag", TAG),
        TZ="Asia/Tokyo",
        LC_ALL="C",
        PYTHONHASHSEED="7",
        SOURCE_DATE_EPOCH="1",
    )
    assert again.returncode == 0, again.stderr
    made = contents(tmp_path / "one")
    assert made.keys() == FILES
    assert contents(tmp_path / "two") == made
    epoch = int(repository.git("show", "--no-patch", "--format=%ct", "HEAD"))
    for name in FILES:
        if name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(tmp_path / "one" / name) as archive:
                assert {member.mtime for member in archive} == {epoch}, name


def test_a_release_says_how_it_was_made(dry_run: tuple[str, dict[str, bytes]]) -> None:
    commit, files = dry_run
    statement = json.loads(files["provenance.json"])
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in files.items()
        if name not in ("provenance.json", "SHA256SUMS")
    }
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    assert files["constraints.txt"] == (ROOT / "deploy/constraints.txt").read_bytes()


def test_the_bill_of_materials_is_the_lock(dry_run: tuple[str, dict[str, bytes]]) -> None:
    bill = json.loads(dry_run[1][f"counterpoise-{VERSION}.cdx.json"])
    jsonschema.Draft7Validator(CYCLONEDX).validate(bill)
    listed = {(one["name"], one["version"]): one for one in bill["components"]}
    assert len(listed) == len(bill["components"])
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    table = (ROOT / "deploy/THIRD-PARTY.md").read_text("utf-8")
    # All that users get, and none of our tools.
    assert {name for name, _ in listed} == set(re.findall(r"^\| ([a-z0-9-]+) \| \d", table, re.M))
    for (name, version), one in listed.items():
        locked = re.search(rf"^{name}=={re.escape(version)}\b[^\n]*\n((?: .*\n?)+)", lock, re.M)
        assert locked is not None
        [files] = one["externalReferences"]
        hashes = [digest["content"] for digest in files["hashes"]]
        assert hashes == re.findall(r"sha256:([0-9a-f]{64})", locked[1])


def test_the_package_index_would_take_the_files(
    dry_run: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """The step of the workflow that tries the publishing; it calls nobody."""
    workflow = yaml.safe_load((ROOT / "deploy/workflows/release.yml").read_text("utf-8"))
    [script] = [
        step["run"]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "--dry-run" in step.get("run", "")
    ]
    (tmp_path / "dist").mkdir()
    for name, content in dry_run[1].items():
        (tmp_path / "dist" / name).write_bytes(content)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None
    (tmp_path / ".venv/bin/uv").symlink_to(uv)
    address = {"UV_PUBLISH_URL": "http://127.0.0.1:9/"}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **address},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^Checking (\S+) \(", done.stderr, re.M)) == sorted(
        name for name in FILES if name.endswith((".whl", ".tar.gz"))
    )


def test_what_does_not_fit_together_is_no_release(repository: Repository, tmp_path: Path) -> None:
    def refusal(tag: str) -> str:
        done = repository.release(tmp_path / "files", "--tag", tag)
        assert done.returncode == 1
        assert not any((tmp_path / "files").iterdir())
        return done.stderr

    repository.git("tag", "v9.9.9")
    assert f"the tag is {TAG}" in refusal("v9.9.9")
    repository.git("tag", TAG)
    repository.edit("README.md", "# Counterpoise", "# Another name")
    assert "not committed" in refusal(TAG)
    repository.commit()
    assert f"check out {TAG}" in refusal(TAG)
    repository.edit("pyproject.toml", "counterpoise.test", "counterpoise.example")
    repository.commit()
    repository.git("tag", "--force", TAG)
    assert "no addresses" in refusal(TAG)
    repository.edit("pyproject.toml", "counterpoise.example", "counterpoise.test")
    repository.edit("CHANGELOG.md", f"## {VERSION} (today)\n", "")
    repository.commit()
    repository.git("tag", "--force", TAG)
    assert f"no section '## {VERSION}'" in refusal(TAG)
