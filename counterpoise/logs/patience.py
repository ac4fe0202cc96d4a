"""How long to go on asking a log for what it does not give: what passes by itself, and by when.

That a log cannot be reached may last as long as it likes; whoever reads says how long is too long.
A log that is not there, or ends before what is to be read, is something else. A leader of Kafka
that has just taken over says so for a moment; a Redis that has lost its last messages does until
the service has made that good, within a minute (docs, *Logs*). To give up would be wrong in both
cases, and what there is to do about a log that was restored or made anew does harm in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs.errors import LogUnavailable

# How long a log may be missing, or end before a position, until that is taken for the truth.
AHEAD_SECONDS = 180.0

BACKOFF = Backoff(0.1, 5.0)


class Patience:
    """Of one who reads something. `timeout_seconds`: how long a log may give nothing at all."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._pauses = Pauses(BACKOFF)
        self.rewarded()

    def rewarded(self) -> None:
        """The log gave something: all begins anew."""
        self._give_up_at = self._clock() + self._timeout_seconds
        self._lost_since: float | None = None
        self._pauses.succeeded()

    def pause_after(self, error: CounterpoiseError) -> float | None:
        """How many seconds to wait before the next try; None when that is enough.

        `error` is one that may pass: LogUnavailable or ServiceUnavailable; LogNotFound or
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
