"""Calls of the store: one for many, and again while rows are locked or the store is away.

**One call for many** (`Batcher`). Requests that arrive while a call is under way wait and go out
together in the next one: the busier the service, the larger the batches, without any delay when it
is idle.

**No call waits for a lock.** Renewals and commits of positions wait for no lock
(`broker.store.ports`): they go out together for many queues, and one queue whose rows a frozen
replica holds must not hold up the others. So each item that was left out is sent again by itself,
soon at first and then more rarely, without keeping a connection meanwhile (`pauses`).

If the store cannot be reached, callers get `Unavailable` (`store_available`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from broker.core.commands import Outcome
from broker.core.errors import Unavailable
from broker.store.ports import PositionCommit, Store, StoreUnavailable
from counterpoise.backoff import Backoff, Pauses

T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")
# What callers read.
UNAVAILABLE = "The service cannot reach its database right now; try again."
RETRY = Backoff(first_seconds=0.01, longest_seconds=0.2)
LOCKED_SECONDS = 10.0


class Awaiter(Protocol):
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

    def put(self, item: Item) -> asyncio.Future[Answer]:
        """The answer for `item`; raises what the call raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return future

    async def finish(self) -> None:
        """Waits for the calls under way, and for those that wait for them."""
        if self._task is not None:
            await asyncio.wait([self._task])

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


@contextmanager
def store_available() -> Iterator[None]:
    """For calls of the store: raises Unavailable if the store cannot be reached."""
    try:
        yield
    except StoreUnavailable:
        raise Unavailable(UNAVAILABLE) from None


def pauses() -> Iterator[float]:
    """Seconds to sleep after each attempt that found the rows held.

    Raises StoreUnavailable after `LOCKED_SECONDS`.
    """
    clock = asyncio.get_running_loop().time
    until, pausing = clock() + LOCKED_SECONDS, Pauses(RETRY)
    while clock() < until:
        yield pausing.failed()
    raise StoreUnavailable("another transaction holds what was to be written")


async def renew(store: Store, flow_ids: Sequence[str]) -> None:
    """Renews leases, again for those whose rows are held. Raises StoreUnavailable."""
    if not flow_ids:
        return
    for pause in pauses():
        leases = await store.renew(flow_ids)
        flow_ids = [flow_id for flow_id, lease in leases.items() if lease is None]
        if not flow_ids:
            return
        await asyncio.sleep(pause)


async def write(store: Store, items: Sequence[PositionCommit]) -> bool:
    """Commits positions, again those whose rows are held. Raises StoreUnavailable.

    False if one is refused: somebody has decided meanwhile.
    """
    if not items:
        return True
    for pause in pauses():
        results, *_ = await store.commit_positions(items)
        if any(one is not None and one.outcome is not Outcome.OK for one in results):
            return False
        items = [item for item, one in zip(items, results, strict=True) if one is None]
        if not items:
            return True
        await asyncio.sleep(pause)
    return False
