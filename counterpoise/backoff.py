"""How long to pause between attempts: one schedule for all that is tried again.

Pure: threads, coroutines and programs without I/O take the pause from here and wait in their way.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The first pause; each further one is twice as long, up to the longest. In seconds."""

    first_seconds: float
    longest_seconds: float

    def after(self, failures: int, chance: float = 1.0) -> float:
        """How long to pause after so many failures in a row (>= 1).

        `chance`, evenly from [0, 1), spreads the pause over its upper half, so that the clients of
        a server that comes back do not come all at once. 1.0: the whole pause.
        """
        grown = self.first_seconds * 2.0 ** min(failures - 1, 64)
        return min(self.longest_seconds, grown) * (0.5 + 0.5 * chance)


class Pauses:
    """The pauses of one thing that is tried again: counts its failures in a row."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.failures = 0

    def failed(self, chance: float = 1.0) -> float:
        """One more failure; how many seconds to pause now."""
        self.failures += 1
        return self._backoff.after(self.failures, chance)

    def succeeded(self) -> None:
        """The next failure is the first again."""
        self.failures = 0
