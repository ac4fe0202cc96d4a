"""How much a micro-batch may read where the user names no limit.

Each micro-batch has costs of its own (Spark's plan, two checkpoint files, the tasks), so large ones
read faster. But a partition that is revoked waits for the micro-batch that reads it, so they must
stay short, and how long one takes depends on what the query does with a message. So the limit
follows what micro-batches take. One that left messages behind and took less than half of
`AIMED_SECONDS` says how much fits into that time, and the limit grows to it, at most `STEP` times
at once. One that took more than all of `AIMED_SECONDS` halves the limit.

The limit of messages starts at the least and stays between that and `GROWTH` times as much. The
limit of bytes grows with it, up to `BYTES_GROWTH` times, unless the user has named it.
"""

from __future__ import annotations

from dataclasses import dataclass

AIMED_SECONDS = 2.0
STEP = 4
GROWTH = 10
BYTES_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Most:
    """So many messages and so many bytes of values at most; None: without a limit."""

    messages: int | None
    bytes: int | None


class BatchLimit:
    """The present limit, at first `least`. `bytes_grow`: the user has not named its bytes."""

    def __init__(self, least: int, least_bytes: int | None, *, bytes_grow: bool) -> None:
        self.messages = least
        self._least = least
        self._least_bytes = least_bytes
        self._bytes_growth = BYTES_GROWTH if bytes_grow else 1

    @property
    def most(self) -> Most:
        """For the next micro-batch."""
        if self._least_bytes is None:
            return Most(self.messages, None)
        grown = self._least_bytes * self.messages // self._least
        return Most(self.messages, min(grown, self._bytes_growth * self._least_bytes))

    def took(self, seconds: float, messages: int, *, left_behind: bool) -> None:
        """A micro-batch with a limit of so many `messages` took so long.

        `left_behind`: there were more messages to read. The limit may have changed since it was
        planned, because the end of a micro-batch is looked up ahead.
        """
        aimed = AIMED_SECONDS / 2
        if seconds > AIMED_SECONDS:
            self._set(messages // 2)
        elif left_behind and seconds > aimed:
            self._set(min(self.messages, messages))
        elif left_behind:
            # Not lowered: what was looked up ahead with the present limit would be in vain.
            fits = int(messages * aimed / max(seconds, aimed / STEP))
            self._set(max(self.messages, fits))

    def _set(self, messages: int) -> None:
        self.messages = min(GROWTH * self._least, max(self._least, messages))
