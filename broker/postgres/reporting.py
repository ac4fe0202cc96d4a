"""Says in the log why the database cannot be used: with its own code, and not too often.

A full disk or a lost data directory fails every call, hundreds in a second. One line every
`LOG_SECONDS` for each cause is enough to see what is wrong, and that it still is. A cause is the
database's code: its text names another file each time. Where the database gave no code (it refused
the connection, or did not answer) the text is all there is, so each text is a cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

_log = structlog.get_logger("broker.postgres")

LOG_SECONDS = 10.0
# Codes are few, texts need not be.
MOST_CAUSES = 100


class Reporter:
    """The log lines of one process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # The cause that was said last comes last.
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def report(self, error: str, code: str | None) -> None:
        """A line for this failure, unless its cause was in the log a moment ago.

        `code`: the database's SQLSTATE, None if it gave none.
        """
        now = self._monotonic()
        cause = code or error
        said_at = self._said_at.get(cause)
        if said_at is not None and now - said_at < LOG_SECONDS:
            self._unsaid[cause] = self._unsaid.get(cause, 0) + 1
            return
        self._said_at.pop(cause, None)
        self._said_at[cause] = now
        unsaid = self._unsaid.pop(cause, 0)
        if len(self._said_at) > MOST_CAUSES:
            forgotten = next(iter(self._said_at))
            del self._said_at[forgotten]
            self._unsaid.pop(forgotten, None)
        _log.error("the database cannot be reached", code=code, error=error, times_before=unsaid)


REPORTER = Reporter()
