"""Decides how long to retry on a log that fails.

An unreachable log may stay unreachable for any time; the reader sets the time limit.
A log that does not exist, or ends before the position to read, is another case. A Kafka leader
that has just taken over reports this for a moment; a Redis that has lost its last messages reports
it until the service has repaired the log, within a minute (docs, *Logs*). It would be wrong to give
up in these two cases, and harmful to treat the log as restored or made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs.errors import LogUnavailable

# How long a log may be missing, or end before a position, until this counts as permanent.
AHEAD_SECONDS = 180.0

BACKOFF = Backoff(0.1, 5.0)


class Patience:
    """The patience of one reader. `timeout_seconds`: how long a log may return nothing."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._pauses = Pauses(BACKOFF)
        self.rewarded()

    def rewarded(self) -> None:
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
