"""The verdict, as the demo prints it."""

from collections import Counter
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterpoise.demo.proof.verdict import Handoff, Verdict


def report(console: Console, verdict: Verdict, seconds: float) -> None:
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


def _checks(verdict: Verdict) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in verdict.checks:
        mark = Text("kept", style="green") if check.kept else Text("BROKEN", style="bold red")
        table.add_row(mark, check.promise, Text(check.found))
    return table


def _handoffs(verdict: Verdict) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("cause")
    table.add_column("handed over")
    for name in ("least backlog", "pause: median", "longest", "service: longest"):
        table.add_column(name, justify="right")
    causes: dict[str, list[Handoff]] = {}
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


def _successions(verdict: Verdict) -> Table:
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
