"""`make sim-long`: plays seed after seed until interrupted, and adds up the results.

Runs are evidence for the code that they were played with. So each state of the code has a total of
its own: a new commit, or a new uncommitted change, begins a new total. The seeds continue.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation import campaign, coverage

STATE = Path(".sim/state.json")
# `make test` has played those below.
LONG_FROM = 100_000
# How many seeds between two progress notes.
LONG_CHUNK = 2000
# The file of the totals.
CODE = (
    *("broker", "counterpoise"),
    *("tests/judge", "tests/simulation", "broker/testing", "tests/world"),
)
UNKNOWN = "unknown"


def revision(root: Path = campaign.ROOT) -> str:
    """The commit, and a digest of the uncommitted changes in the code that is played."""
    try:
        commit = _git(root, "rev-parse", "HEAD").decode().strip()
        changed = _git(root, "diff", "HEAD", "--", *CODE)
        new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    digest = hashlib.sha256(changed)
    for name in filter(None, new.decode().split("\0")):
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return f"{commit} changed {digest.hexdigest()[:12]}" if changed or new else commit


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout


@dataclass
class Total:
    """The result of all runs of one revision, in `seconds` of wall time."""

    report: campaign.Report = field(default_factory=campaign.Report)
    seconds: float = 0.0

    def __str__(self) -> str:
        report = self.report
        return (
            f"{report.seeds} seeds, {len(report.failures)} failed, "
            f"{report.cpu_seconds:.0f} s of CPU in {self.seconds:.0f} s"
        )


@dataclass
class State:
    """The next seed, and the totals by revision."""

    next_seed: int = LONG_FROM
    totals: dict[str, Total] = field(default_factory=dict)

    def seeds(self, of: str) -> int:
        return self.totals[of].report.seeds if of in self.totals else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "next": self.next_seed,
            "totals": {
                of: {"report": total.report.to_json(), "seconds": total.seconds}
                for of, total in self.totals.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> State:
        # The first format had one total and no revision.
        found = values.get("totals", {UNKNOWN: values})
        return cls(
            int(values["next"]),
            {
                of: Total(campaign.Report.from_json(one["report"]), float(one["seconds"]))
                for of, one in found.items()
            },
        )

    @classmethod
    def load(cls, path: Path) -> State:
        return cls.from_json(json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.to_json()))
        new.replace(path)


def go_on(most: int | None, path: Path = STATE, chunk: int = LONG_CHUNK) -> int:
    """Plays until interrupted, or until there are `most` seeds of this revision; 1: some failed."""
    state = State.load(path)
    now = revision()
    print(f"this is {now}")
    try:
        while most is None or state.seeds(now) < most:
            began = time.monotonic()
            report = campaign.many(state.next_seed, chunk)
            before, now = now, revision()
            if now != before:
                print(f"the code was changed meanwhile, these seeds are played again: {now}")
                continue
            total = state.totals.setdefault(now, Total())
            total.report.add(report)
            total.seconds += time.monotonic() - began
            state.next_seed += chunk
            state.save(path)
            print(f"{total.report.seeds} seeds, up to {state.next_seed}", flush=True)
            for seed, promise, text in report.failures:
                print(f"seed {seed} breaks promise {promise}: {text}", flush=True)
    except KeyboardInterrupt:
        print("stopped; make sim-long goes on from here")
    here = state.totals.get(now, Total()).report
    print(coverage.table(here.counts))
    for of, total in state.totals.items():
        print(f"{of}: {total}")
    return bool(here.failures)
