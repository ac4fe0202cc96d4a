"""The start of the history from which state is restored: the option warmupFrom.

A floor is resolved once, when a chain of replays begins. After that it is a position in the offset.
So it does not move with the clock while history is replayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterpoise.logs import Log

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# No log reaches further back, and subtracting a longer time would overflow the calendar.
_LONGEST_SECONDS = 36_500 * 86400


@dataclass(frozen=True, slots=True)
class Floor:
    """At most so many messages before the end of the replay, or so many seconds before now.

    With neither it is the log's start. `snapshot`: there is no replay, the driver restores state
    itself.
    """

    messages: int | None = None
    seconds: float | None = None
    snapshot: bool = False


EARLIEST = Floor()


def floor_of(text: str) -> Floor:
    """The floor that an option names. A time of more than a century is `earliest`.

    Raises ValueError, whose text lists what is allowed.
    """
    lowered = text.strip().lower()
    if lowered == "earliest":
        return EARLIEST
    if lowered == "snapshot":
        return Floor(snapshot=True)
    found = re.fullmatch(r"([0-9]{1,18})([smhd]?)", lowered, re.ASCII)
    if found is None:
        raise ValueError(
            "is earliest, a number of messages (50000), a time (90s, 30m, 2h, 7d) or snapshot"
        )
    number, unit = int(found[1]), found[2]
    if not unit:
        return Floor(messages=number)
    seconds = number * _UNITS[unit]
    return Floor(seconds=float(seconds)) if seconds <= _LONGEST_SECONDS else EARLIEST


def find_floor(
    floor: Floor,
    log: Log,
    partition: int,
    first: str,
    target: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> str:
    """The position in [first, target] where the history of `partition` begins.

    `first` is where the log's partition starts. If positions are not numbers, the result is
    `first`. If the floor is a time, this reads a few single messages. Raises LogError.
    """
    if log.compare(first, target) >= 0 or not (first.isdecimal() and target.isdecimal()):
        return first
    low, high = int(first), int(target)
    if floor.messages is not None:
        return str(max(low, high - floor.messages))
    if floor.seconds is None:
        return first
    since = now() - timedelta(seconds=floor.seconds)
    while low < high:
        middle = (low + high) // 2
        published_at, position = _published_at(log, partition, middle, high)
        if published_at is None or published_at >= since:
            high = middle
        else:
            low = position + 1
    return str(low)


def _published_at(log: Log, partition: int, at: int, end: int) -> tuple[datetime | None, int]:
    """The publishing time and position of the first message in [at, end); (None, end): there is
    none.
    """
    for batch in log.read(partition, str(at), str(end), max_messages=1):
        if batch.num_rows:
            return batch.column("published_at")[0].as_py(), int(batch.column("position")[0].as_py())
    return None, end
