"""Waking a thread, also from a signal handler."""

from __future__ import annotations

import queue


class Waking:
    """What one thread waits on and others wake it by.

    Waking is remembered once, so one that comes before the wait is not lost. A `SimpleQueue` may
    be used in a signal handler that interrupts the very thread that uses it; an `Event` may not:
    it would wait for a lock that the interrupted thread holds.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        if self._calls.empty():
            self._calls.put(None)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait to be woken; False if that did not happen in time."""
        try:
            self._calls.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return False
        return True
