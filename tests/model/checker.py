"""Runs the models of docs/model through spin: `make model`.

They are `handoff`, `barrier` (an ordered resize) and `split` (a merge and a split). A model has
budgets for faults, because all faults at once have too many states. Each `Case` is a set of
budgets, under which everything that can happen is tried. Spin writes a program in C, which is
compiled and run in a directory of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MODELS = Path(__file__).resolve().parents[2] / "docs" / "model"
Model = Literal["handoff", "barrier", "split"]
Property = Literal["safety", "processed", "handed_over", "settles", "lineage"]
_FAULTS = (
    *("handoffs", "deaths", "expiries", "losses", "repeats", "crashes", "hangs", "ends"),
    "pauses",
)
_CHANGES = ("resizes", "sealings", "takeovers")
_MOST_MB = 8192


@dataclass(frozen=True)
class Case:
    """The property to check, with budgets of faults; `bug` compiles known bugs in, joined by +."""

    what: Property
    messages: int = 2
    handoffs: int = 1
    resizes: int = 0
    sealings: int = 0
    takeovers: int = 0
    deaths: int = 0
    expiries: int = 0
    losses: int = 0
    repeats: int = 0
    crashes: int = 0
    hangs: int = 0
    ends: int = 0
    pauses: int = 0
    bug: str | None = None

    @property
    def model(self) -> Model:
        """A resize is the barrier's, a sealing the split's."""
        return "barrier" if self.resizes else "split" if self.sealings else "handoff"

    def defines(self) -> list[str]:
        names = ("messages", *_FAULTS, *_CHANGES)
        budgets = [f"-D{name.upper()}={getattr(self, name)}" for name in names]
        return budgets + [f"-DBUG_{bug}" for bug in (self.bug or "").split("+") if bug]

    def __str__(self) -> str:
        names = _FAULTS if self.model == "handoff" else (*_CHANGES, "repeats", "crashes")
        budgets = [f"{n} {name}" for name in names if (n := getattr(self, name))]
        bug = f", BUG {self.bug}" if self.bug else ""
        return f"{self.what}: {self.messages} messages, {', '.join(budgets)}{bug}"


@dataclass(frozen=True)
class Outcome:
    """The result of spin; `error` is its message for a broken promise."""

    states: int
    seconds: float
    error: str | None


CASES = [
    Case("safety", handoffs=2),
    Case("safety", handoffs=2, messages=1, losses=1, crashes=1),
    Case("safety", handoffs=3, messages=1, repeats=1),
    Case("safety", deaths=1, repeats=1),
    Case("safety", handoffs=2, messages=1, expiries=1),
    Case("safety", messages=1, deaths=1, expiries=1),
    Case("safety", hangs=1, crashes=1, repeats=1),
    Case("processed", losses=1),
    Case("processed", messages=1, deaths=1),
    Case("processed", messages=1, expiries=1),
    Case("processed", messages=1, ends=1),
    Case("processed", messages=1, losses=1, crashes=1),
    Case("processed", messages=1, repeats=1),
    Case("processed", hangs=1, crashes=1),
    Case("processed", handoffs=2, messages=1),
    # Either the repetition of a lost release or the deadline is enough.
    Case("processed", messages=1, losses=1, bug="LOST_RELEASE_NOT_SAID_AGAIN"),
    Case("processed", messages=1, losses=1, bug="NO_DEADLINE"),
    Case("handed_over", hangs=1, crashes=1),
    Case("handed_over", handoffs=2, messages=1, losses=1),
    # A pause, before, amid and after a handoff.
    Case("safety", handoffs=2, messages=1, pauses=1),
    Case("safety", messages=1, deaths=1, pauses=1),
    Case("processed", messages=1, pauses=1),
    Case("handed_over", messages=1, pauses=1),
    # An ordered resize, and the next one.
    Case("safety", messages=3, resizes=2, takeovers=1, crashes=1),
    Case("settles", messages=3, resizes=2, crashes=1),
    Case("settles", resizes=1, takeovers=1),
    # A merge, then a split.
    Case("safety", messages=4, sealings=2, takeovers=1, repeats=1),
    Case("safety", messages=3, sealings=1, takeovers=2),
    Case("lineage", messages=4, sealings=2),
]

# Each under budgets that show the bug.
BUGS = [
    Case("safety", handoffs=2, bug="FORCED_KEEPS_EPOCH"),
    Case("safety", handoffs=2, messages=1, expiries=1, bug="REVOKE_TAKEN_BACK"),
    Case("safety", deaths=1, repeats=1, bug="COMMIT_NOT_FENCED"),
    Case("safety", handoffs=3, messages=1, repeats=1, bug="RELEASE_WITHOUT_EPOCH"),
    Case("safety", handoffs=2, bug="TIMER_OF_OLD_EPOCH"),
    Case("safety", handoffs=2, bug="TAKES_WHILE_REVOKING"),
    Case("safety", handoffs=2, bug="COMMITS_BEFORE_THE_SINK"),
    Case("safety", handoffs=2, bug="RELEASES_TOO_EARLY"),
    Case("processed", losses=1, bug="LOST_COMMIT_NOT_SAID_AGAIN"),
    Case("processed", losses=1, bug="LOST_RELEASE_NOT_SAID_AGAIN+NO_DEADLINE"),
    Case("processed", losses=1, bug="LOST_UPDATE_NOT_ASKED_AGAIN"),
    Case("processed", repeats=1, bug="LATE_COMMIT_APPLIED"),
    Case("processed", messages=1, ends=1, bug="LEASES_DO_NOT_END"),
    Case("handed_over", hangs=1, crashes=1, bug="NO_SWEEP"),
    Case("safety", messages=1, pauses=1, bug="PAUSE_NOT_TOLD"),
    Case("safety", messages=1, pauses=1, bug="PAUSE_LOST_AT_A_GRANT"),
    Case("processed", messages=1, pauses=1, bug="RESUME_NOT_TOLD"),
    Case("safety", messages=3, resizes=2, bug="CUT_BEFORE_THE_LOCK"),
    Case("safety", messages=3, resizes=2, bug="OLD_COUNT_ACCEPTED"),
    Case("safety", messages=3, resizes=2, bug="NEXT_RESIZE_AT_ONCE"),
    Case("safety", messages=3, resizes=2, bug="VIEW_ALONE"),
    Case("safety", messages=3, resizes=2, bug="REACHED_BY_READING"),
    Case("settles", resizes=1, crashes=1, bug="CUT_NOT_SAID_AGAIN"),
    Case("safety", messages=4, sealings=2, bug="ONE_PARENT_EARLY"),
    Case("safety", messages=4, sealings=2, bug="OLD_RANGE_ACCEPTED"),
    Case("safety", messages=4, sealings=2, repeats=1, bug="KEY_FORGOTTEN"),
    Case("lineage", messages=4, sealings=2, bug="FINISHED_WITHOUT_CHILDREN"),
]


def missing() -> str | None:
    """The needed programs that are missing, or None."""
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return " and ".join(absent) or None


def _run(command: list[str], directory: str) -> str:
    """The output of the command. Raises CalledProcessError.

    However this ends, the command ends with its children, such as those of gcc. It has no limit of
    its own: on a busy machine a search of ten seconds may wait for minutes.
    """
    process = subprocess.Popen(
        # It takes minutes of processor time, and the tests that run meanwhile have leases to keep.
        ["nice", "-n", "10", *command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            out, errors = process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(
            process.returncode, command, out[-2000:], errors[-2000:]
        )
    return out


def check(case: Case, most_mb: int = _MOST_MB) -> Outcome:
    """Run one case. Raises CalledProcessError if spin or the compiler fails, and AssertionError if
    the search was not completed, for example within `most_mb` of memory.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-model-") as directory:
        # -O1 compiles for longer than most searches take, and the program is hardly faster than
        # with -Og. A bug is found at once.
        optimized = "-O0" if case.bug else "-Og"
        options = [optimized, "-w", "-DVECTORSZ=2048", f"-DMEMLIM={most_mb}"]
        if case.what == "safety":
            options += ["-DSAFETY", "-DNOCLAIM"]
            arguments = ["-m200000", "-w24"]
        else:
            options += ["-DNFAIR=5"]
            arguments = ["-m2000000", "-w24", "-a", "-f", "-N", case.what]
        _run(["spin", "-a", *case.defines(), str(MODELS / f"{case.model}.pml")], directory)
        _run(["gcc", *options, "-o", "pan", "pan.c"], directory)
        said = _run(["./pan", *arguments], directory)
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+)(?:e\+(\d+))? states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    # A search that stopped early proves nothing, unless it found an error.
    assert "max search depth too small" not in said, said
    for stopped in ("Search not completed", "out of memory", "reached -DMEMLIM bound"):
        assert errors[1] != "0" or stopped not in said, said
    error = re.search(r"^pan:\d+: (.*)$", said, re.MULTILINE)
    assert (error is not None) == (errors[1] != "0"), said
    return Outcome(int(states[1]), time.monotonic() - began, error[1] if error else None)


def main() -> int:
    """All cases, then all planted bugs; a line each."""
    if (absent := missing()) is not None:
        print(f"make model needs {absent} (Debian: apt install spin gcc libc6-dev)")
        return 2
    wrong = 0
    for case in CASES:
        outcome = check(case)
        wrong += outcome.error is not None
        verdict = "holds" if outcome.error is None else f"VIOLATED: {outcome.error}"
        print(
            f"{verdict:8} {case}  [{outcome.states:,} states, {outcome.seconds:.1f} s]", flush=True
        )
    for case in BUGS:
        outcome = check(case)
        wrong += outcome.error is None
        verdict = "found" if outcome.error is not None else "NOT FOUND"
        print(f"{verdict:8} {case}  [{outcome.seconds:.1f} s]: {outcome.error}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
