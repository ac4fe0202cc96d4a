"""The output of the running demo: a live picture on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from counterpoise.demo.watching import Seen

COLOURS = {"alpha": "cyan", "beta": "magenta", "gamma": "green"}
STATUS_COLOURS = {"Ready": "green", "Holddown": "yellow", "Rebalancing": "red"}
NEWS_LINES = 12
LEGEND = "[one letter for each partition: its owner; a capital is being handed off, . has no owner]"
SPLIT_LEGEND = "[partition and the first letter of its owner; 4<1: 4 waits until 1 has ended]"
PLAIN_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the demo, in flights."""

    published: int
    counted: int
    total: int


class Display(Protocol):
    """Shows the news of the demo."""

    def news(self, text: str) -> None:
        """Show one event."""
        ...

    def show(self, seen: Seen, states: Mapping[str, str], progress: Progress) -> None:
        """Show the latest look; `states` has the state of each application."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


def owners_line(seen: Seen) -> str:
    """One letter for each partition: its owner's; a capital while it is handed off, . for none.

    The partitions of a dynamic queue come and go, so each is named, with what it waits for.
    """
    letters = {
        number: "." if owner is None else owner[0].upper() if seen.successors[number] else owner[0]
        for number, owner in seen.owners.items()
    }
    if not seen.keys:
        return "".join(letters.values())
    return " ".join(
        f"{number}<{','.join(map(str, waits))}" if (waits := seen.waits_for.get(number))
        else f"{number}{letter}"
        for number, letter in letters.items()
    )  # fmt: skip


class PlainDisplay:
    """One line for each change, with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._reported = self._began
        self._last = ""

    def news(self, text: str) -> None:
        self._line(text)

    def show(self, seen: Seen, states: Mapping[str, str], progress: Progress) -> None:
        del states
        if not self._last:
            self._line(SPLIT_LEGEND if seen.keys else LEGEND)
        cause = f" ({seen.trigger})" if seen.trigger else ""
        line = f"[{owners_line(seen)}] {seen.status}{cause}"
        now = time.monotonic()
        if line != self._last or now - self._reported > PLAIN_PROGRESS_SECONDS:
            self._last, self._reported = line, now
            self._line(f"{line:<38} {progress.counted:>8,} of {progress.total:,} flights")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._began:6.1f} s  {text}", markup=False, highlight=False,
            soft_wrap=True,
        )  # fmt: skip


class LiveDisplay:
    """A picture that is refreshed: partitions and owners, applications, progress, news."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._news: list[Text] = []
        self._picture: list[RenderableType] = []
        self._status = ("", "")
        self._rates = _Rates()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def news(self, text: str) -> None:
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._news.append(line.append(text, style="not dim"))
        self._draw()

    def show(self, seen: Seen, states: Mapping[str, str], progress: Progress) -> None:
        status = (seen.status, seen.trigger or "")
        if status != self._status:
            self._status = status
            self.news(seen.status + (f" ({seen.trigger})" if seen.trigger else ""))
        self._picture = [
            self._head(seen),
            _partitions(seen),
            Text(),
            self._applications(seen, states),
            Text(),
            _bars(progress),
        ]
        self._draw()

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        news = Text("\n").join(self._news[-NEWS_LINES:])
        body = Group(*self._picture, Text(), news)
        self._live.update(Panel(body, title=self._title, border_style="dim"), refresh=True)

    def _head(self, seen: Seen) -> RenderableType:
        line = Text("queue flights: ").append(seen.status, style=STATUS_COLOURS.get(seen.status))
        return line.append(f" ({seen.trigger})" if seen.trigger else "").append("\n")

    def _applications(self, seen: Seen, states: Mapping[str, str]) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name, justify in (("application", "left"), ("", "left"), ("partitions", "right"),
                              ("flights", "right"), ("a second", "right")):  # fmt: skip
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name, state in states.items():
            processed = seen.processed.get(name, 0)
            table.add_row(
                Text(name, style=colour(name)),
                state,
                str(len(seen.owned(name))),
                f"{processed:,}",
                f"{self._rates.rate(name, processed):,.0f}",
            )
        return table


def colour(application: str) -> str:
    """An application's colour; after a restart it has the same one."""
    return COLOURS.get(application.split(".")[0], "white")


def _partitions(seen: Seen) -> RenderableType:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", style="dim")
    for number in seen.owners:
        table.add_column(str(number), justify="right", min_width=5)
    owners = seen.owners.values()
    table.add_row(
        "owner", *(Text(owner[:6], style=colour(owner)) if owner else "–" for owner in owners)
    )
    table.add_row(
        "goes to",
        *(Text(to[:6], style=colour(to)) if to else "" for to in seen.successors.values()),
    )
    if seen.keys:
        waits = (seen.waits_for.get(number, ()) for number in seen.owners)
        table.add_row("waits for", *(", ".join(map(str, numbers)) for numbers in waits))
    table.add_row("waiting", *(f"{seen.backlog[number]:,}" for number in seen.owners))
    return table


def _bars(progress: Progress) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in (("published", progress.published), ("processed", progress.counted)):
        bar = ProgressBar(total=progress.total, completed=value, width=50)
        table.add_row(name, bar, f"{value:,} of {progress.total:,}")
    return table


class _Rates:
    """Messages a second of each application over the last seconds."""

    WINDOW_SECONDS = 3.0

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[float, int]]] = {}

    def rate(self, application: str, processed: int) -> float:
        now = time.monotonic()
        points = self._points.setdefault(application, [])
        points.append((now, processed))
        while len(points) > 1 and points[1][0] < now - self.WINDOW_SECONDS:
            points.pop(0)
        elapsed = now - points[0][0]
        return (processed - points[0][1]) / elapsed if elapsed > 0 else 0.0
