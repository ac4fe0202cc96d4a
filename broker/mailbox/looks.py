"""Looks at a queue, between two turns of its mailbox.

A look at very much is made in pieces (`broker.pieces`). The mailbox waits for its end, so what it
sees is of one revision, and other queues go on. What a look needs from the store beside the queue
are positions; a commit tells some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from broker.core.state.queue import Queue
from broker.store.ports import Positions

T = TypeVar("T")
Look = tuple[Callable[[Queue], Awaitable[Any]], asyncio.Future[Any]]


def at_once(look: Callable[[Queue], T]) -> Callable[[Queue], Awaitable[T]]:
    """A look that needs no pieces, as one that could be made in pieces."""

    async def looking(queue: Queue) -> T:
        return look(queue)

    return looking


async def show(
    queue: Queue, look: Callable[[Queue], Awaitable[T]], future: asyncio.Future[T]
) -> None:
    """Gives the look's result, or its error, to the one who waits for it."""
    if future.done():
        return
    try:
        seen = await look(queue)
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(seen)


class ToldPositions:
    """Positions that came back with a commit, for those who are woken by it.

    Callers and watchers make their views in this round of the event loop, without reading the
    positions again. They are forgotten with the round: positions change without any commit.
    """

    def __init__(self) -> None:
        self._positions: Positions = {}

    def tell(self, positions: Positions) -> None:
        """After everyone was woken: they run before what forgets the positions."""
        self._positions = positions
        asyncio.get_running_loop().call_soon(self._forget)

    def of(self, numbers: Collection[int]) -> Positions | None:
        """The positions of these partitions; None if not all of them are known."""
        known = self._positions
        return known if all(number in known for number in numbers) else None

    def _forget(self) -> None:
        self._positions = {}
