"""What the calls of queues and of flows have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.coordinator import Coordinator
from broker.core.errors import QueueNotFound
from broker.core.queue import Queue
from broker.logs.ports import Logs
from broker.replica import Replica
from broker.store.ports import Store
from broker.turns import Ask

T = TypeVar("T")


class Calls:
    """Access to queues by name, also after a queue was deleted and its name used again."""

    def __init__(self, replica: Replica, logs: Logs) -> None:
        self._replica = replica
        self._logs = logs
        self._store: Store = replica.store

    async def _on(self, name: str, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """What `work` makes of the queue of this name; once more if the name means another queue
        by now.

        Raises QueueNotFound, Unavailable, and what `work` raises.
        """
        coordinator = await self._replica.coordinator(name)
        try:
            return await work(coordinator)
        except QueueNotFound:
            self._replica.forget_name(name)
            again = await self._replica.coordinator(name)
            if again is coordinator:
                raise
        return await work(again)

    async def _read(self, name: str, look: Callable[[Queue], T], *, fresh: bool = True) -> T:
        """What `look` makes of the queue.

        Raises QueueNotFound, Unavailable, and what `look` raises.
        """
        return await self._on(name, lambda coordinator: coordinator.read(look, fresh=fresh))

    async def _ask(self, name: str, make: Callable[[], Ask]) -> Any:
        """The answer of a command on a queue; `make` makes it, each time anew.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self._on(name, lambda coordinator: coordinator.ask(make()))
