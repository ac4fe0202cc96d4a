"""The archives of a release, whose bytes depend on the sources and on one time alone."""

import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from source import Source

PROJECTS = (".", "deploy/server")
CHART = Path("deploy/helm/counterpoise")


def sdists_and_wheels(source: Source, directory: Path) -> None:
    """Builds each sdist, and the wheel from that sdist, with the tools of the lock."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)}
    for project in PROJECTS:
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory))
        subprocess.run(
            (*command, project),
            cwd=source.tree,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def chart_archive(source: Source, directory: Path) -> None:
    """The Helm chart, as `helm package` names it; the time, owner and order of files are fixed."""
    chart = source.tree / CHART
    target = directory / f"{chart.name}-{source.version}.tgz"
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=source.epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(chart.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(chart.parent).as_posix())
                entry.size = path.stat().st_size
                entry.mtime = source.epoch
                with path.open("rb") as content:
                    archive.addfile(entry, content)
