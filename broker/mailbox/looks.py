"""Looks at a queue, between two turns of its mailbox.

A look at very much is made in pieces (`broker.pieces`). The mailbox waits for its end, so what it
sees is of one revision, and other queues go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.core.state.queue import Queue

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
