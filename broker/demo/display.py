"""The running demo as it is observed, and its output: a picture on a terminal, lines elsewhere.

An `Observer` looks at the service, the log and the sink, for the scenario and for the display. One
`Observation` is the demo at one moment.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from broker.demo.work.sink import Record
from counterpoise.client import Client
from counterpoise.headline import Look, headline
from counterpoise.logs import Log

COLOURS = {"alpha": "cyan", "beta": "magenta", "gamma": "green"}
STATUS_COLOURS = {"Ready": "green", "Holddown": "yellow", "Rebalancing": "red"}
NEWS_LINES = 12
LEGEND = "[one letter for each partition: its owner; a capital is being handed off, . has no owner]"
SPLIT_LEGEND = "[partition and the first letter of its owner; 4<1: 4 waits until 1 has ended]"
PLAIN_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Observation:
    """The demo at one moment. Applications are keyed by name, partitions by number.

    Partitions that have ended are left out.
    """

    status: str
    trigger: str | None
    owners: Mapping[int, str | None]
    successors: Mapping[int, str | None]
    committed: Mapping[int, str | None]
    flows: Mapping[str, str]
    """By application: its flow's id."""
    draining: frozenset[str]
    backlog: Mapping[int, int]
    """By partition: flights published and not processed."""
    processed: Mapping[str, int]
    """By application: messages journaled, repeated ones included."""
    keys: Mapping[int, str] = field(default_factory=dict)
    """By partition of a dynamic queue: its key, which says its range of hashes."""
    waits_for: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By partition that waits: the partitions that must end before."""

    def owned(self, application: str) -> list[int]:
        """The partitions of an application."""
        return [number for number, owner in self.owners.items() if owner == application]


class Observer:
    """Looks at the service, the log and the sink."""

    def __init__(self, client: Client, queue: str, record: Record, log: Log) -> None:
        self._client = client
        self._queue = queue
        self._record = record
        self._log = log
        self._names: dict[str, str] = {}
        self._processed: Counter[str] = Counter()
        self._last_entry = 0

    def observe(self) -> Observation:
        """The demo now; takes a few milliseconds."""
        status = self._client.rebalance_status(self._queue)
        flows = self._client.flows(self._queue)
        partitions = self._client.partitions(self._queue)
        self._names |= {flow.flow_id: flow.client_name for flow in flows}
        new, self._last_entry = self._record.messages_after(self._last_entry)
        self._processed.update(new)
        left = {one.partition: one for one in partitions if one.state != "finished"}
        return Observation(
            status=status.status,
            trigger=status.trigger,
            owners={number: self._name(one.owner) for number, one in left.items()},
            successors={number: self._name(one.successor) for number, one in left.items()},
            committed={number: one.position for number, one in left.items()},
            flows={flow.client_name: flow.flow_id for flow in flows},
            draining=frozenset(flow.client_name for flow in flows if flow.draining),
            backlog=backlog(self._log, self._record, left),
            processed=dict(self._processed),
            keys={number: one.key for number, one in left.items() if one.key is not None},
            waits_for={one.partition: one.waits_for for one in status.waiting},
        )

    def ends(self, partitions: Iterable[int]) -> Mapping[int, str]:
        """By partition: the position of the next message to be appended."""
        return self._log.bounds(list(partitions)).ends

    def _name(self, flow_id: str | None) -> str | None:
        return None if flow_id is None else self._names.get(flow_id, "?")


def backlog(log: Log, record: Record, partitions: Iterable[int]) -> dict[int, int]:
    """By partition: the number of messages in the log that are not in the statistics.

    The positions of the built-in log are numbers without holes, so they can be subtracted.
    """
    bounds = log.bounds(list(partitions))
    following = record.next_positions()
    return {
        number: int(end) - following.get(number, int(bounds.starts[number]))
        for number, end in bounds.ends.items()
    }


@dataclass(frozen=True, slots=True)
class FlightCounts:
    """The progress of the demo, in flights."""

    published: int
    counted: int
    total: int


@dataclass(frozen=True, slots=True)
class Doing:
    """What a process of the demo is doing, and since when (`time.monotonic`)."""

    text: str
    since: float

    def lasting(self) -> str:
        """With the seconds that it has lasted."""
        return f"{self.text} ({time.monotonic() - self.since:.0f} s)"


class Display(Protocol):
    """Shows the news of the demo, and what each of its processes is doing."""

    def news(self, text: str) -> None:
        """Show one event."""
        ...

    def show(
        self, doing: Mapping[str, Doing], seen: Observation | None, progress: FlightCounts
    ) -> None:
        """Show the present: what each process is doing, and the latest observation, if any."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


def owners_line(seen: Observation) -> str:
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


def state_line(seen: Observation) -> str:
    """The headline of the queue, as in the dashboard, then its status."""
    ownerless = sum(seen.owners[number] is None for number in seen.owners.keys() - seen.waits_for)
    look = Look(sum(seen.backlog.values()), held=0, unowned=ownerless)
    told = headline(seen.status, len(seen.flows), look)
    trigger = f" ({seen.trigger})" if seen.trigger and not told.text else ""
    return told.with_status(seen.status + trigger)


class PlainDisplay:
    """One line for each change, with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._reported = self._began
        self._doing: dict[str, str] = {}
        self._last = ""

    def news(self, text: str) -> None:
        self._line(text)

    def show(
        self, doing: Mapping[str, Doing], seen: Observation | None, progress: FlightCounts
    ) -> None:
        for name, one in doing.items():
            if self._doing.get(name) != one.text:
                self._doing[name] = one.text
                self._line(f"{name}: {one.text}")
        if seen is None or not seen.flows:
            if time.monotonic() - self._reported > PLAIN_PROGRESS_SECONDS:
                self._line(", ".join(f"{name}: {one.lasting()}" for name, one in doing.items()))
            return
        if not self._last:
            self._line(SPLIT_LEGEND if seen.keys else LEGEND)
        line = f"[{owners_line(seen)}] {state_line(seen)}"
        if line != self._last or time.monotonic() - self._reported > PLAIN_PROGRESS_SECONDS:
            self._last = line
            self._line(f"{line:<38} {progress.counted:>8,} of {progress.total:,} flights")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        self._reported = time.monotonic()
        self._console.print(
            f"{self._reported - self._began:6.1f} s  {text}", markup=False, highlight=False,
            soft_wrap=True,
        )  # fmt: skip


class LiveDisplay:
    """A picture that is refreshed: partitions and owners, applications, progress, news."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._news: list[Text] = []
        self._picture: list[RenderableType] = []
        self._headline = ""
        self._rates = _Rates()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def news(self, text: str) -> None:
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._news.append(line.append(text, style="not dim"))
        self._draw()

    def show(
        self, doing: Mapping[str, Doing], seen: Observation | None, progress: FlightCounts
    ) -> None:
        if seen is None:
            self._picture = [self._processes(doing, None)]
        else:
            if (line := state_line(seen)) != self._headline:
                self._headline = line
                self.news(line)
            self._picture = [
                Text("queue flights: ").append(
                    line, style=STATUS_COLOURS.get(line.split()[0], "red")
                ),
                Text(),
                _partitions(seen),
                Text(),
                self._processes(doing, seen),
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

    def _processes(self, doing: Mapping[str, Doing], seen: Observation | None) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name, justify in (("application", "left"), ("does", "left"), ("for", "right"),
                              ("partitions", "right"), ("flights", "right"),
                              ("a second", "right")):  # fmt: skip
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name, one in doing.items():
            numbers = ["", "", ""]
            if seen is not None:
                processed = seen.processed.get(name, 0)
                rate = self._rates.rate(name, processed)
                numbers = [str(len(seen.owned(name))), f"{processed:,}", f"{rate:,.0f}"]
            seconds = f"{time.monotonic() - one.since:.0f} s"
            table.add_row(Text(name, style=colour(name)), one.text, seconds, *numbers)
        return table


def colour(application: str) -> str:
    """An application's colour; after a restart it has the same one."""
    return COLOURS.get(application.split(".")[0], "white")


def _partitions(seen: Observation) -> RenderableType:
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


def _bars(progress: FlightCounts) -> RenderableType:
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
