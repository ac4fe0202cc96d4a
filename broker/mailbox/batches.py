"""One call for many.

Requests that arrive while a call is under way wait and go out together in the next one: the busier
the service, the larger the batches, without any delay when it is idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Asked(Protocol):
    """Awaits a call, perhaps with a limit."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> Awaitable[T]: ...


async def answered(call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call without a limit."""
    return await call


class Batcher(Generic[Item, Answer]):
    """Collects items and passes them to `call`, which answers with one answer per item, in
    order.
    """

    def __init__(
        self, call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], most: int = 1000
    ) -> None:
        self._call = call
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """The answer for `item`; raises what the call raised."""
        return await self.put(item)

    def put(self, item: Item) -> asyncio.Future[Answer]:
        """As `ask`, for several before they are awaited."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                answers = await self._call([item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        self._task = None
