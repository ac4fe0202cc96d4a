"""Playing a demo from beginning to end: the scenario, the verdict on it, the report.

`scenario.py` is the demo, `split.py` that of splits and merges. The verdict (`verdict.py`) is
computed afterwards from the applications' journal. `report` prints it.
"""

import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.demo.display import Display, LiveDisplay, PlainDisplay
from broker.demo.evidence import Evidence
from broker.demo.scenario import Acts, S, Scenario
from broker.demo.split import SplitScenario, SplitStage
from broker.demo.stage import DemoFailed, Stage, forget_other_services
from broker.demo.verdict import DemoVerdict, OwnerChange, judge
from broker.demo.work.lake import statistics_in
from counterpoise.errors import CounterpoiseError

GOOD, BAD, FAILED, INTERRUPTED = 0, 1, 2, 130
# With fewer flights few aircraft fly twice while one application owns their partition, so there
# would be no order to check.
LEAST_ROWS = 10_000
# For output that goes to a file.
PLAIN_WIDTH = 120


def run(
    rows: int | None = None,
    sabotage: str | None = None,
    *,
    split: bool = False,
    into_lake: bool = False,
) -> int:
    """Play the demo, or that of splits, with the first `rows` flights (all by default).

    `into_lake`: the flights go into a Delta table as well.

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
            home = Path(directory)
            verdict = judge(play(home, console, rows, sabotage, split=split, into_lake=into_lake))
    except (DemoFailed, CounterpoiseError) as error:
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
    into_lake: bool = False,
) -> Evidence:
    """Play all acts, with everything they need in `directory`; returns what the verdict needs.

    Raises DemoFailed, CounterpoiseError, and ModuleNotFoundError without the data set.
    """
    forget_other_services()
    display = _display(console)
    try:
        if split:
            with SplitStage(directory, rows, display, sabotage) as rushing:
                return _played(SplitScenario(rushing), rushing)
        with Stage(directory, rows, display, sabotage, into_lake=into_lake) as stage:
            return _played(Scenario(stage), stage)
    finally:
        display.close()


def _played(acts: Acts[S], stage: S) -> Evidence:
    acts.play()
    return Evidence(
        flights=stage.flights,
        journal=list(stage.record.journal()),
        statistics=stage.record.statistics(),
        grants=acts.grants,
        events=acts.events,
        sealings=acts.sealings,
        table=None if stage.lake is None else statistics_in(stage.lake),
    )


def _display(console: Console) -> Display:
    return LiveDisplay(console, "Counterpoise") if console.is_terminal else PlainDisplay(console)


def report(console: Console, verdict: DemoVerdict, seconds: float) -> None:
    """Print the cost of each handoff, every promise, and the verdict."""
    console.print()
    if verdict.handoffs:
        console.print(_handoffs(verdict))
    if verdict.successions:
        console.print(_successions(verdict))
    if verdict.usual_gap_seconds is not None:
        console.print(
            "A pause is the time between two writes to a partition; within an epoch it is"
            f" {verdict.usual_gap_seconds:.1f} s (median).",
            style="dim",
        )
    console.print()
    console.print(_checks(verdict))
    word = Text("GOOD", style="bold green") if verdict.good else Text("BAD", style="bold red")
    console.print(Text("\nVerdict: ").append(word).append(f" (after {seconds:.0f} s)"))


def _checks(verdict: DemoVerdict) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in verdict.checks:
        mark = Text("kept", style="green") if check.kept else Text("BROKEN", style="bold red")
        table.add_row(mark, check.promise, Text(check.found))
    return table


def _handoffs(verdict: DemoVerdict) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("cause")
    table.add_column("handed over")
    for name in ("least backlog", "pause: median", "longest", "service: longest"):
        table.add_column(name, justify="right")
    causes: dict[str, list[OwnerChange]] = {}
    for handoff in sorted(verdict.handoffs, key=lambda h: h.event.time if h.event else 0.0):
        event = handoff.event
        causes.setdefault(f"{event.kind} of {event.application}" if event else "–", []).append(
            handoff
        )
    for cause, handoffs in causes.items():
        outcomes = Counter(handoff.outcome for handoff in handoffs)
        pauses = [h.pause_seconds for h in handoffs if h.pause_seconds is not None]
        table.add_row(
            cause,
            ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),
            f"{min(handoff.backlog for handoff in handoffs):,}",
            f"{median(pauses):.1f} s" if pauses else "–",
            f"{max(pauses):.1f} s" if pauses else "–",
            f"{max(handoff.service_seconds for handoff in handoffs):.1f} s",
        )
    return table


def _successions(verdict: DemoVerdict) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("ended by", "partition"):
        table.add_column(name)
    for name in ("flights waiting", "after it", "flights", "pause"):
        table.add_column(name, justify="right")
    table.add_column("taken by")
    for one in verdict.successions:
        table.add_row(
            one.kind,
            " and ".join(map(str, one.parents)),
            f"{one.waited:,}",
            str(one.partition),
            f"{one.flights:,}",
            "–" if one.pause_seconds is None else f"{one.pause_seconds:.1f} s",
            one.taker or "–",
        )
    return table
