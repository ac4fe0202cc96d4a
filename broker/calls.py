"""What the calls of queues and of flows have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.coordinator import Ask, Coordinator
from broker.core.errors import QueueNotFound
from broker.core.model import Queue
from broker.loghouse import Loghouse
from broker.replica import Replica
from broker.store.ports import Store

T = TypeVar("T")


class Calls:
    """Access to queues by name, also after a queue was deleted and its name used again."""

    def __init__(self, replica: Replica, loghouse: Loghouse) -> None:
        self._replica = replica
        self._loghouse = loghouse
        self._store: Store = replica.store

    async def _read(self, name: str, look: Callable[[Queue], T], *, fresh: bool = True) -> T:
        """What `look` makes of the queue.

        Raises QueueNotFound, Unavailable, and what `look` raises.
        """
        coordinator = await self._replica.coordinator(name)
        try:
            return await coordinator.read(look, fresh=fresh)
        except QueueNotFound:
            self._replica.forget(name)
        return await (await self._replica.coordinator(name)).read(look, fresh=fresh)

    async def _ask(self, name: str, ask: Ask) -> object:
        """The answer of a command on a queue.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        coordinator = await self._replica.coordinator(name)
        return await self._ask_of(coordinator, ask)

    async def _ask_of(self, coordinator: Coordinator, ask: Ask) -> object:
        try:
            answer: object = await coordinator.ask(ask)
            return answer
        except QueueNotFound:
            self._replica.forget(coordinator.name)
            raise
