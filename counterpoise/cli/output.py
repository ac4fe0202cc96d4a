"""What the commands share: output as tables and as JSON, formatting, conditions.

What comes from the service may come from strangers (names of clients and logs, messages of errors).
So all output for people passes through here, and no control character of it reaches a terminal.
Nor does any such text begin a line of its own, which could be taken for one of ours: what is given
as a string, and each cell of a table, is one line. Whoever makes a `Text` of several lines uses
`plain_line` for what goes into it.

Conditions are what consumers report to be wrong, as `status`, `lag`, `lineage` and `doctor` show
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from counterpoise.client import Client
from counterpoise.conditions import HeldCondition, is_unknown
from counterpoise.errors import Refused, ServiceUnavailable
from counterpoise.plain import plain, plain_json, plain_line
from counterpoise.wire import HeldBack

MOST_CONDITIONS = 8


class PlainConsole(Console):
    """A console that shows control characters of the text as escapes, and obeys no markup in it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich's, which lets escape sequences within a text pass."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=plain(segment.text))

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's, which fills lines up to the width of a table. In a pipe nothing is filled.

        A string is one line.
        """
        objects = tuple(plain_line(one) if isinstance(one, str) else one for one in objects)
        if self.is_terminal:
            super().print(*objects, **settings)
            return
        with self.capture() as captured:
            super().print(*objects, **settings)
        lines = captured.get().split("\n")
        self.file.write("\n".join(line.rstrip(" ") for line in lines))
        self.file.flush()


# Lines are not folded in a pipe, because a program reads them.
console = PlainConsole(width=None if sys.stdout.isatty() else 200)


def say(message: str) -> None:
    """Print a message for people, on stderr, in one line."""
    sys.stderr.write(plain_line(message) + "\n")
    sys.stderr.flush()


def print_json(document: Any) -> None:
    """Print a JSON document for programs."""
    click.echo(plain_json(json.dumps(document, indent=2, ensure_ascii=False)))


class PlainTable(Table):
    """A table without borders, whose cells are one line each."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), **settings
        )

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        """As rich's."""
        super().add_row(*map(_cell, cells), **settings)


def _cell(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return plain_line(cell)
    if isinstance(cell, Text) and cell.plain != plain_line(cell.plain):
        return Text(plain_line(cell.plain), style=cell.style)
    return cell


def table(*columns: str, right: Iterable[str] = ()) -> PlainTable:
    """A table with these columns."""
    made = PlainTable()
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def ranges(numbers: Iterable[int]) -> str:
    """`0-3 7 9-10` for 0, 1, 2, 3, 7, 9, 10."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def counted(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def how_to_reach(error: ServiceUnavailable) -> str:
    """What to do about a service that does not answer. TLS, for one, is not mended by a start."""
    start = "start one with 'counterpoise serve', or " if "no service answers" in str(error) else ""
    return f"{start}set --url or COUNTERPOISE_URL"


def no_partition(unknown: Iterable[int]) -> str:
    """Says that a queue does not have these."""
    return f"the queue has no partition {', '.join(map(str, unknown))}"


def seconds_until(time: datetime | None, now: datetime | None = None) -> float | None:
    """Seconds until a time of the service, by our own clock."""
    return None if time is None else (time - (now or datetime.now(UTC))).total_seconds()


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def held_back_text(held: HeldBack) -> str:
    """What is said of consumers that are held back."""
    until = "" if held.until is None else f" until {held.until.astimezone():%H:%M}"
    if held.flows == 1:
        return f"1 consumer waits{until}: its key has moved as much as it may in an hour"
    first = f", the first{until}" if until else ""
    return (
        f"{held.flows} consumers wait{first}: their keys have moved as much as they may in an hour"
    )


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
        kind = plain_line(one.kind.replace("_", " "))
        shown.append(f"\n{where}{kind}", style="red not bold")
        told = plain_line(f" at {one.client_name}{age}: {one.text}")
        shown.append(told, style="default not bold")
    more = len(conditions) - MOST_CONDITIONS
    if more > 0:
        shown.append(f"\n… and {more} more", style="dim not bold")
    return shown
