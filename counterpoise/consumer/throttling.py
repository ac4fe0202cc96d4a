"""Warnings of a consumer: each names the queue, and equal ones do not fill the log.

A service or a log that is away is met by every commit and every partition. One line a minute says
so, and how many were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

EQUAL_SECONDS = 60.0


class Warnings:
    """The warnings of one consumer; any thread may call it."""

    def __init__(
        self,
        logger: logging.Logger,
        queue: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._queue = queue
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, what: str, error: BaseException) -> None:
        """Log `what` happens because of this error, unless that was logged within a minute."""
        now = self._monotonic()
        with self._lock:
            if now - self._logged_at.get(what, float("-inf")) < EQUAL_SECONDS:
                self._left_out[what] = self._left_out.get(what, 0) + 1
                return
            self._logged_at[what] = now
            left_out = self._left_out.pop(what, 0)
        more = f" ({left_out} equal warnings were left out)" if left_out else ""
        self._logger.warning("queue %s: %s: %s%s", self._queue, what, error, more)
