"""Large work in pieces, so that no request holds the event loop.

What names 100,000 partitions takes the processor for up to a second. It is done in pieces of some
milliseconds, and between two pieces the worker pauses. Of all workers that pause, one goes on at a
time, in the order in which they paused. **Between two pieces the loop turns `TURNS` times**: a
small call takes several turns, and would otherwise wait for a piece in each. So however many
workers there are, it waits for one piece when it arrives, and for one more each time that it waits
for the database.

Work of less than a piece never pauses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
V = TypeVar("V")
# Items of a piece; no work on an item takes more than some microseconds.
PIECE = 500
# A heartbeat takes three turns until it has asked the database, and four from there to its answer.
TURNS = 8
# Where the turns are long themselves, the next piece comes after this time.
OTHERS_SECONDS = 0.01

_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = (
    WeakKeyDictionary()
)


async def pause() -> None:
    """Lets everybody else have their turn."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.setdefault(loop, deque())
    turn: asyncio.Future[None] = loop.create_future()
    waiting.append(turn)
    if len(waiting) == 1:
        _after_others(loop, waiting)
    await turn


def _after_others(loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
    loop.call_soon(_next, loop, waiting, TURNS - 1, loop.time() + OTHERS_SECONDS)


def _next(
    loop: asyncio.AbstractEventLoop,
    waiting: deque[asyncio.Future[None]],
    turns: int,
    until: float,
) -> None:
    """The one that waits longest goes on after so many more turns of the loop."""
    if turns > 0 and loop.time() < until:
        loop.call_soon(_next, loop, waiting, turns - 1, until)
        return
    while waiting:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            break
    if waiting:
        _after_others(loop, waiting)


async def pieces(items: Sequence[T], size: int = PIECE) -> AsyncIterator[Sequence[T]]:
    """The items in pieces of this size, with a pause before each; none if there is only one."""
    for first in range(0, len(items), size):
        if len(items) > size:
            await pause()
        yield items[first : first + size]


async def made(make: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """What `make` makes of each item, in pieces."""
    if len(items) <= PIECE:
        return [*map(make, items)]
    found: list[U] = []
    async for some in pieces(items):
        found += map(make, some)
    return found


async def mapped(make: Callable[[T], tuple[K, V]], items: Sequence[T]) -> dict[K, V]:
    """What `make` makes of each item, key and value, in pieces."""
    found: dict[K, V] = {}
    async for some in pieces(items):
        found.update(map(make, some))
    return found


class Pace:
    """Bounds work that cannot be done in pieces by number: how long it lasts in all, and how long
    others wait for it.
    """

    def __init__(self, most_seconds: float, step_seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._most, self._step = most_seconds, step_seconds
        self._began = self._stepped = self._clock()

    async def goes_on(self) -> bool:
        """Whether there is time for more; others get on first if the last step was long."""
        now = self._clock()
        if now - self._began > self._most:
            return False
        if now - self._stepped > self._step:
            await pause()
            self._stepped = self._clock()
        return True
