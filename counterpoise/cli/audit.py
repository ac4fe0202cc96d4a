"""`counterpoise audit`: who administered what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from counterpoise.cli.output.common import AsJson, Url, console, print_json, table
from counterpoise.client import Client
from counterpoise.wire import AuditItem


def show_audit(
    queue: Annotated[
        str | None, typer.Option(help="Only calls on this queue.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most calls to list.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List administrative calls, newest first: who, what, and what changed by it."""
    with Client(url) as client:
        items = client.audit(queue, limit)
    if as_json:
        print_json([item.raw for item in items])
        return
    shown = table("AT", "CALL", "QUEUE", "BY", "FROM", "CHANGED")
    for item in items:
        shown.add_row(
            "" if item.at is None else f"{item.at:%Y-%m-%d %H:%M:%S}",
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
    return "none" if value is None else str(value)
