"""Runs the benchmarks one after the other, each in a process of its own.

    python -m benchmarks [NAME ...]      # all, or those named

A benchmark is a module of this package with a `main()` that prints its figures: medians over some
rounds, and the ratio to the target if there is one. Figures of a busy machine mean little.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import benchmarks


def names() -> list[str]:
    """The modules of this package that have a `main()`."""
    found = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        spec = importlib.util.find_spec(f"benchmarks.{module.name}")
        source = spec and spec.origin and Path(spec.origin).read_text()
        if module.name != "__main__" and source and "\ndef main(" in source:
            found.append(module.name)
    return sorted(found)


def main() -> int:
    """Parse the arguments, run, report which failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    chosen = parser.parse_args().names or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no benchmark is named {unknown[0]}; there are {', '.join(names())}")
    failed = []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(f"{os.cpu_count()} processors, load {load:.1f} before the start")
    for name in chosen:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
        print(f"   ({time.monotonic() - began:.0f} s)", flush=True)
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
