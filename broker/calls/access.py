"""Access of the calls to a queue by name: its mailbox in this replica, and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.core.access import Caller
from broker.core.errors import QueueNotFound
from broker.core.state.queue import Queue
from broker.mailbox.coordinator import Coordinator
from broker.mailbox.replica import Replica
from broker.mailbox.turns import Ask
from broker.store.key_ports import Act
from broker.store.ports import Store

T = TypeVar("T")


def act_of(caller: Caller | None, call: str, queue: str, flow_id: str | None = None) -> Act | None:
    """An administrative call for the audit; None for what the service does by itself."""
    if caller is None:
        return None
    return Act(
        call,
        queue,
        flow_id,
        key_id=caller.key_id,
        key_name=caller.key_name,
        address=caller.address,
    )


class QueueAccess:
    """Access to queues by name, also after a queue was deleted and made again."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.store: Store = replica.store

    async def on(self, name: str, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The result of `work` on the queue of this name; repeated once if the name means another
        queue by now.

        Raises QueueNotFound, Unavailable, and the errors of `work`.
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
        """The result of `look` on the queue.

        Raises QueueNotFound, Unavailable, and the errors of `look`.
        """
        return await self.on(name, lambda coordinator: coordinator.read(look, fresh=fresh))

    async def ask(self, name: str, make: Callable[[], Ask]) -> Any:
        """The answer of a command on a queue; `make` makes the command anew for each attempt.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self.on(name, lambda coordinator: coordinator.ask(make()))
