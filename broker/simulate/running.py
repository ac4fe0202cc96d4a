"""The numbers of a running queue, asked from its service."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from counterpoise.client import Client
from counterpoise.errors import BadAnswer, CounterpoiseError
from counterpoise.wire import Queue

TIMEOUT_SECONDS = 30.0
# Of the history; fewer where so many are too large for an answer.
MOST_REBALANCES = (20, 4, 1)


class NotTold(Exception):
    """The service does not answer, or refuses; the message is one line, without credentials."""


@dataclass(frozen=True)
class Running:
    """A queue as it runs. `finish_seconds`: the mean time in which owners released partitions in
    its latest rebalances, None if none did, or if the history is too large for an answer.
    """

    queue: Queue
    finish_seconds: float | None
    handoffs: int


def ask(url: str, queue: str) -> Running:
    """The key is taken from the environment, as by all clients. Raises NotTold."""
    try:
        with Client(url, timeout_seconds=TIMEOUT_SECONDS) as client:
            found = client.queue(queue)
            seconds = _finished(client, queue)
    except CounterpoiseError as error:
        raise NotTold(str(error)) from None
    return Running(found, statistics.fmean(seconds) if seconds else None, len(seconds))


def _finished(client: Client, queue: str) -> list[float]:
    """The times in which owners released partitions."""
    for most in MOST_REBALANCES:
        try:
            history = client.rebalances(queue, most)
        except BadAnswer:
            continue
        return [
            one.seconds
            for rebalance in history
            for one in rebalance.moves
            if one.outcome == "graceful" and one.from_flow is not None and one.seconds is not None
        ]
    return []
