"""Messages of a log to look at: they are read, and nothing is bound, committed or trimmed.

A look is bounded, whatever the log holds. It has at most so many messages, and of each at most so
many bytes of the value and characters of the key; headers that are longer than that together are
left out. The built-in log cuts where the messages are. The logs outside send whole messages, so
there a look ends after READ_BYTES of values, or after one message.

A look begins at a position, or at the first message of the log if that is later or no position is
given. Beyond the end there is nothing. `following` is where the next look begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from counterpoise.logs.port import Log

READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message, cut. `published_at` in Unix seconds; None: a time that no calendar has.

    `headers` None: they are too long. `size_bytes` is the size of the whole value.
    """

    position: str
    published_at: float | None
    key: str | None
    headers: Mapping[str, str] | None
    value: bytes = field(repr=False)
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Messages of a partition in order; `start` and `end` are those of the partition in the log."""

    start: str
    end: str
    messages: Sequence[PeekedMessage]
    following: str


def peek_at(log: Log, partition: int, position: str | None, limit: int, max_bytes: int) -> Peek:
    """Look at messages through a client of the log. Raises what the log raises."""
    bounds = log.bounds([partition])
    start, end = bounds.starts[partition], bounds.ends[partition]
    at = start if position is None or log.compare(position, start) < 0 else position
    if log.compare(at, end) >= 0:
        return Peek(start, end, (), end)
    until = log.limit({partition: at}, limit, bounds)[partition]
    parts = log.rows(partition, at, until, max_messages=limit, max_bytes=READ_BYTES)
    rows = [row for some in parts for row in some.to_pylist()]
    messages = tuple(_cut(row, max_bytes) for row in rows)
    # Positions of the logs that the service knows are numbers.
    return Peek(start, end, messages, str(int(rows[-1]["position"]) + 1) if rows else until)


def _cut(row: Mapping[str, Any], max_bytes: int) -> PeekedMessage:
    """A row of MESSAGE_SCHEMA as a message to look at."""
    headers = dict(row["headers"] or ())
    size = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    at: datetime | None = row["published_at"]
    return PeekedMessage(
        str(row["position"]),
        None if at is None else at.timestamp(),
        None if row["key"] is None else row["key"][:max_bytes],
        headers if size <= max_bytes else None,
        row["value"][:max_bytes],
        len(row["value"]),
    )
