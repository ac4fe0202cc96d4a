"""`counterpoise lag`: how far the consumers of a queue are behind its log.

The positions come from the service, the ends from the log itself. So the command also tests whether
this machine reaches the log, with the credentials that consumers and publishers on it would use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import click
from msgspec import to_builtins

from counterpoise.cli.options import json_option, queue_argument, service_options
from counterpoise.cli.output import count_text, counted, duration, position_text, print_json
from counterpoise.cli.reading import TIMEOUT_SECONDS, opened
from counterpoise.cli.tables import conditions_text, console, table
from counterpoise.client import Client
from counterpoise.logs import (
    Bounds,
    InvalidPosition,
    Log,
    LogAccessRefused,
    LogError,
    LogNotFound,
    PositionAhead,
)
from counterpoise.logs.address import ENVIRONMENT
from counterpoise.wire import LogView, Partition, Pause


@dataclass(frozen=True)
class PartitionLag:
    """One partition: its position, its end, and the number of messages in between.

    `lag` is None for a position that the log cannot have. `lag_seconds` is the age of the message
    at the position; None if nothing is unread, or the log does not say it. `first`: the position of
    the first message that is still in the log. `paused`: an administrator holds it still.
    """

    partition: int
    state: str
    position: str | None
    end: str
    lag: int | None
    lag_seconds: float | None = None
    first: str = "0"
    paused: Pause | None = None

    @property
    def is_passed(self) -> bool:
        """Whether messages from the position on are not in the log any more."""
        at = self.position
        return self.lag is not None and at is not None and int(at) < int(self.first)


@click.command("lag")
@queue_argument
@service_options
@json_option
def show_lag(queue: str, url: str | None, as_json: bool) -> None:
    """Show how many messages of each partition are not processed, and how old the next is.

    The age is from the time at which a message was published to the present by the log's clock.
    """
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        view, rows = lag_of(client, queue)
        conditions = tuple(client.conditions(queue))
    if as_json:
        reported = [one.raw for one in conditions]
        print_json({**_document(queue, view, rows), "conditions": reported})
        return
    shown = table(
        "PARTITION",
        "STATE",
        "POSITION",
        "END",
        "LAG",
        "AGE",
        right=("PARTITION", "POSITION", "END", "LAG", "AGE"),
    )
    for row in rows:
        shown.add_row(
            str(row.partition),
            row.state if row.paused is None else f"{row.state}, paused",
            position_text(row.position),
            row.end,
            "not of this log" if row.lag is None else count_text(row.lag),
            _age_text(row),
        )
    console.print(shown)
    oldest = _oldest(rows)
    age = f"; the oldest is {duration(oldest)} old" if oldest is not None and _total(rows) else ""
    console.print(f"{queue}: {counted(_total(rows), 'message')} behind in {view.log}{age}")
    if any(row.lag is None for row in rows):
        console.print(
            "Some positions are not of this log, or beyond its end: it was made anew or has lost "
            "messages. "
            f"Set them: counterpoise positions set {queue} earliest --dry-run"
        )
    if conditions:
        console.print(conditions_text(conditions))


def lag_of(client: Client, queue: str) -> tuple[LogView, list[PartitionLag]]:
    """How far each partition is behind, as the log says it to this machine.

    Raises LogError if this machine cannot read the log.
    """
    view = client.log_access(queue, "read")
    return view, _behind(view, client.partitions(queue))


def _behind(view: LogView, partitions: list[Partition]) -> list[PartitionLag]:
    with opened(view) as log:
        try:
            bounds = log.bounds([one.partition for one in partitions])
            lags = {one.partition: _lag(log, one, bounds) for one in partitions}
            ages = log.ages(
                {number: str(int(bounds.ends[number]) - lag) for number, lag in lags.items() if lag}
            )
        except LogError as error:
            raise LogError(f"{error}; {_advice(view.log, error)}") from error
    return [
        PartitionLag(
            one.partition,
            one.state,
            one.position,
            bounds.ends[one.partition],
            lags[one.partition],
            ages.get(one.partition),
            bounds.starts[one.partition],
            one.paused,
        )
        for one in partitions
    ]


def _advice(log: str, error: LogError) -> str:
    """What to do about a log that this machine cannot read."""
    if isinstance(error, LogNotFound):
        return f"make {log} again and set the queue's positions, or delete the queue"
    access = (
        f"the access to it in {ENVIRONMENT}"
        if os.environ.get(ENVIRONMENT)
        else f"set {ENVIRONMENT} if it needs credentials"
    )
    if isinstance(error, LogAccessRefused):
        return f"check {access}" if os.environ.get(ENVIRONMENT) else access
    return f"check that this machine reaches {log}, and {access}"


def _lag(log: Log, one: Partition, bounds: Bounds) -> int | None:
    try:
        return log.backlog({one.partition: one.position}, bounds)[one.partition]
    except (PositionAhead, InvalidPosition):
        return None


def _total(rows: list[PartitionLag]) -> int:
    return sum(row.lag or 0 for row in rows)


def _oldest(rows: list[PartitionLag]) -> float | None:
    """The largest age; 0 if nothing is unread, None if no age is known."""
    ages = [row.lag_seconds for row in rows if row.lag_seconds is not None]
    if not ages and not any(row.lag != 0 for row in rows):
        return 0.0
    return max(ages, default=None)


def _age_text(row: PartitionLag) -> str:
    if row.lag_seconds is not None:
        return duration(row.lag_seconds)
    return "?" if row.lag else ""


def _document(queue: str, view: LogView, rows: list[PartitionLag]) -> dict[str, object]:
    return {
        "queue": queue,
        "log": view.log,
        "lag": _total(rows),
        "lag_seconds": _oldest(rows),
        "partitions": [
            {
                "partition": row.partition,
                "state": row.state,
                "position": row.position,
                "end": row.end,
                "lag": row.lag,
                "lag_seconds": row.lag_seconds,
                "paused": to_builtins(row.paused),
            }
            for row in rows
        ],
    }
