"""Waking a thread, also from a signal handler."""

from __future__ import annotations

import queue


class Waking:
    """A thread waits on it, and others wake the thread.

    One wake-up is remembered, so a wake-up before the wait is not lost. A `SimpleQueue` works in a
    signal handler that interrupts the thread that uses it. An `Event` does not: it would wait for a
    lock that the interrupted thread holds.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        if self._calls.empty():
            self._calls.put(None)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for a wake-up; False if there was none in time."""
        try:
            self._calls.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return False
        return True
