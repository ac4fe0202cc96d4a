"""The calls that pin and unpin (`broker.core.pins`)."""

from __future__ import annotations

from msgspec import to_builtins

from broker.calls.access import QueueAccess, act_of
from broker.calls.previews import PreviewCalls
from broker.calls.rendering import pins_view
from broker.core import commands as c
from broker.core.access import Caller
from broker.core.queue import Queue
from broker.replica.transaction import Submission
from counterpoise import wire


class PinCalls:
    """At which consumers administrators want partitions."""

    def __init__(self, queues: QueueAccess, previews: PreviewCalls) -> None:
        self._queues = queues
        self._previews = previews

    async def pin(
        self,
        name: str,
        partition: int,
        client_name: str,
        *,
        reason: str | None = None,
        caller: Caller | None = None,
        dry_run: bool = False,
    ) -> wire.PinnedQueue | wire.Preview:
        """Pins a partition. Raises QueueNotFound; Invalid for a partition that nobody reads.

        `dry_run`: changes nothing, and says what would move.
        """
        command = c.PinPartition(partition, client_name, reason)
        return await self._submit(name, command, "pin_partition", caller, dry_run)

    async def unpin(
        self,
        name: str,
        partition: int,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.PinnedQueue | wire.Preview:
        """Ends the pin of a partition. Raises as `pin`."""
        command = c.UnpinPartition(partition)
        return await self._submit(name, command, "unpin_partition", caller, dry_run)

    async def _submit(
        self,
        name: str,
        command: c.PinPartition | c.UnpinPartition,
        call: str,
        caller: Caller | None,
        dry_run: bool,
    ) -> wire.PinnedQueue | wire.Preview:
        if dry_run:
            return await self._previews.of(name, command)
        act = act_of(caller, call, name)

        def shown(queue: Queue) -> dict[str, object]:
            return {"partition": command.partition, **to_builtins(pins_view(queue))}

        await self._queues.submit(name, lambda: Submission(command, act=act, shown=shown))
        return await self._queues.read(name, pins_view)
