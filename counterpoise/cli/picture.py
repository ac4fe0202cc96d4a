"""The picture of a queue, which `counterpoise status` shows.

It shows the partitions with their owners as a strip, the flows, and the rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from counterpoise.cli.output import (
    by_text,
    count_text,
    counted,
    duration,
    headline_of,
    held_back_text,
    known_lag,
    look_at,
    ranges,
    seconds_until,
)
from counterpoise.cli.pauses import pause_text
from counterpoise.cli.pins import pin_text
from counterpoise.cli.tables import PlainTable, conditions_text, table
from counterpoise.client import Client
from counterpoise.headline import Look
from counterpoise.plain import plain_line
from counterpoise.wire import (
    FlowSummary,
    HeldCondition,
    Partition,
    Queue,
    RebalanceStatus,
    RebalanceSummary,
    Waiting,
    barrier_text,
)

# Readable on 16-colour terminals and for colour-blind people: each cell also shows the number of
# the flow.
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
STATUS_STYLES = {"Ready": "bold green", "Holddown": "bold yellow", "Rebalancing": "bold magenta"}

FLOW_STYLES = {"draining": "yellow", "held back": "yellow", "standby": "dim"}

MARKS = {
    "revoking": "> being handed off",
    "warming": "~ warming up there",
    "retiring": "× retiring",
    "unassigned": "· without an owner",
    "waiting": "… waits for its parents",
    "finished": "‡ finished",
}

MOST_PARTITIONS = 2048
PER_ROW = 16
# Beyond so many partitions each has one character, and a row has 64.
MOST_WIDE = 256
NARROW_PER_ROW = 64
# Flows by their number, in one character.
SYMBOLS = "?123456789abcdefghijklmnopqrstuvwxyz"
MOST_FLOWS = 30
MOST_HANDOFFS = 8
MOST_WAITING = 8


@dataclass(frozen=True)
class QueueSnapshot:
    """The data of the picture, fetched at about one time; `at` by our clock."""

    queue: Queue
    status: RebalanceStatus
    flows: tuple[FlowSummary, ...]
    partitions: tuple[Partition, ...]
    look: Look | None
    at: datetime
    conditions: tuple[HeldCondition, ...] = ()

    @classmethod
    def take(cls, client: Client, name: str) -> Self:
        """Ask the service. A queue with very many partitions is shown only by counts."""
        queue = client.queue(name)
        small = queue.operational_partition_count <= MOST_PARTITIONS
        partitions = tuple(client.partitions(name)) if small else ()
        return cls(
            queue=queue,
            status=client.rebalance_status(name),
            flows=tuple(client.flows(name, max_items=MOST_FLOWS + 1)),
            partitions=partitions,
            look=look_at(client, name, partitions),
            at=datetime.now(UTC),
            conditions=tuple(client.conditions(name)),
        )


def render(snapshot: QueueSnapshot, away: str | None = None) -> RenderableType:
    """The picture; `away` is the message if the service does not answer any more."""
    numbers = {flow.flow_id: number for number, flow in enumerate(snapshot.flows, 1)}
    parts: list[RenderableType] = [_headline(snapshot, away is not None)]
    if snapshot.conditions:
        parts += [Text(), conditions_text(snapshot.conditions)]
    if snapshot.partitions:
        strip = _strip if len(snapshot.partitions) <= MOST_WIDE else _narrow_strip
        parts += [Text(), strip(snapshot.partitions, numbers)]
        marks = {MARKS[one.state] for one in snapshot.partitions if one.state in MARKS}
        if marks:
            parts.append(Text(" " * 7 + "   ".join(sorted(marks)), style="dim"))
    waiting = [one for one in snapshot.partitions if one.cut is not None and one.waits_for]
    if waiting:
        parts += [Text(), _barriers(waiting)]
    partitions = snapshot.partitions
    if paused := [(one.partition, pause_text(one.paused)) for one in partitions if one.paused]:
        parts += [Text(), _told("paused", "yellow", paused)]
    if pinned := [(one.partition, pin_text(one.pinned)) for one in partitions if one.pinned]:
        parts += [Text(), _told("pinned", "cyan", pinned)]
    if snapshot.status.waiting:
        parts += [Text(), _parents(snapshot.status.waiting)]
    parts += [Text(), _flows(snapshot, numbers)]
    if snapshot.status.held_back is not None:
        parts += [Text(), Text(held_back_text(snapshot.status.held_back), style="yellow")]
    if snapshot.status.handoffs:
        parts += [Text(), _handoffs(snapshot, numbers)]
    if snapshot.status.unassigned:
        unassigned = snapshot.status.unassigned
        parts += [Text(), Text(f"without an owner: {ranges(unassigned)}", style="yellow")]
    if snapshot.status.last_rebalance is not None:
        parts += [Text(), _last(snapshot.status.last_rebalance)]
    parts.append(_numbers(snapshot.status))
    if away is not None:
        age = duration((datetime.now(UTC) - snapshot.at).total_seconds())
        parts += [Text(), Text(plain_line(f"as of {age} ago: {away}"), style="bold red")]
    return Panel(
        Group(*parts),
        title=Text(snapshot.queue.name, style="bold"),
        title_align="left",
        border_style="red" if away else "dim",
        padding=(1, 2),
        expand=False,
    )


def _headline(snapshot: QueueSnapshot, away: bool) -> Text:
    queue, status = snapshot.queue, snapshot.status
    line = Text()
    told = headline_of(queue, snapshot.look, away)
    if told.text:
        line.append(f"{told.text}; ", style="bold red" if told.alarming else "bold yellow")
    line.append(status.status, style=STATUS_STYLES.get(status.status, "bold"))
    if status.trigger:
        line.append(f" ({status.trigger})")
    left = seconds_until(status.holddown_until)
    if left is not None:
        line.append(f", {duration(left)} left")
    more = queue.operational_partition_count - queue.partition_count
    line.append(f"   {counted(queue.partition_count, 'partition')}")
    if more > 0:
        dynamic = queue.partitioning == "dynamic"
        what = "waiting or finished" if dynamic else "retiring"
        line.append(f" + {more} {what}", style="yellow")
    standby = queue.flow_count - queue.active_flow_count
    line.append(f"   consumers: {queue.active_flow_count:,} active")
    if standby > 0:
        line.append(f", {standby} standby")
    if snapshot.partitions:
        line.append(f"   lag {_lag(snapshot.partitions)}")
    return line


def _lag(partitions: Sequence[Partition]) -> str:
    """How many messages are not processed, as the log tells the service."""
    known = known_lag(partitions)
    if known is None:
        return "unknown"
    return f"{known:,}" + (" or more" if any(one.lag is None for one in partitions) else "")


def _symbol(number: int | None) -> str:
    return SYMBOLS[number] if number is not None and number < len(SYMBOLS) else SYMBOLS[0]


def _style(flow_id: str | None, numbers: Mapping[str, int]) -> str:
    number = numbers.get(flow_id or "")
    return "dim" if number is None else COLOURS[(number - 1) % len(COLOURS)]


def _strip(partitions: Sequence[Partition], numbers: Mapping[str, int]) -> Text:
    """One cell for each partition: the number of its flow in the flow's colour.

    `1` owned, `1>` being revoked, `2~` warming up at flow 2, `1×` retiring, `·` unassigned; of a
    dynamic queue also `…` waiting, `‡` finished.
    Each row begins with the number of its first partition.
    """
    strip = Text()
    for index, partition in enumerate(partitions):
        if index % PER_ROW == 0:
            strip.append(f"{'' if index == 0 else chr(10)}{partition.partition:>5}  ", style="dim")
        who, mark = partition.owner, " "
        match partition.state:
            case "revoking":
                mark = ">"
            case "warming":
                who, mark = partition.successor, "~"
            case "retiring":
                mark = "×"
        number = numbers.get(who or "")
        if who is None:
            cell = {"waiting": " … ", "finished": " ‡ "}.get(partition.state, " · ")
            strip.append(cell, style="dim")
        else:
            cell = f"{number if number is not None else '?':>2}{mark}"
            style = _style(who, numbers)
            strip.append(cell, style=f"{style} reverse" if mark == " " else f"bold {style}")
        strip.append(" ")
    return strip


def _narrow_strip(partitions: Sequence[Partition], numbers: Mapping[str, int]) -> Text:
    """One character for each partition: the symbol of its flow, or the mark of its state."""
    strip = Text()
    for index, partition in enumerate(partitions):
        if index % NARROW_PER_ROW == 0:
            strip.append(f"{'' if index == 0 else chr(10)}{partition.partition:>5}  ", style="dim")
        who = partition.successor if partition.state == "warming" else partition.owner
        if who is None:
            mark = MARKS.get(partition.state, MARKS["unassigned"])[0]
            strip.append(mark, style="dim")
        elif partition.state in MARKS:
            strip.append(MARKS[partition.state][0], style=f"bold {_style(who, numbers)}")
        else:
            strip.append(_symbol(numbers.get(who)), style=f"{_style(who, numbers)} reverse")
    return strip


def _flows(snapshot: QueueSnapshot, numbers: Mapping[str, int]) -> RenderableType:
    if not snapshot.flows:
        return Text("no consumer is bound", style="dim")
    owned: dict[str, list[int]] = {}
    for partition in snapshot.partitions:
        if partition.owner is not None:
            owned.setdefault(partition.owner, []).append(partition.partition)
    narrow = len(snapshot.partitions) > MOST_WIDE
    shown = table("", "CLIENT", "STATE", "OWNS", "PARTITIONS", "LEASE LEFT", right=("OWNS",))
    for flow in snapshot.flows[:MOST_FLOWS]:
        style = _style(flow.flow_id, numbers)
        lease = seconds_until(flow.lease_expires_at)
        shown.add_row(
            Text(f"{_label(numbers[flow.flow_id], narrow):>2} ", style=f"{style} reverse"),
            Text(flow.client_name),
            Text(flow.state, style=FLOW_STYLES.get(flow.state, "")),
            count_text(flow.partitions),
            Text(ranges(owned.get(flow.flow_id, ()))),
            Text("" if lease is None else duration(lease), style="dim"),
        )
    if len(snapshot.flows) <= MOST_FLOWS:
        return shown
    more = snapshot.queue.flow_count - MOST_FLOWS
    return Group(shown, Text(f"… and {more} more", style="dim"))


def _label(number: int, narrow: bool) -> str:
    """A flow as the strip above shows it."""
    return _symbol(number) if narrow else str(number)


def _handoffs(snapshot: QueueSnapshot, numbers: Mapping[str, int]) -> RenderableType:
    names = {flow.flow_id: flow.client_name for flow in snapshot.flows}
    shown = PlainTable(show_header=False)
    for handoff in snapshot.status.handoffs[:MOST_HANDOFFS]:
        left = seconds_until(handoff.deadline)
        origin = names.get(handoff.from_flow or "", handoff.from_flow or "-")
        target = names.get(handoff.to_flow or "", handoff.to_flow or "nobody yet")
        shown.add_row(
            Text(f"p{handoff.partition}", style="bold"),
            Text(origin, style=_style(handoff.from_flow, numbers)),
            "→",
            Text(target, style=_style(handoff.to_flow, numbers)),
            handoff.phase,
            "" if left is None else f"{duration(left)} left",
        )
    more = len(snapshot.status.handoffs) - MOST_HANDOFFS
    title = Text("handoffs", style="bold")
    return Group(title, shown, *([Text(f"… and {more} more", style="dim")] if more > 0 else []))


def _told(heading: str, colour: str, texts: Sequence[tuple[int, str]]) -> Text:
    """What is told of partitions, those of which it is the same together."""
    together = by_text(texts)
    shown = Text(heading, style=f"bold {colour}")
    for text, numbers in together[:MOST_WAITING]:
        shown.append(f"\n{ranges(numbers)}", style="bold").append(text, style="not bold")
    more = len(together) - MOST_WAITING
    if more > 0:
        shown.append(f"\n… and {more} more", style="dim not bold")
    return shown


def _barriers(waiting: Sequence[Partition]) -> Text:
    """Which partitions stop at the cut of an ordered resize, and for which others they wait."""
    told = [(one.partition, barrier_text(one.cut, one.waits_for)) for one in waiting]
    return _waits("ordered resize", told)


def _parents(waiting: Sequence[Waiting]) -> Text:
    """Which partitions of a dynamic queue wait for which parents to be finished."""
    told = []
    for one in waiting:
        parents = list(map(str, one.waits_for))
        more = ", …" if len(parents) > MOST_WAITING else ""
        end = f"until {', '.join(parents[:MOST_WAITING])}{more}"
        told.append((one.partition, f"{end} {'is' if len(parents) == 1 else 'are'} finished"))
    return _waits("splits and merges", told)


def _waits(title: str, waiting: Sequence[tuple[int, str]]) -> Text:
    shown = Text(title, style="bold")
    for partition, text in waiting[:MOST_WAITING]:
        shown.append(f"\np{partition}", style="bold").append(f" waits {text}", style="not bold")
    more = len(waiting) - MOST_WAITING
    if more > 0:
        shown.append(f"\n… and {more} more", style="dim not bold")
    return shown


def _last(last: RebalanceSummary) -> Text:
    line = Text()
    line.append("last rebalance: ", style="dim")
    line.append(f"{last.trigger}, {last.handoffs} handoffs")
    if last.forced:
        line.append(f" ({last.forced} forced)", style="red")
    line.append(f", {last.granted} granted")
    since = seconds_until(last.finished_at)
    if since is not None:
        line.append(f", {duration(-since)} ago", style="dim")
    return line


def _numbers(status: RebalanceStatus) -> Text:
    return Text(f"spread {status.spread}   revision {status.revision}", style="dim")
