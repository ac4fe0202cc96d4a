"""Waking a thread, also from a signal handler, and from sockets."""

from __future__ import annotations

import queue
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress

# Each wait is of its own: epoll would need a call of the system for each socket, and two more.
_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)


class Waking:
    """A thread waits on it, and others wake the thread.

    One wake-up is remembered, so a wake-up before the wait is not lost. A `SimpleQueue` works in a
    signal handler that interrupts the thread that uses it. An `Event` does not: it would wait for a
    lock that the interrupted thread holds.

    A thread that waits for sockets, too, is woken by one of its own. It is made at the first such
    wait, before the thread looks whether it was called: so a call that came without it is found.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def wake(self) -> None:
        if self._calls.empty():
            self._calls.put(None)
            if (bell := self._bell) is not None:
                with suppress(OSError):  # it is full, or closed
                    bell[1].send(b"\0")

    def wait(self, timeout_seconds: float, descriptors: Sequence[int] = ()) -> bool:
        """Wait for a wake-up, or until a socket can be read; False if there was no wake-up."""
        if descriptors:
            self._select(timeout_seconds, descriptors)
            timeout_seconds = 0.0
        try:
            self._calls.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return False
        return True

    def close(self) -> None:
        """Close its sockets; for the thread that waits."""
        bell, self._bell = self._bell, None
        for one in bell or ():
            one.close()

    def _select(self, timeout_seconds: float, descriptors: Sequence[int]) -> None:
        if self._bell is None:
            bell = socket.socketpair()
            for one in bell:
                one.setblocking(False)
            self._bell = bell
        heard = self._bell[0]
        with _Selector() as selector:
            for descriptor in (heard.fileno(), *descriptors):
                selector.register(descriptor, selectors.EVENT_READ)
            if self._calls.empty():
                selector.select(max(0.0, timeout_seconds))
        with suppress(BlockingIOError):
            heard.recv(4096)
