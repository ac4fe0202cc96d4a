"""The way of the calls to a queue: by its name, into the mailbox of this replica, and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from broker.coordinator import UNAVAILABLE, Coordinator
from broker.core.errors import QueueNotFound, Unavailable
from broker.core.queue import Queue
from broker.replica import Replica
from broker.store.ports import Store, StoreUnavailable
from broker.turns import Ask

T = TypeVar("T")


class QueueAccess:
    """Access to queues by name, also after a queue was deleted and its name used again."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.store: Store = replica.store

    async def on(self, name: str, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """What `work` makes of the queue of this name; once more if the name means another queue
        by now.

        Raises QueueNotFound, Unavailable, and what `work` raises.
        """
        coordinator = await self.replica.coordinator(name)
        try:
            return await work(coordinator)
        except QueueNotFound:
            self.replica.forget_name(name)
            again = await self.replica.coordinator(name)
            if again is coordinator:
                raise
        return await work(again)

    async def read(self, name: str, look: Callable[[Queue], T], *, fresh: bool = True) -> T:
        """What `look` makes of the queue.

        Raises QueueNotFound, Unavailable, and what `look` raises.
        """
        return await self.on(name, lambda coordinator: coordinator.read(look, fresh=fresh))

    async def ask(self, name: str, make: Callable[[], Ask]) -> Any:
        """The answer of a command on a queue; `make` makes it, each time anew.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self.on(name, lambda coordinator: coordinator.ask(make()))


@contextmanager
def store_available() -> Iterator[None]:
    """For calls of the store: raises Unavailable where the store cannot be reached."""
    try:
        yield
    except StoreUnavailable:
        raise Unavailable(UNAVAILABLE) from None
