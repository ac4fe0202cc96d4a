"""How long a request holds a service's event loop, in yardsticks.

A yardstick is a fixed piece of work, some milliseconds of Python, that the loop's own thread does
after the request. Both are measured in processor time of that thread. So the number is the same on
a slow machine, and what the machine does for others is not part of it.

During the request a callback runs in every turn of the loop. What the thread has worked between two
of them has kept all other callers waiting.

A virtual machine may count a stall of its host as the thread's processor time. So a request that
takes too much is sent once more, and counts with the shorter of the two turns: a bug holds the loop
each time, a stall does not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from api.server import COLLECTIONS
from tests.service import Service

# What no request may take. The costliest, a body of 1 MiB with a list of lists, takes 13.
MOST_YARDSTICKS = 35.0

ITEMS = [{"partition": number, "epoch": 1, "position": f"{number}"} for number in range(800)]


def yardstick() -> float:
    """How many seconds of its processor time this thread takes for the fixed work."""
    began = time.thread_time()
    for item in ITEMS:
        json.loads(json.dumps(item))
    return time.thread_time() - began


def hold_of(service: Service, request: Callable[[], object]) -> float:
    """The longest turn of the service's loop during this request, in yardsticks."""
    holding = _Holding(service)
    holding.in_loop(holding.turn)
    try:
        request()
    finally:
        holding.in_loop(holding.end)
    return holding.longest / holding.yardstick


def hold_each_time(service: Service, request: Callable[[], object]) -> float:
    """As `hold_of`, but a request that exceeds `MOST_YARDSTICKS` is sent again.

    Returns the lesser of the two.
    """
    yardsticks = hold_of(service, request)
    if yardsticks > MOST_YARDSTICKS:
        yardsticks = min(yardsticks, hold_of(service, request))
    return yardsticks


class _Holding:
    """`longest`: the longest turn; `yardstick`, once it has ended: both in seconds of the loop's
    thread.
    """

    def __init__(self, service: Service) -> None:
        self.longest = 0.0
        self.yardstick = 0.0
        acceptor: Any = service.server.servers[0]
        self._loop: asyncio.AbstractEventLoop = acceptor.loop
        self._last: float | None = None
        self._on = True

    def in_loop(self, work: Callable[[], object]) -> None:
        """Do something in the loop and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(240), "the loop does not turn"

    def turn(self) -> None:
        if not self._on:
            return
        now = time.thread_time()
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        self._loop.call_soon(self.turn)

    def end(self) -> None:
        self.turn()
        self._on = False
        self.yardstick = yardstick()


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
