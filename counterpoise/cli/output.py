"""What the commands share: sentences, output as JSON, formatting, the headline of a queue.

Tables and colours are in `counterpoise.cli.tables`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.headline import GROWS_FROM, Headline, Look, headline, lag_grows
from counterpoise.plain import plain_json, plain_line

if TYPE_CHECKING:
    from counterpoise.client import Client
    from counterpoise.wire import HeldBack, Partition, Queue


def say(message: str) -> None:
    """Print a message for people, on stderr, in one line."""
    sys.stderr.write(plain_line(message) + "\n")
    sys.stderr.flush()


def tell(message: str) -> None:
    """Print a result for people, in one line."""
    click.echo(plain_line(message))


def headline_of(queue: Queue, look: Look | None, away: bool = False) -> Headline:
    """What is said of a queue before its status."""
    return headline(
        queue.rebalance_status,
        queue.active_flow_count,
        look,
        conditions=queue.conditions,
        paused=queue.paused_partition_count if queue.paused is None else True,
        away=away,
    )


def look_at(client: Client, name: str, partitions: Sequence[Partition]) -> Look | None:
    """What a queue's partitions say, and what the service has measured; None without partitions."""
    if not partitions:
        return None
    look = Look(
        known_lag(partitions),
        known_lag(one for one in partitions if one.paused) or 0,
        sum(one.state == "unassigned" for one in partitions),
    )
    if look.waiting <= GROWS_FROM:
        return look
    measured: list[tuple[datetime, int | None]] = []
    with contextlib.suppress(CounterpoiseError):  # all else is known
        measured = [(one.at, one.lag) for one in client.measurements(name).items]
    ages = [one.lag_seconds for one in partitions if one.lag_seconds is not None]
    return replace(look, grows=lag_grows(look.waiting, max(ages, default=None), measured))


def known_lag(partitions: Iterable[Partition]) -> int | None:
    """None: it is known of no partition."""
    known = [one.lag for one in partitions if one.lag is not None]
    return sum(known) if known else None


def total_lag(partitions: Iterable[Partition]) -> int | None:
    """None: of a partition it is not known."""
    lags = [one.lag for one in partitions]
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def print_json(document: Any) -> None:
    """Print a JSON document for programs."""
    click.echo(plain_json(json.dumps(document, indent=2, ensure_ascii=False)))


def ranges(numbers: Iterable[int]) -> str:
    """`0-3 7 9-10` for 0, 1, 2, 3, 7, 9, 10."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def of_partitions(numbers: Collection[int]) -> str:
    """`partition 3`, `partitions 0-3 7`."""
    return f"{'partition' if len(numbers) == 1 else 'partitions'} {ranges(numbers)}"


def by_text(told: Iterable[tuple[int, str]]) -> list[tuple[str, list[int]]]:
    """The numbers of which the same is told, together, with the text."""
    found = dict[str, list[int]]()
    for number, text in told:
        found.setdefault(text, []).append(number)
    return [*found.items()]


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_text(number: int | None) -> str:
    """`12,345`; `?` if it is not known."""
    return "?" if number is None else f"{number:,}"


def position_text(position: str | None) -> str:
    """As it is stored, because people give it back to commands; `start` without one."""
    return "start" if position is None else position


def setting_text(value: object) -> str:
    """`yes`, `no`, `2.5`, `86,400`; `-` if there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}".removesuffix(".0")
    return str(value)


def for_people() -> bool:
    """Whether a person is there to answer a question."""
    return sys.stdin.isatty()


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
    until = f"until {held.until.astimezone():%H:%M}"
    if held.flows == 1:
        return f"1 consumer waits {until}: its key has moved as much as it may in an hour"
    return (
        f"{held.flows} consumers wait, the first {until}: their keys have moved as much as they "
        "may in an hour"
    )
