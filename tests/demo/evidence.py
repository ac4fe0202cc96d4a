"""The evidence that a demo leaves for its verdict, in a file: `recorded/SABOTAGE.json.xz`.

That of the demo of splits is in `recorded/split-SABOTAGE.json.xz`.

If the demo changes so that the files no longer represent it, record them again, on a machine
without other load:

    .venv/bin/python -m tests.demo.evidence [SABOTAGE | split-SABOTAGE ...]

This plays a demo with each sabotage, a minute or two each. A file has what the data set does not
contain: the journal by columns, with flights by their number in the data set; the statistics that
differ from the right ones; grants and events. Times are in milliseconds from the first event.
"""

from __future__ import annotations

import functools
import json
import lzma
import sys
import tempfile
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from rich.console import Console

from broker.demo.evidence import EpochGrant, Evidence, ScenarioEvent, SealingRecord
from broker.demo.playing import LEAST_ROWS, play
from broker.demo.verdict import judge
from broker.demo.work.flights import Statistics, expected_statistics, load
from broker.demo.work.sink import JournalEntry
from broker.demo.work.staging import SABOTAGES, SPLIT_SABOTAGES

SPLIT = "split-"
RECORDED = Path(__file__).parent / "recorded"
OF_THE_FLIGHT = ("flight", "aircraft", "sequence")
TIMES = ("published_at", "time")
COLUMNS = tuple(name for name in JournalEntry._fields if name not in OF_THE_FLIGHT)


def write(path: Path, evidence: Evidence) -> None:
    """Write the evidence to a file."""
    began = evidence.events[0].time
    numbers = {flight.flight: number for number, flight in enumerate(evidence.flights)}
    right = expected_statistics(evidence.flights)
    document = {
        "rows": len(evidence.flights),
        "began": began,
        "flight": [numbers[entry.flight] for entry in evidence.journal],
        **{
            name: [_milliseconds(name, getattr(entry, name), began) for entry in evidence.journal]
            for name in COLUMNS
        },
        "wrong": {
            aircraft: None if of is None else astuple(of)
            for aircraft in sorted(right.keys() | evidence.statistics.keys())
            if (of := evidence.statistics.get(aircraft)) != right.get(aircraft)
        },
        "grants": [astuple(grant) for grant in evidence.grants],
        "events": [astuple(event) for event in evidence.events],
        "sealings": [
            {**asdict(one), "sealed": list(one.sealed.items())} for one in evidence.sealings
        ],
    }
    path.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode()))


def read(path: Path) -> Evidence:
    """The evidence that `write` has written."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    began = document["began"]
    flights = _flights(document["rows"])
    statistics = expected_statistics(flights)
    for aircraft, of in document["wrong"].items():
        if of is None:
            del statistics[aircraft]
        else:
            statistics[aircraft] = Statistics(*of)
    columns = {name: _seconds(name, document[name], began) for name in COLUMNS}
    entries = zip(*columns.values(), strict=True)
    return Evidence(
        flights=flights,
        journal=[
            JournalEntry(**dict(zip(OF_THE_FLIGHT, flights[number], strict=False)), **dict(rest))
            for number, rest in zip(
                document["flight"],
                (zip(columns, entry, strict=True) for entry in entries),
                strict=True,
            )
        ],
        statistics=statistics,
        grants=[EpochGrant(*grant) for grant in document["grants"]],
        events=[ScenarioEvent(*event) for event in document["events"]],
        sealings=[
            SealingRecord(**{**one, "sealed": dict(one["sealed"])})
            for one in document.get("sealings", ())
        ],
    )


# It takes seconds, whatever the number of rows is.
_flights = functools.cache(load)


def _milliseconds(column: str, value: Any, began: float) -> Any:
    return round((value - began) * 1000) if column in TIMES else value


def _seconds(column: str, values: list[Any], began: float) -> list[Any]:
    return [began + value / 1000 for value in values] if column in TIMES else values


def record(name: str) -> None:
    """Play a demo, write its evidence, and tell the promises that it breaks."""
    sabotage = name.removeprefix(SPLIT)
    with tempfile.TemporaryDirectory() as directory:
        split = name.startswith(SPLIT)
        evidence = play(Path(directory), Console(), LEAST_ROWS, sabotage, split=split)
    path = RECORDED / f"{name}.json.xz"
    write(path, evidence)
    broken = [check.promise for check in judge(evidence).checks if not check.kept]
    print(f"{path}: {path.stat().st_size:,} bytes; broken: {', '.join(broken)}")


if __name__ == "__main__":
    for each in sys.argv[1:] or (*SABOTAGES, *(SPLIT + one for one in SPLIT_SABOTAGES)):
        record(each)
