"""What a batch read reads: its ranges, from the options and the state of queue and log, and tasks.

The service is asked here for the queue's partitions and the access to its log. The ends of the
ranges are decided here too. So all tasks read the state of one moment, however long they take and
however often they are repeated.

A start that was trimmed is not detected here. As in streams, the reading task finds out whether the
missing messages were discarded on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from counterpoise.client import Client
from counterpoise.logs import Bounds, InvalidPosition, Log
from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.offsets import NO_EPOCH, Slice
from counterpoise.spark.options import Edge, SourceOptions, is_word
from counterpoise.spark.queue_log import QueueLog, ReadAccess, retry_until
from counterpoise.spark.source.log_partition import LogPartition, log_partition
from counterpoise.spark.source.planning import tasks_of
from counterpoise.spark.source.probe import ask_bounds


@dataclass(frozen=True)
class QueuePositions:
    """The queue's partitions with their committed positions."""

    queue: str
    committed: Mapping[int, str | None]


def chosen(starting: Edge, ending: Edge, known: QueuePositions) -> list[int]:
    """The partitions to read. Raises InvalidOption if a number does not exist."""
    named = [set(edge) for edge in (starting, ending) if isinstance(edge, Mapping)]
    if len(named) == 2 and named[0] != named[1]:
        odd = min(named[0] ^ named[1])
        raise InvalidOption(
            f"startingPositions and endingPositions name different partitions: {odd} is in one of "
            "them only"
        )
    if not named:
        return sorted(known.committed)
    unknown = sorted(named[0] - known.committed.keys())
    if unknown:
        numbers = sorted(known.committed)
        there = f"{numbers[0]}..{numbers[-1]}" if numbers else "none"
        raise InvalidOption(
            f"queue {known.queue!r} has no partition {unknown[0]} (it has {there}): correct "
            "startingPositions or endingPositions"
        )
    return sorted(named[0])


def extents(
    starting: Edge, ending: Edge, known: QueuePositions, log: Log, bounds: Bounds
) -> list[Slice]:
    """The ranges to read of the partitions in `bounds`; empty ranges are left out.

    Raises InvalidOption for a range that is out of bounds or ends before it starts; and LogError
    where the log is asked for a time.
    """

    def at(edge: Edge, number: int, words: Mapping[str, str | None]) -> str:
        if isinstance(edge, datetime):
            return log.first_since(number, bounds.starts[number], bounds.ends[number], edge)
        text = edge if isinstance(edge, str) else edge[number]
        position = words.get(text, text)
        assert position is not None
        return position

    found = []
    for number in sorted(bounds.ends):
        first, end = bounds.starts[number], bounds.ends[number]
        done = known.committed[number]
        start = at(starting, number, {"earliest": first, "committed": done or first})
        # Without a commit nothing is done, so that range is empty.
        until = at(ending, number, {"latest": end, "committed": done or start})
        _check(log, "startingPositions", number, start, end)
        _check(log, "endingPositions", number, until, end)
        if log.compare(start, until) > 0:
            if is_word(starting, number) and is_word(ending, number):
                continue
            raise InvalidOption(
                f"partition {number} would be read from {start} to {until}, which lies before: "
                "correct startingPositions or endingPositions"
            )
        if log.compare(start, until) < 0:
            found.append(Slice(number, NO_EPOCH, start, until))
    return found


def _check(log: Log, name: str, number: int, position: str, end: str) -> None:
    try:
        beyond = log.compare(position, end) > 0
    except InvalidPosition as error:
        raise InvalidOption(f"the option {name!r}, partition {number}: {error}") from None
    if beyond:
        raise InvalidOption(
            f"the option {name!r}, partition {number}: {position} lies behind the end of the log, "
            f"{end}"
        )


_CALL_SECONDS = 10.0


def plan_batch(options: SourceOptions, cores: int) -> list[LogPartition]:
    """The slices of each task. Raises CannotStart and InvalidOption, which say what to do."""
    give_up_at = time.monotonic() + options.start_timeout_seconds
    timeout_seconds = max(0.1, min(_CALL_SECONDS, options.start_timeout_seconds))
    with Client(options.url, timeout_seconds=timeout_seconds) as client:
        return retry_until(lambda: _plan(client, options, cores), options, give_up_at)


def _plan(client: Client, options: SourceOptions, cores: int) -> list[LogPartition]:
    access = ReadAccess(client, options.queue)
    known = QueuePositions(
        options.queue,
        {one.partition: one.position for one in client.partitions(options.queue)},
    )
    numbers = chosen(options.starting, options.ending, known)
    connection = QueueLog(access, options.log_url)
    try:
        bounds, log = ask_bounds(connection, numbers)
        slices = extents(options.starting, options.ending, known, log, bounds)
    finally:
        connection.close()
    groups = tasks_of(slices, cores, options)
    return [log_partition(connection, options, group) for group in groups]
