"""How many messages a micro-batch may have where the user names no limit.

Each micro-batch has costs of its own (Spark's plan, two checkpoint files, the tasks), so large ones
read faster. But a partition that is revoked waits for the micro-batch that reads it, so they must
stay short, and how long one takes depends on what the query does with a message. So the limit
follows what micro-batches take: it doubles after one that left messages behind and took less than
half of `AIMED_SECONDS`, and halves after one that took more than all of it. It starts at the least
limit, and stays between that and ten times as much. The limit in bytes holds as well.
"""

from __future__ import annotations

AIMED_SECONDS = 2.0
GROWTH = 10


class BatchLimit:
    """The limit in `messages`, from `least` to ten times as much."""

    def __init__(self, least: int) -> None:
        self.messages = least
        self._least = least

    def took(self, seconds: float, *, left_behind: bool) -> None:
        """A micro-batch took so long. `left_behind`: there were more messages to read."""
        if seconds > AIMED_SECONDS:
            self.messages = max(self._least, self.messages // 2)
        elif left_behind and seconds < AIMED_SECONDS / 2:
            self.messages = min(GROWTH * self._least, self.messages * 2)
