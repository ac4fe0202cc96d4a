"""Errors between a program and a log, and how long a reader tries again on them.

There is one exception for each reaction of the program.

`ReadRetries` decides when a reader gives up. An unreachable log may stay unreachable for any time;
the reader sets the time limit. A log that does not exist, or ends before the position to read, is
another case. A Kafka leader that has just taken over reports this for a moment; a Redis that has
lost its last messages reports it until the service has repaired the log, within a minute (docs,
*Logs*). It would be wrong to give up in these two cases, and harmful to treat the log as restored
or made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs.ranges import Ranges

# How long a log may be missing, or end before a position, until this counts as permanent.
AHEAD_SECONDS = 180.0
BACKOFF = Backoff(0.1, 5.0)


class LogError(CounterpoiseError):
    """Any error in a log or on the way to it."""

    code = "log_error"


class LogUnavailable(LogError):
    """The log cannot be reached or was too slow; the same call may succeed later.

    An append may have taken effect or not: repeat it with the same sequences.
    """

    code = "log_unavailable"


class LogAccessRefused(LogUnavailable):
    """The log does not know or no longer accepts these credentials; fetch new ones and repeat."""

    code = "log_access_refused"


class LogRefused(LogError):
    """The log answers and does not take this, as things are; the message says what to change."""

    code = "log_refused"


class LogBehind(LogUnavailable):
    """A range was asked for that reaches beyond the end of its partition.

    The log had reported that end before: the server that answers now has not caught up, or messages
    were lost. The existing messages were returned first. `end` is the partition's end, `wanted` the
    range's.
    """

    code = "log_behind"

    def __init__(self, partition: int, end: str, wanted: str) -> None:
        super().__init__(
            f"partition {partition} ends at position {end}, but its end was {wanted} before: the "
            "server that answers may not have caught up yet. If it never does, messages were lost: "
            "reset the queue's positions, and start again"
        )
        self.partition = partition
        self.end = end
        self.wanted = wanted


class LogNotFound(LogError):
    """The log does not exist (any more)."""

    code = "log_not_found"


class InvalidLog(LogError, ValueError):
    """This is not the address of a log; the message gives the valid form and no credentials."""

    code = "invalid_log"


class StaleRouting(LogError):
    """The append was routed with an outdated partition count or outdated ranges: route it again.

    No message of it was appended. `ranges`: the current ones of a dynamic log. None for other logs,
    whose partition count is `partition_count`.
    """

    code = "stale_routing"

    def __init__(
        self, routed_with: int, partition_count: int, ranges: Ranges | None = None
    ) -> None:
        super().__init__(
            f"the messages were routed for {routed_with} partitions, but the log has "
            f"{partition_count}"
            if ranges is None
            else "the messages were not routed with the current ranges of the log"
        )
        self.partition_count = partition_count
        self.ranges = ranges


class InvalidMessage(LogError, ValueError):
    """The log cannot hold this message, now or later; it must be changed."""

    code = "invalid_message"


class InvalidPosition(LogError, ValueError):
    """This is not a position of this log: it was made by another log or by hand."""

    code = "invalid_position"


class PositionTrimmed(LogError):
    """Messages from this position on have been trimmed: further reading would skip them silently.

    `first` is the partition's earliest position that can still be read.
    """

    code = "position_trimmed"

    def __init__(self, partition: int, position: str, first: str) -> None:
        super().__init__(
            f"partition {partition} has been trimmed up to position {first}, "
            f"so it cannot be read from {position}"
        )
        self.partition = partition
        self.position = position
        self.first = first


class PositionAhead(LogError):
    """The position is beyond the end of its partition: it belongs to an earlier log of this name.

    A log that is dropped and made again counts its positions anew. `end` is the partition's end.
    """

    code = "position_ahead"

    def __init__(self, partition: int, position: str, end: str) -> None:
        super().__init__(
            f"partition {partition} ends at position {end}, so position {position} is not of this "
            "log; it may have been dropped and made again: reset the queue's positions"
        )
        self.partition = partition
        self.position = position
        self.end = end


class ReadRetries:
    """The retries of one reader. `timeout_seconds`: how long a log may return nothing."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._pauses = Pauses(BACKOFF)
        self.succeeded()

    def succeeded(self) -> None:
        """The log returned data: all limits begin anew."""
        self._give_up_at = self._clock() + self._timeout_seconds
        self._lost_since: float | None = None
        self._pauses.succeeded()

    def pause_after(self, error: CounterpoiseError) -> float | None:
        """How many seconds to wait before the next attempt; None to give up.

        `error` may be temporary: LogUnavailable or ServiceUnavailable; LogNotFound or
        PositionAhead.
        """
        now, until = self._clock(), self._give_up_at
        if isinstance(error, LogUnavailable | ServiceUnavailable):
            self._lost_since = None
        else:
            self._lost_since = now if self._lost_since is None else self._lost_since
            until = min(until, self._lost_since + AHEAD_SECONDS)
        pause = self._pauses.failed()
        return pause if now + pause <= until else None
