"""What a release is made from: a commit of this repository, and the files that it has."""

import re
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class CannotRelease(Exception):
    """The tag, the checkout, the version and the changelog do not make a release together."""


@dataclass(frozen=True)
class Source:
    """A commit, with its files in a directory of their own."""

    commit: str
    epoch: int  # the time of the commit, in seconds
    tag: str | None  # None: a dry run
    tree: Path

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table `project` of the consumers' package; the service's has the same version."""
        return dict(tomllib.loads(self.text("pyproject.toml"))["project"])

    @property
    def version(self) -> str:
        return str(self.project["version"])

    def text(self, name: str) -> str:
        return (self.tree / name).read_text("utf-8")

    def notes(self) -> str:
        """The changelog's section of the version; in a dry run, of what is not released yet.

        Raises CannotRelease if there is none.
        """
        heading = self.version if self.tag else "Unreleased"
        pattern = rf"^## {re.escape(heading)}(?: .*)?\n(.*?)(?=^## |\Z)"
        found = re.search(pattern, self.text("CHANGELOG.md"), re.M | re.S)
        if found is None:
            raise CannotRelease(f"CHANGELOG.md has no section '## {heading}'")
        return found[1].strip() + "\n"


def git(*arguments: str) -> str:
    command = ("git", "-c", f"safe.directory={ROOT}", *arguments)
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def exported(tag: str | None, directory: Path) -> Source:
    """The files of the tag's commit, or of HEAD, as git has them: written into `directory`."""
    commit = git("rev-parse", "--verify", f"{tag or 'HEAD'}^{{commit}}")
    archive = directory / "tree.tar"
    git("archive", "--output", str(archive), commit)
    with tarfile.open(archive) as files:
        files.extractall(directory / "tree", filter="data")
    epoch = int(git("show", "--no-patch", "--format=%ct", commit))
    return Source(commit, epoch, tag, directory / "tree")


def refuse_unfit(source: Source) -> None:
    """Raises CannotRelease if what the tag names is not what is checked out and described."""
    if source.tag is None:
        return
    if source.tag != f"v{source.version}":
        raise CannotRelease(f"the version is {source.version}, so the tag is v{source.version}")
    if git("rev-parse", "HEAD") != source.commit:
        raise CannotRelease(f"check out {source.tag} first: its own tools make the release")
    if git("status", "--porcelain", "--untracked-files=no"):
        raise CannotRelease("there are changes that are not committed")
    if ".example" in str(source.project["urls"]):
        raise CannotRelease("pyproject.toml has no addresses of the project yet ([project.urls])")
