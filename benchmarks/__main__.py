"""Runs the benchmarks one after the other, each in a process of its own.

    python -m benchmarks [--quick]       # all with figures; writes benchmarks/RESULTS.md and plots/
    python -m benchmarks NAME ...        # those named, with their own output; writes nothing

A benchmark is a module of this package with a `main()` that prints its figures: medians over some
rounds, and the ratio to a yardstick. Those with a function `figures` (`benchmarks.figures`) are in
the results. Figures of a busy machine mean little.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmarks
from benchmarks import collect, needs, plots, results
from benchmarks.figures import Figure, Series

DIRECTORY = Path(__file__).parent


def names(function: str = "main") -> list[str]:
    """The modules of this package that have such a function."""
    found = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        spec = importlib.util.find_spec(f"benchmarks.{module.name}")
        source = spec and spec.origin and Path(spec.origin).read_text()
        if module.name != "__main__" and source and f"\ndef {function}(" in source:
            found.append(module.name)
    return sorted(found)


def main() -> int:
    """Parse the arguments, run, report which failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = sorted({*names()} - {"collect", "planners"})
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under three minutes")
    arguments = parser.parse_args()
    given = [name.replace("-", "_") for name in arguments.names]
    unknown = sorted({*given} - {*known})
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]}; there are {', '.join(known)}")
    return named(given) if given else everything(quick=arguments.quick)


def named(chosen: list[str]) -> int:
    """Run these by their `main()`; returns the exit code."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    needs.require(need for name in chosen for need in needs.OF.get(name, ()))
    print(f"{os.cpu_count()} processors, load {load:.1f} before the start")
    failed = [
        name for name in chosen if not _ran(name, [sys.executable, "-m", f"benchmarks.{name}"])
    ]
    return _reported(failed)


def everything(*, quick: bool) -> int:
    """Run all with figures and write the results; returns the exit code."""
    of_all = (need for name in names("figures") for need in needs.OF.get(name, ()))
    needs.require((*of_all, needs.MATPLOTLIB))
    machine = results.machine()
    print("\n".join(machine))
    found: dict[str, list[Figure | Series]] = {}
    seconds: dict[str, float] = {}
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        left = len(names("figures"))
        for number, name in enumerate(names("figures")):
            print(f"\n{left - number} left", flush=True)
            file = Path(directory) / f"{name}.json"
            command = [sys.executable, "-m", "benchmarks.collect", name, str(file)]
            began = time.monotonic()
            if _ran(name, [*command, "--quick"] if quick else command):
                found[name] = collect.read(file)
            else:
                failed.append(name)
            seconds[name] = time.monotonic() - began
    pictures = plots.draw(found, DIRECTORY / "plots")
    page = results.document(found, seconds, pictures, machine, quick=quick)
    file = DIRECTORY / "RESULTS.md"
    for section in results.sections_apart(file.read_text()) if file.exists() else ():
        page = results.with_section(page, section)
    file.write_text(page)
    print(f"\nwritten: benchmarks/RESULTS.md and {len(pictures)} pictures in benchmarks/plots")
    return _reported(failed)


def _ran(name: str, command: list[str]) -> bool:
    print(f"\n== {name}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(f"   ({time.monotonic() - began:.0f} s)", flush=True)
    return code == 0


def _reported(failed: list[str]) -> int:
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
