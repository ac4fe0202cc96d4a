"""`counterpoise history`: why a queue was rebalanced, what moved, and how long it paused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from counterpoise.cli.output.common import (
    AsJson,
    QueueName,
    Url,
    console,
    counted,
    duration,
    print_json,
    ranges,
    table,
)
from counterpoise.client import Client
from counterpoise.wire import Move, Rebalance

FORCED = {
    "not_released": "not released in time",
    "positions_set": "an administrator set its position",
}
# Rows of one entry; the rest is counted.
MOST_ROWS = 40


def show_history(
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="The most rebalances to list.")] = 10,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show why a queue was rebalanced, newest first: what led to it, and what moved.

    PAUSED is the longest time in which no consumer read one of the partitions: from
    the moment its owner was told to finish, or since it had none.
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
    at = one.triggered_at or one.started_at
    title = Text()
    title.append("" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC  ", style="dim")
    title.append(one.why or one.trigger or "?", style="bold")
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
                "-" if row.how == "initial" else duration(row.paused),
            )
        yield Padding(shown, (0, 0, 0, 2))
    if len(rows) > MOST_ROWS:
        yield Text(f"  and {len(rows) - MOST_ROWS} more rows; --json has all")
    yield Text()


def _result(one: Rebalance) -> str:
    """`rebalance 7: 3 handoffs (1 forced), 2 granted; after 5.0 s of holddown; took 0.4 s`."""
    counts = [counted(one.handoffs, "handoff") + (f" ({one.forced} forced)" if one.forced else "")]
    if one.granted:
        counts.append(f"{one.granted} granted")
    said = f"rebalance {one.id}: {', '.join(counts)}"
    if one.triggered_at is None or one.started_at is None:
        return said
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
        row.paused = max(row.paused, _paused(move))
    return sorted(rows.values(), key=lambda row: (row.how != "forced", -row.paused))


def _paused(move: Move) -> float:
    return move.seconds or 0.0


def _name(one: Rebalance, flow_id: str | None) -> str:
    """The client of a flow; flows of one client are told apart by `status`, not here."""
    return "-" if flow_id is None else one.clients.get(flow_id) or f"flow {flow_id[:8]}"
