"""The calls that pin and unpin (`broker.core.pins`)."""

from __future__ import annotations

from msgspec import to_builtins

from broker.calls.access import QueueAccess, act_of
from broker.calls.rendering import pins_view
from broker.core import commands as c
from broker.core.access import Caller
from broker.core.queue import Queue
from broker.replica.transaction import Submission
from counterpoise import wire


class PinCalls:
    """At which consumers administrators want partitions."""

    def __init__(self, queues: QueueAccess) -> None:
        self._queues = queues

    async def pin(
        self,
        name: str,
        partition: int,
        client_name: str,
        *,
        reason: str | None = None,
        caller: Caller | None = None,
    ) -> wire.PinnedQueue:
        """Pins a partition. Raises QueueNotFound; Invalid for a partition that nobody reads."""
        command = c.PinPartition(partition, client_name, reason)
        return await self._submit(name, command, "pin_partition", caller)

    async def unpin(
        self, name: str, partition: int, caller: Caller | None = None
    ) -> wire.PinnedQueue:
        """Ends the pin of a partition. Raises as `pin`."""
        return await self._submit(name, c.UnpinPartition(partition), "unpin_partition", caller)

    async def _submit(
        self,
        name: str,
        command: c.PinPartition | c.UnpinPartition,
        call: str,
        caller: Caller | None,
    ) -> wire.PinnedQueue:
        act = act_of(caller, call, name)

        def shown(queue: Queue) -> dict[str, object]:
            return {"partition": command.partition, **to_builtins(pins_view(queue))}

        await self._queues.submit(name, lambda: Submission(command, act=act, shown=shown))
        return await self._queues.read(name, pins_view)
