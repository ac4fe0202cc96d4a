"""Reads pytest's reports at the end of a run: `report.py DIRECTORY NAME...` for NAME.xml.

Prints the slowest tests and every skipped one. Exits with 1 when a report is missing, when a report
holds no test, and when a test was skipped.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

SLOWEST = 20


def cases(report: Path) -> list[ElementTree.Element]:
    """Its tests; none when pytest did not get as far as writing it."""
    if not report.exists():
        return []
    return list(ElementTree.parse(report).iter("testcase"))


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def skips(case: ElementTree.Element) -> Iterator[str]:
    """Why it was skipped. An expected failure is reported as skipped too, but it was run."""
    for mark in case.iter("skipped"):
        if mark.get("type") != "pytest.xfail":
            yield mark.get("message") or ""


def main(directory: Path, names: list[str]) -> int:
    reports = {name: cases(directory / f"{name}.xml") for name in names}
    everything = [case for found in reports.values() for case in found]
    print(f"==> the {SLOWEST} slowest tests")
    for case in sorted(everything, key=lambda one: -float(one.get("time", 0)))[:SLOWEST]:
        print(f"{float(case.get('time', 0)):7.1f} s  {name_of(case)}")
    faults = [f"{name}: no tests are reported" for name, found in reports.items() if not found]
    faults += [f"skipped: {name_of(case)}: {why}" for case in everything for why in skips(case)]
    print("==> skipped tests and missing reports: a failure here", *(faults or ["none"]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
