"""Builds the site of the documentation: `build.py TARGET` (`make site`).

The pages are the repository's documents, with their paths, so that a link that works there works in
the site. What they link beside pages (a script, a manifest, openapi.yaml) is copied as it is. The
build is strict: a broken link, a missing anchor and a document that nothing leads to are errors.
"""

import argparse
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
LINK = re.compile(r"\]\(([^)#\s]+)")


def gather(directory: Path) -> None:
    """Copy the pages and the files that they link."""
    for page in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
        copy(page, directory)
        for target in LINK.findall(page.read_text("utf-8")):
            linked = (page.parent / target).resolve()
            if linked.is_file() and linked.is_relative_to(ROOT):
                copy(linked, directory)


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
