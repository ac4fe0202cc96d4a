"""How long a service holds its event loop: measured in processor time of the loop's thread.

While it measures, a callback runs in every turn of the loop. What the thread has worked between two
of them has kept all other callers waiting. The processor's time does not count what the machine
does for others; what a noisy machine adds all the same is no property of the request, so a request
that was held too long is sent again, and its shortest time counts (`shortest_hold`).
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from api.server import COLLECTIONS
from tests.service import Service

# What no request may take.
MOST_SECONDS = 0.05
ATTEMPTS = 4


class Holding:
    """The longest turn of a service's loop so far, in seconds of its thread's processor time."""

    def __init__(self, service: Service) -> None:
        self.longest = 0.0
        acceptor: Any = service.server.servers[0]
        self._loop: asyncio.AbstractEventLoop = acceptor.loop
        self._last: float | None = None
        self._on = True

    def _turn(self) -> None:
        now = time.thread_time()
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        if self._on:
            self._loop.call_soon(self._turn)

    def in_loop(self, work: Callable[[], object]) -> None:
        """Do something in the loop and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(60), "the loop does not turn"

    def begin(self) -> None:
        self.in_loop(self._turn)

    def end(self) -> None:
        self._on = False
        self.in_loop(lambda: None)


@contextmanager
def measured(service: Service) -> Iterator[Holding]:
    """Measures until the block ends."""
    holding = Holding(service)
    holding.begin()
    try:
        yield holding
    finally:
        holding.end()


@contextmanager
def as_in_a_process_of_its_own() -> Iterator[None]:
    """Collect garbage as `serve` does: the tests' own objects are none of the service's."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def shortest_hold(
    service: Service, request: Callable[[], object], most_seconds: float = MOST_SECONDS
) -> float:
    """How long this request holds the loop; the first attempt within the limit is enough."""
    holds = []
    for _ in range(ATTEMPTS):
        with measured(service) as holding:
            request()
        holds.append(holding.longest)
        if holds[-1] <= most_seconds:
            break
    return min(holds)
