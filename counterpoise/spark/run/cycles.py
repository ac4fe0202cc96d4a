"""The cycles of a query: how long a partition may wait for its release, measured as the query runs.

A partition is released when Spark asks for the next offset. In the worst case it is revoked just
after a micro-batch with its messages was planned, and released when Spark asks again: a *cycle*
later. A cycle is the micro-batch, or the trigger interval if that is longer. A queue's
max_handoff_time below two cycles makes forced handoffs likely.
"""

from __future__ import annotations

import math
from collections import deque

from counterpoise.spark.run.batch_limit import BatchLimit

# The first micro-batch of a query starts Python workers and compiles, so it is not typical.
_UNTYPICAL_CYCLES = 1
_KEPT_CYCLES = 8


class Cycles:
    """The latest cycles. Times are seconds by any monotonic clock.

    `limit` learns what each of them took.
    """

    def __init__(self, limit: BatchLimit | None = None) -> None:
        self._limit = limit
        self._planned_at: float | None = None
        self._left_behind = False
        self._messages: int | None = None
        self._seen = 0
        self._seconds: deque[float] = deque(maxlen=_KEPT_CYCLES)
        self._warned_of = 0.0

    def planned(
        self, now: float, *, messages: int | None = None, left_behind: bool = False
    ) -> None:
        """Spark was given a micro-batch to run, with a limit of so many `messages`.

        `left_behind`: there was more to read.
        """
        self._planned_at = now
        self._messages = messages
        self._left_behind = left_behind

    def done(self, now: float) -> None:
        """The micro-batch is done; this was learned before Spark asked for the next one."""
        self.asked(now)

    def asked(self, now: float) -> None:
        """Spark asks for the next one."""
        if self._planned_at is not None:
            self._seen += 1
            if self._seen > _UNTYPICAL_CYCLES:
                seconds = now - self._planned_at
                self._seconds.append(seconds)
                if self._limit is not None and self._messages is not None:
                    self._limit.took(seconds, self._messages, left_behind=self._left_behind)
            self._planned_at = None

    @property
    def cycle_seconds(self) -> float | None:
        """The longest of the last cycles; None before the first."""
        return max(self._seconds, default=None)

    @property
    def needed_seconds(self) -> int | None:
        """The max_handoff_time that two of the last cycles need, with a quarter to spare."""
        cycle = self.cycle_seconds
        return None if cycle is None else max(1, math.ceil(2 * cycle * 1.25))

    def warning(self, queue: str, max_handoff_seconds: float | None) -> str | None:
        """A warning to the user, once for each time that cycles have become much longer."""
        cycle = self.cycle_seconds
        if cycle is None or max_handoff_seconds is None or 2 * cycle <= max_handoff_seconds:
            return None
        if cycle <= 2 * self._warned_of:
            return None
        self._warned_of = cycle
        return (
            f"a micro-batch and its trigger take up to {cycle:.1f} s here, and a handoff can need "
            f"two of them, but the queue's max_handoff_time is {max_handoff_seconds:g} s: handoffs "
            "may be forced, and messages in flight delivered twice. Set it to "
            f"{self.needed_seconds} (counterpoise queues change {queue} --max-handoff-time "
            f"{self.needed_seconds}), or lower maxMessagesPerTrigger or the trigger interval"
        )
