"""`counterpoise history` and `audit`: what happened to a queue.

`history` shows why it was rebalanced, what moved, and how long it paused. `audit` shows who
administered what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from counterpoise.cli.options import json_option, queue_argument, queue_names, service_options
from counterpoise.cli.output import counted, duration, print_json, ranges, setting_text
from counterpoise.cli.tables import console, table
from counterpoise.client import Client
from counterpoise.plain import plain_line
from counterpoise.wire import AuditItem, Move, Rebalance

FORCED = {
    "not_released": "not released in time",
    "positions_set": "an administrator set its position",
}
# Rows of one entry; the rest is counted.
MOST_ROWS = 40


@click.command("history")
@queue_argument
@click.option(
    "--limit", type=click.IntRange(min=1), default=10, help="The most rebalances to list."
)
@service_options
@json_option
def show_history(queue: str, limit: int, url: str | None, as_json: bool) -> None:
    """Show why a queue was rebalanced, newest first: what led to it, and what moved.

    PAUSED is the longest time in which no consumer read one of the partitions: since
    the last sign of life of a consumer that fell silent, else from the moment it was
    told to finish, or since it left. "8.0 s silent" is the part until the lease ended.
    """
    with Client(url, timeout_seconds=60.0) as client:
        rebalances = client.rebalances(queue, max_items=limit)
    if as_json:
        print_json([one.raw for one in rebalances])
        return
    for one in rebalances:
        for part in entry(one):
            console.print(part)
    if not rebalances:
        console.print(f"{queue}: no rebalance yet, or none that is still stored")


def entry(one: Rebalance) -> Iterable[RenderableType]:
    """A rebalance as text: the cause, the result, and its moves by client."""
    title = Text()
    title.append(f"{one.triggered_at:%Y-%m-%d %H:%M:%S} UTC  ", style="dim")
    title.append(plain_line(one.why or one.trigger), style="bold")
    yield title
    yield Text(f"  {_result(one)}")
    rows = _grouped(one)
    if rows:
        shown = table("PARTITIONS", "FROM", "TO", "HOW", "PAUSED", right=("PAUSED",))
        for row in rows[:MOST_ROWS]:
            reason = "" if row.reason is None else f": {FORCED.get(row.reason, row.reason)}"
            shown.add_row(
                ranges(row.partitions),
                Text(row.giver),
                Text(row.taker),
                Text(row.how + reason, style="red" if row.how == "forced" else ""),
                "-" if row.how == "initial" else _pause(row),
            )
        yield Padding(shown, (0, 0, 0, 2), expand=False)
    if len(rows) > MOST_ROWS:
        yield Text(f"  and {len(rows) - MOST_ROWS} more rows; --json has all")
    yield Text()


def _result(one: Rebalance) -> str:
    """`rebalance 7: 3 handoffs (1 forced), 2 granted; after 5.0 s of holddown; took 0.4 s`."""
    counts = [counted(one.handoffs, "handoff") + (f" ({one.forced} forced)" if one.forced else "")]
    if one.granted:
        counts.append(f"{one.granted} granted")
    said = f"rebalance {one.id}: {', '.join(counts)}"
    waited = (one.started_at - one.triggered_at).total_seconds()
    if waited >= 0.05:
        said += f"; after {duration(waited)} of holddown"
    if one.finished_at is None:
        return f"{said}; still running"
    took = (one.finished_at - one.started_at).total_seconds()
    return f"{said}; took {duration(took)}"


@dataclass
class _Row:
    """Moves from one client to another in one way."""

    giver: str
    taker: str
    how: str
    reason: str | None
    partitions: list[int] = field(default_factory=list)
    paused: float = 0.0
    # The part of the longest pause in which the owner was silent.
    silent: float | None = None


def _grouped(one: Rebalance) -> list[_Row]:
    """The moves by clients and outcome; the forced ones first, then those that paused longest."""
    rows: dict[tuple[str | None, ...], _Row] = {}
    for move in one.moves:
        key = (move.from_flow, move.to_flow, move.outcome, move.reason)
        row = rows.get(key)
        if row is None:
            giver, taker = _name(one, move.from_flow), _name(one, move.to_flow)
            row = rows[key] = _Row(giver, taker, move.outcome, move.reason)
        row.partitions.append(move.partition)
        if _paused(move) >= row.paused:
            row.paused, row.silent = _paused(move), move.silent_seconds
    return sorted(rows.values(), key=lambda row: (row.how != "forced", -row.paused))


def _pause(row: _Row) -> str:
    """`13 s (8.0 s silent)`: how long it was, and until the lease of a silent consumer ended."""
    silent = "" if row.silent is None else f" ({duration(row.silent)} silent)"
    return duration(row.paused) + silent


def _paused(move: Move) -> float:
    return move.seconds or 0.0


def _name(one: Rebalance, flow_id: str | None) -> str:
    """The client of a flow; flows of one client are told apart by `status`, not here."""
    return "-" if flow_id is None else one.clients.get(flow_id) or f"flow {flow_id[:8]}"


@click.command("audit")
@click.option("--queue", shell_complete=queue_names, help="Only calls on this queue.")
@click.option("--limit", type=click.IntRange(min=1), default=50, help="The most calls to list.")
@json_option
@service_options
def show_audit(queue: str | None, limit: int, as_json: bool, url: str | None) -> None:
    """List administrative calls, newest first: who, what, and what changed by it."""
    with Client(url) as client:
        items = client.audit(queue, limit)
    if as_json:
        print_json([item.raw for item in items])
        return
    shown = table("AT", "CALL", "QUEUE", "BY", "FROM", "CHANGED")
    for item in items:
        shown.add_row(
            f"{item.at:%Y-%m-%d %H:%M:%S}",
            item.call,
            Text(item.queue or ""),
            Text(item.key_name or item.key_id or ""),
            Text(item.address or ""),
            Text(changed(item)),
        )
    console.print(shown)


def changed(item: AuditItem) -> str:
    """`partition_count: 4 -> 8`; for what was made or deleted only what it was called on."""
    if item.before is None or item.after is None:
        return str((item.after or item.before or {}).get("name") or item.flow_id or "")
    changes = _changes(item.before, item.after)
    return ", ".join(changes) if len(changes) <= 5 else f"{len(changes)} values"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    changes = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += [f"{name}.{change}" for change in _changes(old, new)]
        elif old != new and name != "revision":
            changes.append(f"{name}: {_word(old)} -> {_word(new)}")
    return changes


def _word(value: object) -> str:
    return "none" if value is None else setting_text(value)
