"""The cycles of a query, measured as it runs: how long they take, and what the next may read.

A partition is released when Spark asks for the next offset. In the worst case it is revoked just
after a micro-batch with its messages was planned, and released when Spark asks again: a *cycle*
later. A cycle is the micro-batch, or the trigger interval if that is longer. A queue's
max_handoff_time below two cycles makes forced handoffs likely.

`BatchLimit` is how much a micro-batch may read where the user names no limit. Each micro-batch has
costs of its own (Spark's plan, two checkpoint files, the tasks), so large ones read faster. But a
partition that is revoked waits for the micro-batch that reads it, so they must stay short, and how
long one takes depends on what the query does with a message. So the limit follows what micro-
batches take. One that left messages behind and took less than half of `AIMED_SECONDS` says how much
fits into that time, and the limit grows to it, at most `STEP` times at once. One that took more
than all of `AIMED_SECONDS` halves the limit. If the next one then takes as long as before, the
messages are not the reason, and the limit goes back: where Spark's events do not come, a cycle
lasts as long as the trigger interval.

The first limit is small, because nothing is known yet of a query whose sink may be slow, and short
micro-batches make it grow within a second. It stays between a `SHRINK`th and `GROWTH` times of it.
The limit of bytes follows the limit of messages, unless the user has named it.

`LeastMessages` is the other end: a micro-batch waits until there are enough messages, or for a time
(`minOffsetsPerTrigger`, `maxTriggerDelay`). As in Spark's Kafka source the first one does not wait,
and the time counts from the last micro-batch. Once the wait is over, it is over for all messages
that the log has at that moment, in however many micro-batches the limits read them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

AIMED_SECONDS = 2.0
STEP = 10
# Two micro-batches whose times differ by less take the same time.
ALIKE = 0.75
SHRINK = 20
GROWTH = 100
# The limit of bytes is meant for so many times the first limit of messages.
BYTES_AT = 10
BYTES_GROWTH = 4


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """So many messages and so many bytes of values at most; None: without a limit."""

    messages: int | None
    bytes: int | None


class LeastMessages:
    """Micro-batches wait for so many messages, but no longer than `longest_seconds`.

    Positions count as messages. Times are seconds by any monotonic clock.
    """

    def __init__(self, messages: int, longest_seconds: float) -> None:
        self._messages = messages
        self._longest_seconds = longest_seconds
        self._planned_at: float | None = None
        self._released: Mapping[int, str] = {}

    def planned(self, now: float) -> None:
        """A micro-batch was planned."""
        self._planned_at = now

    def waits(self, begins: Mapping[int, str], ends: Mapping[int, str], now: float) -> bool:
        """Whether the messages from `begins` to the log's `ends` are to wait for more."""
        released = self._released
        if any(int(at) < int(released.get(number, 0)) for number, at in begins.items()):
            return False
        backlog = sum(max(0, int(ends[number]) - int(at)) for number, at in begins.items())
        if not backlog:
            return False
        early = self._planned_at is not None and now - self._planned_at < self._longest_seconds
        if early and backlog < self._messages:
            return True
        self._released = {number: ends[number] for number in begins}
        return False


class BatchLimit:
    """The present limit, at first of so many messages.

    `max_bytes`: the user's limit of bytes, or, if `bytes_follow`, that of `BYTES_AT` times the
    first messages.
    """

    def __init__(self, first: int, max_bytes: int | None, *, bytes_follow: bool) -> None:
        self.messages = first
        self._first = first
        self._max_bytes = max_bytes
        self._bytes_follow = bytes_follow
        # The micro-batch that was too long: its messages, and how long it took.
        self._too_long: tuple[int, float] | None = None

    @property
    def most(self) -> ReadBudget:
        """For the next micro-batch."""
        size = self._max_bytes
        if size is not None and self._bytes_follow:
            followed = size * self.messages // (BYTES_AT * self._first)
            size = max(1, min(followed, BYTES_GROWTH * size))
        return ReadBudget(self.messages, size)

    def took(self, seconds: float, messages: int, *, left_behind: bool) -> None:
        """A micro-batch with a limit of so many `messages` took so long.

        `left_behind`: there were more messages to read. The limit may have changed since it was
        planned, because the end of a micro-batch is looked up ahead.
        """
        aimed = AIMED_SECONDS / 2
        if seconds > AIMED_SECONDS:
            self._took_too_long(seconds, messages)
            return
        self._too_long = None
        if left_behind and seconds > aimed:
            self._set(min(self.messages, messages))
        elif left_behind:
            # Not lowered: what was looked up ahead with the present limit would be in vain.
            fits = int(messages * aimed / max(seconds, aimed / STEP))
            self._set(max(self.messages, fits))

    def _took_too_long(self, seconds: float, messages: int) -> None:
        most, before = self._too_long or (0, 0.0)
        halved_or_same = messages == most or 2 * messages <= most
        if halved_or_same and ALIKE * before < seconds < before / ALIKE:
            self._set(most)
        else:
            self._too_long = messages, seconds
            self._set(messages // 2)

    def _set(self, messages: int) -> None:
        least, most = max(1, self._first // SHRINK), GROWTH * self._first
        self.messages = min(most, max(least, messages))


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
        """The micro-batch is done, if there was one: its event has come, or Spark asks for the
        next one.
        """
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
