"""Makes all that a release consists of: `deploy/release DIRECTORY [--tag v0.1.0]` (`make release`).

Without a tag it is a dry run from HEAD. Either way only committed files count, and the bytes depend
on the commit alone and on the tools, which the lock and the provenance name: the only time in them
is that of the commit. docs/releasing.md says what the files are.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from archives import chart_archive, sdists_and_wheels
from documents import as_json, bill_of_materials, provenance
from source import CannotRelease, Source, exported, refuse_unfit

SUMS = "SHA256SUMS"


def sums(directory: Path) -> str:
    """The SHA-256 of each file, as `sha256sum --check` reads them."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
    )


def make(source: Source, directory: Path) -> None:
    """Write all files of the release into `directory`. Raises CannotRelease before the first."""
    refuse_unfit(source)
    texts = {
        "NOTES.md": source.notes(),
        "constraints.txt": source.text("deploy/constraints.txt"),
        f"counterpoise-{source.version}.cdx.json": as_json(bill_of_materials(source)),
    }
    sdists_and_wheels(source, directory)
    chart_archive(source, directory)
    for name, text in texts.items():
        (directory / name).write_text(text, "utf-8")
    statement = provenance(source, sums(directory))
    (directory / "provenance.json").write_text(as_json(statement), "utf-8")
    (directory / SUMS).write_text(sums(directory), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="new, or empty")
    parser.add_argument("--tag", help="without it: a dry run from HEAD")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        parser.error(f"{directory} is not empty")
    os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="release-") as scratch:
            source = exported(arguments.tag, Path(scratch))
            make(source, directory)
    except CannotRelease as refused:
        sys.stderr.write(f"no release: {refused}\n")
        return 1
    except subprocess.CalledProcessError as failed:
        sys.stderr.write(f"{failed}\n{failed.stdout or ''}{failed.stderr or ''}")
        return 1
    sys.stdout.write((directory / SUMS).read_text("utf-8"))
    if source.tag is None:
        sys.stdout.write(f"A dry run from {source.commit[:12]}: a release is made from a tag.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
