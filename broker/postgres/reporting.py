"""Says in the log why the database cannot be used: with its own code, and not too often.

A full disk or a lost data directory fails every call, hundreds in a second. One line every
`LOG_SECONDS` for each code is enough to see what is wrong, and that it still is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

_log = structlog.get_logger("broker.postgres")

LOG_SECONDS = 10.0


class Reporter:
    """The log lines of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said_at: dict[str | None, float] = {}
        self._unsaid: dict[str | None, int] = {}

    def report(self, error: str, code: str | None) -> None:
        """A line for this failure, unless its code (SQLSTATE) was in the log a moment ago."""
        now = self._monotonic()
        said_at = self._said_at.get(code)
        if said_at is not None and now - said_at < LOG_SECONDS:
            self._unsaid[code] = self._unsaid.get(code, 0) + 1
            return
        self._said_at[code] = now
        unsaid = self._unsaid.pop(code, 0)
        _log.error("the database cannot be reached", code=code, error=error, times_before=unsaid)


REPORTER = Reporter()
