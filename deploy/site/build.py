"""Builds the site of the documentation: `build.py TARGET` (`make site`).

The pages are the repository's documents, with their paths, so that a link that works there works in
the site. What they link beside pages (a script, a manifest, openapi.yaml) is copied as it is. The
build is strict: a broken link, a missing anchor and a document that nothing leads to are errors.

With `--version 0.1` the site is one of several: it goes into TARGET/0.1, a menu on every page leads
to the others in TARGET, and TARGET's own page to the newest. The layout is that of mike, which the
theme knows.

Diagrams are shown as the pictures that `python -m tests.browser.diagrams` has drawn of them; one
that has changed since has none, and is an error too.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = Path(__file__).with_name("mkdocs.yml")
STYLE = Path(__file__).with_name("site.css")
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "deploy/README.md",
    "docs/**/*.md",
)
PICTURES = ROOT / "docs/pictures"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)")


def gather(directory: Path) -> None:
    """Copy the pages and the files that they link, and the style."""
    copy(STYLE, directory)
    for page in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
        copy(page, directory)
        show_diagrams(directory / page.relative_to(ROOT), directory)
        for target in LINK.findall(page.read_text("utf-8")):
            linked = (page.parent / target).resolve()
            if linked.is_file() and linked.is_relative_to(ROOT):
                copy(linked, directory)


def show_diagrams(page: Path, directory: Path) -> None:
    """Put pictures in the place of the page's diagrams."""

    def picture(found: re.Match[str]) -> str:
        name = f"diagram-{hashlib.sha256(found[1].encode()).hexdigest()[:12]}.svg"
        copy(PICTURES / name, directory)
        link = os.path.relpath(directory / "docs/pictures" / name, page.parent)
        # A tap shows it in full.
        return f"[![What leads from which state to which]({link})]({link})"

    page.write_text(DIAGRAM.sub(picture, page.read_text("utf-8")), "utf-8")


def copy(path: Path, directory: Path) -> None:
    target = directory / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def versions_in(target: Path) -> list[str]:
    """The versions that are built there, newest first; other names, such as `dev`, come last."""

    def age(name: str) -> tuple[bool, Version, str]:
        try:
            return True, Version(name), name
        except InvalidVersion:
            return False, Version("0"), name

    names = (path.name for path in target.iterdir() if (path / "index.html").is_file())
    return sorted(names, key=age, reverse=True)


def list_versions(target: Path) -> None:
    """Write what the theme's menu reads, and a page that leads to the newest version."""
    names = versions_in(target)
    listed = [{"version": name, "title": name, "aliases": []} for name in names]
    (target / "versions.json").write_text(json.dumps(listed), "utf-8")
    (target / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Counterpoise</title>'
        f'<link rel="icon" href="{names[0]}/assets/images/favicon.png">'
        f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">'
        f'<a href="{names[0]}/index.html">Counterpoise {names[0]}</a>\n',
        "utf-8",
    )


def build(target: Path, versions: str) -> int:
    """Build the pages into the directory, which is replaced. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="site-") as scratch:
        gather(Path(scratch))
        environment = {
            **os.environ,
            "SITE_PAGES": scratch,
            "SITE_TARGET": str(target),
            "SITE_VERSIONS": versions,
            "NO_MKDOCS_2_WARNING": "1",
        }
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
        return subprocess.run(
            [*command, "--config-file", str(CONFIGURATION)], env=environment, check=False
        ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="a directory, which is replaced")
    parser.add_argument("--version", help="build TARGET/VERSION, and keep the others there")
    arguments = parser.parse_args()
    target = arguments.target.resolve()
    if arguments.version is None:
        return build(target, "none")
    failed = build(target / arguments.version, "mike")
    if not failed:
        list_versions(target)
    return failed


if __name__ == "__main__":
    sys.exit(main())
