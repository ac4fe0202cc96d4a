"""The calls that pause and resume (`broker.core.pauses`)."""

from __future__ import annotations

from msgspec import to_builtins

from broker.calls.access import QueueAccess, act_of
from broker.calls.previews import PreviewCalls
from broker.calls.rendering import pauses_view
from broker.core import commands as c
from broker.core.access import Caller
from broker.core.queue import Queue
from broker.replica.transaction import Submission
from counterpoise import wire


class PauseCalls:
    """What administrators hold still."""

    def __init__(self, queues: QueueAccess, previews: PreviewCalls) -> None:
        self._queues = queues
        self._previews = previews

    async def pause(
        self,
        name: str,
        partition: int | None,
        *,
        until: float | None = None,
        seconds: float | None = None,
        reason: str | None = None,
        caller: Caller | None = None,
        dry_run: bool = False,
    ) -> wire.PausedQueue | wire.Preview:
        """Pauses a partition, None: the queue; `c.PausePartitions` says how long.

        `dry_run`: changes nothing, and says which partitions would be held still.

        Raises QueueNotFound; Invalid for a partition that nobody reads, and a time that is over.
        """
        which = () if partition is None else (partition,)
        return await self._submit(
            name, c.PausePartitions(which, until, seconds, reason), "pause", caller, dry_run
        )

    async def resume(
        self,
        name: str,
        partition: int | None,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.PausedQueue | wire.Preview:
        """Ends the pause of a partition, None: the queue's own. Raises as `pause`."""
        which = () if partition is None else (partition,)
        return await self._submit(name, c.ResumePartitions(which), "resume", caller, dry_run)

    async def _submit(
        self,
        name: str,
        command: c.PausePartitions | c.ResumePartitions,
        verb: str,
        caller: Caller | None,
        dry_run: bool,
    ) -> wire.PausedQueue | wire.Preview:
        if dry_run:
            return await self._previews.of(name, command)
        act = act_of(caller, f"{verb}_{'partition' if command.partitions else 'queue'}", name)

        def shown(queue: Queue) -> dict[str, object]:
            return {"partitions": list(command.partitions), **to_builtins(pauses_view(queue))}

        await self._queues.submit(name, lambda: Submission(command, act=act, shown=shown))
        return await self._queues.read(name, pauses_view)
