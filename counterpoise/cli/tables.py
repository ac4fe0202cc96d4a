"""Output for people as tables, with colours on a terminal.

What comes from the service may come from strangers (names of clients and logs, messages of errors).
So all output for people passes through here or through `plain_line`, and no control character of it
reaches a terminal. Nor does any such text begin a line of its own, which could be taken for one of
ours: what is given as a string, and each cell of a table, is one line. Whoever makes a `Text` of
several lines uses `plain_line` for what goes into it.

It needs rich, so a command imports it when it has something to show.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from counterpoise.cli.output import duration, seconds_until
from counterpoise.plain import plain, plain_line
from counterpoise.wire import HeldCondition

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
