"""What consumers report to be wrong, as `status`, `lag`, `lineage` and `doctor` show it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from counterpoise.cli.output.common import duration, seconds_until
from counterpoise.client import Client
from counterpoise.conditions import HeldCondition, is_unknown
from counterpoise.errors import Refused

MOST_CONDITIONS = 8


def held_conditions(client: Client, name: str) -> tuple[HeldCondition, ...]:
    """What consumers report; nothing of a service of a version that takes no reports."""
    try:
        return tuple(client.conditions(name))
    except Refused as error:
        if is_unknown(error):
            return ()
        raise


def conditions_text(conditions: Sequence[HeldCondition]) -> Text:
    """What consumers say is wrong, the consumer's whole conditions first."""
    shown = Text("reported by consumers", style="bold red")
    for one in conditions[:MOST_CONDITIONS]:
        where = "" if one.partition is None else f"p{one.partition} "
        since = seconds_until(one.since)
        age = "" if since is None else f" for {duration(-since)}"
        shown.append(f"\n{where}{one.kind.replace('_', ' ')}", style="red not bold")
        shown.append(f" at {one.client_name}{age}: {one.text}", style="default not bold")
    more = len(conditions) - MOST_CONDITIONS
    if more > 0:
        shown.append(f"\n… and {more} more", style="dim not bold")
    return shown
