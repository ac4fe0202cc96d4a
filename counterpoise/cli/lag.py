"""`counterpoise lag`: how far the consumers of a queue are behind its log.

The positions come from the service, the ends from the log itself. So the command also tests whether
this machine reaches the log, with the credentials that consumers and publishers on it would use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from counterpoise.cli.output import (
    AsJson,
    QueueName,
    Url,
    conditions_text,
    console,
    held_conditions,
    print_json,
    table,
)
from counterpoise.client import Client
from counterpoise.logs import Bounds, InvalidPosition, Log, LogError, PositionAhead, open_log
from counterpoise.logs.address import ENVIRONMENT, environment_access, kind_of
from counterpoise.wire import LogView, Partition

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class PartitionLag:
    """One partition: its position, its end, and the number of messages in between.

    `lag` is None for a position that the log cannot have.
    """

    partition: int
    state: str
    position: str | None
    end: str
    lag: int | None


def show_lag(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Show how many messages of each partition are not processed yet."""
    with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
        view, rows = lag_of(client, queue)
        conditions = held_conditions(client, queue)
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
        right=("PARTITION", "POSITION", "END", "LAG"),
    )
    for row in rows:
        shown.add_row(
            str(row.partition),
            row.state,
            f"({view.start})" if row.position is None else row.position,
            row.end,
            "not of this log" if row.lag is None else str(row.lag),
        )
    console.print(shown)
    console.print(f"{queue}: {_total(rows)} messages behind in {view.log}")
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
    if kind_of(view.log) is None:
        raise LogError(f"the log {view.log} is of a kind that this version cannot read")
    log = open_log(
        view.log, environment_access(view.log) or view.access, timeout_seconds=TIMEOUT_SECONDS
    )
    try:
        bounds = log.bounds([one.partition for one in partitions])
    except LogError as error:
        access = (
            f"the access to it in {ENVIRONMENT}"
            if os.environ.get(ENVIRONMENT)
            else f"set {ENVIRONMENT} if it needs credentials"
        )
        raise LogError(
            f"{error}; check that this machine reaches {view.log}, and {access}"
        ) from None
    finally:
        log.close()
    return [
        PartitionLag(
            one.partition,
            one.state,
            one.position,
            bounds.ends[one.partition],
            _lag(log, view.start, one, bounds),
        )
        for one in partitions
    ]


def _lag(log: Log, start: str, one: Partition, bounds: Bounds) -> int | None:
    if one.position is None and start == "latest":
        # A queue that starts at the latest position has no earlier messages to process.
        return 0
    try:
        return log.backlog({one.partition: one.position}, bounds)[one.partition]
    except (PositionAhead, InvalidPosition):
        return None


def _total(rows: list[PartitionLag]) -> int:
    return sum(row.lag or 0 for row in rows)


def _document(queue: str, view: LogView, rows: list[PartitionLag]) -> dict[str, object]:
    return {
        "queue": queue,
        "log": view.log,
        "start": view.start,
        "lag": _total(rows),
        "partitions": [
            {
                "partition": row.partition,
                "state": row.state,
                "position": row.position,
                "end": row.end,
                "lag": row.lag,
            }
            for row in rows
        ],
    }
