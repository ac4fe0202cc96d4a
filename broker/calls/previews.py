"""Previews: what a call would do, without doing it (theory: docs/previews.md).

A preview plays the call on a copy of its queue that is loaded for it (`broker.core.previews`). So
it commits nothing, has no revision and wakes nobody. It is no act, and so not in the audit.

Previews of this replica are made one after the other: each may take as much as a rebalance of the
largest queue, and no caller gets more of the processor by asking for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import structs

from broker.calls.access import QueueAccess
from broker.calls.rendering import own_conditions, row_of
from broker.calls.times import time_of
from broker.core import commands as c
from broker.core.errors import QueueNotFound
from broker.core.previews import Foreseen, Thought
from broker.core.queue import Queue
from broker.logs.ports import Logs
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.store.ports import QueueGone
from counterpoise import wire


class PreviewCalls:
    """What calls would do."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._queues = queues
        self._logs = logs
        self._turn = asyncio.Semaphore(1)

    async def of(
        self, name: str, command: c.Command | None, *, followers: Sequence[str] = ()
    ) -> wire.Preview:
        """What the command would do; None: nothing. `followers`: the queues that would follow.

        Raises QueueNotFound, QueueUnreadable, Unavailable, and what the command raises.
        """
        return (await self.with_answer(name, command, followers))[0]

    async def with_answer(
        self, name: str, command: c.Command | None, followers: Sequence[str] = ()
    ) -> tuple[wire.Preview, Any]:
        """As `of`, and what the command would answer."""

        async def work(coordinator: Coordinator) -> tuple[wire.Preview, Any]:
            async with self._turn:
                queue = await self._copy(coordinator)
                clients = {flow.id: flow.client_name for flow in queue.flows.values()}
                before, revision = own_conditions(row_of(queue)), queue.revision
                thought = Thought(queue, self._queues.replica.clock.now())
                for _ in thought.play(() if command is None else (command,)):
                    await asyncio.sleep(0)
            after = own_conditions(row_of(queue))
            lost = await self._unread(queue, thought.preview.removed)
            view = _view(queue, revision, thought.preview, clients, lost)
            arise = {kind: count for kind, count in after.items() if before.get(kind) != count}
            return structs.replace(view, conditions=arise, followers=(*followers,)), thought.answer

        return await self._queues.on(name, work)

    async def of_deletion(self, name: str, *, deletes_log: bool) -> tuple[wire.Preview, int]:
        """What it would mean if the queue were deleted, and how many flows are bound to it.

        Raises QueueNotFound, QueueUnreadable, Unavailable.
        """

        async def work(coordinator: Coordinator) -> tuple[wire.Preview, int]:
            queue = await self._copy(coordinator)
            existing = [*queue.existing()]
            flows = sorted(queue.flows.values(), key=lambda flow: flow.bind_number)
            found = Foreseen(
                removed=tuple(one.number for one in existing),
                interrupted=tuple(one.number for one in existing if one.owner is not None),
                flows={flow.id: (len(flow.owned), None) for flow in flows},
            )
            lost = await self._unread(queue, found.removed) if deletes_log else 0
            clients = {flow.id: flow.client_name for flow in flows}
            view = _view(queue, queue.revision, found, clients, lost)
            return structs.replace(view, deletes_log=deletes_log), len(flows)

        return await self._queues.on(name, work)

    async def _copy(self, coordinator: Coordinator) -> Queue:
        """The queue as committed, which nobody else has."""
        # Raises what any other call on the queue raises.
        await coordinator.read(lambda queue: queue.revision, fresh=True)
        try:
            with store_available():
                return await self._queues.store.load(coordinator.queue_id)
        except QueueGone:
            raise QueueNotFound(coordinator.name) from None

    async def _unread(self, queue: Queue, numbers: Collection[int]) -> int | None:
        """How many messages of these partitions are not processed; None: their log does not say."""
        if not numbers:
            return 0
        with store_available():
            stored = await self._queues.store.positions(queue.id, [*numbers])
        positions = {n: stored[n].position if n in stored else None for n in numbers}
        spans = await self._logs.spans(queue.settings.log, positions)
        lags = [span.lag if (span := spans.get(n)) is not None else None for n in numbers]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None


def _view(
    queue: Queue, revision: int, found: Foreseen, clients: Mapping[str, str], lost: int | None
) -> wire.Preview:
    """A preview as it is shown."""
    return wire.Preview(
        queue=queue.name,
        revision=revision,
        moves=tuple(wire.PreviewedMove(*one) for one in found.moves),
        added=found.added,
        retiring=found.retiring,
        removed=found.removed,
        unassigned=found.unassigned,
        staying=found.staying,
        interrupted=found.interrupted,
        paused=found.paused,
        resumed=found.resumed,
        pinned=found.pinned,
        unpinned=found.unpinned,
        flows=tuple(
            wire.PreviewedFlow(id, clients[id], *counts) for id, counts in found.flows.items()
        ),
        settings=tuple(wire.PreviewedSetting(n, *values) for n, values in found.settings.items()),
        conditions={},
        holddown_until=time_of(found.holddown_until),
        lost_messages=lost,
        deletes_log=False,
        followers=(),
    )
