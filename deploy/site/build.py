"""Builds the site of the documentation: `build.py TARGET` (`make site`).

The pages are the repository's documents, with their paths, so that a link that works there works in
the site. What they link beside pages (a script, a manifest, openapi.yaml) is copied as it is. The
build is strict: a broken link, a missing anchor and a document that nothing leads to are errors.

Diagrams are shown as the pictures that `python -m tests.browser.diagrams` has drawn of them; one
that has changed since has none, and is an error too.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = Path(__file__).with_name("mkdocs.yml")
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
    """Copy the pages and the files that they link."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="a directory, which is replaced")
    target = parser.parse_args().target.resolve()
    with tempfile.TemporaryDirectory(prefix="site-") as scratch:
        gather(Path(scratch))
        environment = {
            **os.environ,
            "SITE_PAGES": scratch,
            "SITE_TARGET": str(target),
            "NO_MKDOCS_2_WARNING": "1",
        }
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
        return subprocess.run(
            [*command, "--config-file", str(CONFIGURATION)], env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
