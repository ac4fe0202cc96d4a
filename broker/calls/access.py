"""Access of the calls to a queue by its name, and what the audit shows of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from broker.core.access import Caller
from broker.core.errors import QueueNotFound
from broker.core.queue import Queue
from broker.replica.coordinator import Coordinator
from broker.replica.replica import Replica
from broker.replica.transaction import Submission
from broker.store.ports import Act, Store

T = TypeVar("T")


class QueueAccess:
    """Access to queues by name, also after a queue was deleted and made again."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.store: Store = replica.store

    async def again(self, coordinator: Coordinator) -> Coordinator:
        """The queue that has this one's name by now, since this one is gone.

        Raises QueueNotFound, Unavailable.
        """
        name = coordinator.name
        self.replica.forget_name(name)
        again = await self.replica.coordinator(name)
        if again is coordinator:
            raise QueueNotFound(name)
        return again

    async def on(self, name: str, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The result of `work` on the queue of this name; repeated once if the name means another
        queue by now.

        Raises QueueNotFound, Unavailable, and the errors of `work`.
        """
        coordinator = await self.replica.coordinator(name)
        try:
            return await work(coordinator)
        except QueueNotFound:
            again = await self.again(coordinator)
        return await work(again)

    async def read(self, name: str, extract: Callable[[Queue], T], *, fresh: bool = True) -> T:
        """The result of `extract` on the queue.

        Raises QueueNotFound, Unavailable, and the errors of `extract`.
        """
        return await self.on(name, lambda coordinator: coordinator.read(extract, fresh=fresh))

    async def submit(self, name: str, make: Callable[[], Submission]) -> Any:
        """The answer of a command on a queue; `make` makes the command anew for each attempt.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self.on(name, lambda coordinator: coordinator.submit(make()))


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


def mention(names: Sequence[str], caller: Caller | None) -> str:
    """One of these queues, as an error speaks of it: by its name only if the caller may see it."""
    seen = (name for name in names if caller is None or caller.sees(name))
    return next((f"the queue {name!r}" for name in seen), "another queue")


def sentence(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[0].upper() + text[1:]


def act_on_flow(caller: Caller | None, call: str, queue: str, flow_id: str) -> Act | None:
    """The call on a flow for the audit; None if it is the flow's own."""
    by_flow = caller is None or caller.flow_id is not None
    return None if by_flow else act_of(caller, call, queue, flow_id)


def shown_flow(flow_id: str, queue: Queue) -> Mapping[str, Any] | None:
    """A flow in the audit; None if it is not bound."""
    flow = queue.flows.get(flow_id)
    if flow is None:
        return None
    return {
        "client_name": flow.client_name,
        "instance_id": flow.instance_id,
        "key_id": flow.key_id,
        "partitions": len(flow.owned),
        "draining": flow.draining,
    }
