"""Playing a demo from beginning to end: the scenario, the verdict on it, the report.

`scenario.py` is the demo, `split.py` that of splits and merges. The verdict (`proof/verdict.py`) is
computed afterwards from the applications' journal.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from counterpoise.demo.acts import Acts, S
from counterpoise.demo.display import Display, LiveDisplay, PlainDisplay
from counterpoise.demo.proof.evidence import Evidence
from counterpoise.demo.proof.report import report
from counterpoise.demo.proof.verdict import judge
from counterpoise.demo.scenario import Scenario
from counterpoise.demo.split import SplitScenario, SplitStage
from counterpoise.demo.stage import DemoFailed, Stage
from counterpoise.demo.work.flights import DataSetMissing, Flight, load

GOOD, BAD, FAILED, INTERRUPTED = 0, 1, 2, 130
# With fewer flights few aircraft fly twice while one application owns their partition, so there
# would be no order to check.
LEAST_ROWS = 10_000
# For output that goes to a file.
PLAIN_WIDTH = 120


def run(rows: int | None = None, sabotage: str | None = None, *, split: bool = False) -> int:
    """Play the demo, or that of splits, with the first `rows` flights (all by default).

    Returns the exit code: 0 for a good verdict, 1 for a bad one, 2 if it could not be played, 130
    after Ctrl-C.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    if rows is not None and rows < LEAST_ROWS:
        console.print(f"--rows must be at least {LEAST_ROWS:,}")
        return FAILED
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="counterpoise-demo-") as directory:
            verdict = judge(play(Path(directory), console, rows, sabotage, split=split))
    except (DemoFailed, DataSetMissing) as error:
        console.print(f"The demo failed: {error}", markup=False, highlight=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("Interrupted; all started processes have ended.")
        return INTERRUPTED
    report(console, verdict, time.monotonic() - began)
    return GOOD if verdict.good else BAD


def play(
    directory: Path,
    console: Console,
    rows: int | None,
    sabotage: str | None,
    *,
    split: bool = False,
) -> Evidence:
    """Play all acts, with everything they need in `directory`; returns what the verdict needs.

    Raises DemoFailed and DataSetMissing.
    """
    console.print("Reading the flights that left New York in 2013 …")
    flights = load(rows)
    display = _display(console)
    try:
        if split:
            with SplitStage(directory, flights, display, sabotage) as rushing:
                return _played(SplitScenario(rushing), rushing, flights)
        with Stage(directory, flights, display, sabotage) as stage:
            return _played(Scenario(stage), stage, flights)
    finally:
        display.close()


def _played(acts: Acts[S], stage: S, flights: Sequence[Flight]) -> Evidence:
    acts.play()
    return Evidence(
        flights=flights,
        journal=list(stage.record.journal()),
        statistics=stage.record.statistics(),
        grants=acts.grants,
        events=acts.events,
        sealings=acts.sealings,
    )


def _display(console: Console) -> Display:
    return LiveDisplay(console, "Counterpoise") if console.is_terminal else PlainDisplay(console)
