"""Access to the logs of queues: credentials, and the end of them."""

from __future__ import annotations

from contextlib import suppress

from broker.calls.access import QueueAccess
from broker.calls.readers import LogReaders
from broker.calls.rendering import log_access, queue_view
from broker.core.access import Caller, Right
from broker.core.errors import Invalid, Unavailable
from broker.logs.names import builtin_name, parts_of
from broker.logs.ports import Holder, Logs, Purpose
from broker.replica.store_calls import store_available
from counterpoise import wire


class LogCalls:
    """The logs of queues, for those who read and publish."""

    def __init__(self, queues: QueueAccess, logs: Logs, readers: LogReaders) -> None:
        self._queues = queues
        self._logs = logs
        self._readers = readers

    async def access(
        self, name: str, purpose: Purpose, caller: Caller | None = None, *, refused: bool = False
    ) -> wire.LogView:
        """A queue's log, and credentials for it. Raises QueueNotFound, Invalid, Forbidden,
        Unavailable.

        The right on the queue must have been checked. Who reads a log of another queue was allowed
        to when the queue was made; who publishes to it must have that right there, too. `refused`:
        the log refused the caller's credentials.
        """
        if purpose == "publish":
            queue = await self.published(name, caller)
        else:
            queue = await self._queues.read(name, queue_view)
        flow_id, key_id = (None, None) if caller is None else (caller.flow_id, caller.key_id)
        holder = Holder.caller(queue.id, flow_id, key_id)
        return wire.LogView(
            log=queue.log,
            log_name=builtin_name(queue.log),
            partition_count=queue.partition_count,
            access=log_access(await self._logs.access(queue.log, purpose, holder, refused=refused)),
        )

    async def published(self, name: str, caller: Caller | None) -> wire.Queue:
        """The queue, to whose log the caller may publish; raises as `access`."""
        queue = await self._queues.read(name, queue_view)
        if len(parts_of(queue.log)) > 1:
            raise Invalid(
                f"The queue {name!r} reads the logs of several queues; publish to those: "
                f"{', '.join(part.partition(':')[2] for part in parts_of(queue.log))}."
            )
        if caller is not None:
            await self._readers.refuse_foreign(queue.log, name, caller, Right.PUBLISH)
        return queue

    async def end_credentials(self) -> None:
        """End the credentials of flows that have left. Raises Unavailable."""
        flows: dict[str, str] = {}
        for name in await self._logs.holders():
            flow_id = Holder.flow_id(name)
            if flow_id is not None:
                flows[flow_id] = name
        with store_available():
            bound = await self._queues.store.leases([*flows])
        gone = [name for flow_id, name in flows.items() if flow_id not in bound]
        if gone:
            await self._logs.revoke(holders=gone)

    async def end_credentials_of_keys(self) -> None:
        """End the credentials that were made with keys which have ended. Best effort."""
        with suppress(Unavailable):
            keys = await self._logs.keys_in_use()
            if not keys:
                return
            with store_available():
                valid = (await self._queues.store.keys.read(sorted(keys))).counting
            if ended := keys - set(valid):
                await self._logs.revoke(keys=ended)
