"""What a plain consumer of the built-in log weighs: on the disk, and in memory.

    python -m benchmarks.footprint [EXTRA ...]      # e.g. `arrow`, `cli`; none: the wheel alone

It builds the wheel `counterpoise` from this checkout, and installs it into a new environment, in
the locked versions (that needs the package index). Installed are all files of its site-packages,
compiled modules among them, without pip. Resident memory is that of a new process after the
import; the last one has received the first message of a queue, from a service that runs here.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MB = 1_000_000

RESIDENT = """
{program}
with open("/proc/self/status") as status:
    (line,) = [line for line in status if line.startswith("VmRSS")]
print(int(line.split()[1]) * 1024)
"""
IMPORTS = (
    "import counterpoise",
    "from counterpoise import Client",
    "from counterpoise import Publisher",
    "from counterpoise import Consumer",
)
FIRST_MESSAGE = """
from counterpoise import Consumer
consumer = Consumer({queue!r}, url={url!r})
next(iter(consumer))
"""


class Installed(NamedTuple):
    """Bytes of all files, and how many packages they are."""

    size_bytes: int
    packages: int


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        python = environment(Path(directory), arguments.extras)
        measure(python)


def measure(python: Path) -> None:
    """Print what the environment of this Python weighs."""
    # Measuring the files alone needs no service.
    from benchmarks.consumer import published
    from benchmarks.service import served_here

    found = installed(python)
    print(f"{'installed':<40}{found.size_bytes / MB:>8.1f} MB in {found.packages} packages")
    print(f"{'Python alone':<40}{resident_bytes(python, '') / MB:>8.1f} MB")
    for program in IMPORTS:
        print(f"{program:<40}{resident_bytes(python, program) / MB:>8.1f} MB", flush=True)
    with served_here() as url:
        program = FIRST_MESSAGE.format(queue=published(url, 1000), url=url)
        print(f"{'after the first message':<40}{resident_bytes(python, program) / MB:>8.1f} MB")


def environment(directory: Path, extras: list[str]) -> Path:
    """The Python of a new environment with our wheel and these extras."""
    pip = (sys.executable, "-m", "pip", "--quiet")
    building = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, ROOT)
    subprocess.run([*pip, *building], check=True)
    (wheel,) = directory.glob("counterpoise-*.whl")
    lock = (ROOT / "deploy/constraints.txt").read_text("utf-8")
    versions = directory / "constraints.txt"
    # Our own wheel has no hash.
    versions.write_text(re.sub(r"\s*\\\n\s+--hash=\S+", "", lock), "utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    python = directory / "venv/bin/python"
    wanted = f"counterpoise[{','.join(extras)}] @ {wheel.as_uri()}"
    subprocess.run(
        [*pip, "--python", python, "install", "--constraint", versions, wanted], check=True
    )
    return python


def installed(python: Path) -> Installed:
    """What lies in its site-packages."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    sizes = [one.lstat().st_size for one in site.rglob("*") if one.is_file()]
    return Installed(sum(sizes), len([*site.glob("*.dist-info")]))


def resident_bytes(python: Path, program: str) -> int:
    """The resident memory of a process that has run the program."""
    command = [str(python), "-I", "-c", RESIDENT.format(program=program)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
