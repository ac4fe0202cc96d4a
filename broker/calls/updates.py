"""How a flow follows its view: poll, stream, heartbeat.

A view is read from the queue in memory, its positions from the store: a position goes with an
epoch, and a view is told only if both are of the same epoch. Renewals and positions go out in
batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from functools import partial
from typing import TypeVar

from broker.batches import Batcher
from broker.calls import views
from broker.calls.access import Calls
from broker.calls.rendering import Positions, needed_positions, update_view
from broker.coordinator import UNAVAILABLE, Coordinator
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    QueueNotFound,
    Unavailable,
)
from broker.core.queue import Queue
from broker.logs.ports import Logs
from broker.patience import pauses
from broker.replica import Replica
from broker.store.ports import FlowRow, Lease, StoreUnavailable

T = TypeVar("T")

# Views of more partitions are made one at a time: each keeps the processor busy for long, and
# between two of them everybody else has his turn.
BIG_VIEW = 1000


class Held(Enum):
    """Instead of an answer: somebody else holds the rows, ask again."""

    HELD = "held"


class FlowViews(Calls):
    """The part of the facade through which a flow learns what it owns."""

    def __init__(self, replica: Replica, logs: Logs) -> None:
        super().__init__(replica, logs)
        self._tokens: dict[str, tuple[str, bytes]] = {}
        self._one_big_view = asyncio.Lock()
        self._renewals: Batcher[str, Lease | Held | None] = Batcher(self._renew_many)
        self._positions: Batcher[tuple[str, Sequence[int]], dict[int, tuple[int, str | None]]] = (
            Batcher(self._positions_of_many)
        )

    async def update(self, name: str, flow_id: str) -> views.UpdateView:
        """The flow's current view. Raises FlowGone, FlowNotFound."""
        return await self._on(
            name, lambda coordinator: self._view(coordinator, flow_id, fresh=True)
        )

    async def heartbeat(self, name: str, flow_id: str) -> views.HeartbeatView:
        """Renews the lease. Raises FlowGone, FlowNotFound."""
        lease = await self._renew(name, flow_id)
        return views.HeartbeatView(lease.expires_at, lease.view_revision)

    async def wait_update(
        self, name: str, flow_id: str, after: int, wait_seconds: float
    ) -> views.UpdateView | None:
        """Renews the lease; the flow's view as soon as its revision is above `after`, None if it
        does not get there.

        Waits `wait_seconds` at the most, and at the most half the lease.
        """
        lease = await self._renew(name, flow_id)

        async def work(coordinator: Coordinator) -> views.UpdateView | None:
            with self._replica.watching(coordinator.queue_id, flow_id) as changed:
                view = await self._newer(coordinator, flow_id, after, lease.view_revision)
                if view is not None or wait_seconds <= 0:
                    return view
                half = await self._lease_seconds(coordinator, flow_id) / 2
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(wait_seconds, half)):
                        await changed.wait()
                        while not self._replica.stopping:
                            changed.clear()
                            view = await self._newer(coordinator, flow_id, after)
                            if view is not None:
                                break
                            await changed.wait()
                return view

        return await self._on(name, work)

    async def watch(self, name: str, flow_id: str, after: int) -> AsyncIterator[views.UpdateView]:
        """The flow's view each time it has changed; changes while nobody asks are one.

        Does not renew. Ends by raising FlowGone or QueueNotFound, and silently when the service
        stops.
        """
        row = await self._row(flow_id)
        if row is None:
            raise await self._missing(name, flow_id)
        coordinator = await self._of_queue(name, flow_id, row.queue_id)
        with self._replica.watching(coordinator.queue_id, flow_id) as changed:
            view = await self._newer(coordinator, flow_id, after, fresh=True)
            while not self._replica.stopping:
                if view is not None:
                    after = view.revision
                    yield view
                await changed.wait()
                changed.clear()
                if not self._replica.stopping:
                    view = await self._newer(coordinator, flow_id, after)

    # Views

    async def _newer(
        self,
        coordinator: Coordinator,
        flow_id: str,
        after: int,
        at_least: int = 0,
        fresh: bool = False,
    ) -> views.UpdateView | None:
        """The view if its revision is above `after`; `at_least`: the store has this revision, so be
        no older.
        """

        def revision(queue: Queue) -> int | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else flow.view_revision

        found = await coordinator.read(revision, fresh=fresh)
        if not fresh and (found is None or found < at_least):
            found = await coordinator.read(revision, fresh=True)
        if found is not None and found <= after:
            return None
        return await self._view(coordinator, flow_id)

    async def _view(
        self, coordinator: Coordinator, flow_id: str, *, fresh: bool = False
    ) -> views.UpdateView:
        """The flow's view with the positions that belong to it."""

        def needed(queue: Queue) -> list[int] | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else needed_positions(flow)

        numbers = await coordinator.read(needed, fresh=fresh)
        async with self._one_big_view if len(numbers or ()) > BIG_VIEW else nullcontext():
            while True:
                positions: Positions = {}
                if numbers:
                    positions = await self._positions_of(coordinator.queue_id, numbers)
                view = await coordinator.read(partial(self._made, flow_id, positions), fresh=fresh)
                if view is not None:
                    return view
                # What changed meanwhile, or what this replica has not heard of yet.
                fresh = True
                numbers = await coordinator.read(needed, fresh=True)
                if numbers is None:
                    raise await self._missing(coordinator.name, flow_id)

    def _made(self, flow_id: str, positions: Positions, queue: Queue) -> views.UpdateView | None:
        """The flow's view; None without the flow or a position of the epoch of each partition."""
        flow = queue.flows.get(flow_id)
        if flow is None:
            return None
        view = update_view(queue, flow, positions, self._replica.clock.now())
        agree = all(
            positions.get(seen.partition, (None, None))[0] == seen.epoch for seen in view.partitions
        )
        return view if agree else None

    async def _of_queue(self, name: str, flow_id: str, queue_id: str) -> Coordinator:
        """The coordinator of the queue of this name, which must be the flow's.

        Raises FlowNotFound.
        """
        coordinator = await self._replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            # Or is the name used again, and this replica has not heard of it?
            self._replica.forget_name(name)
            coordinator = await self._replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            raise FlowNotFound(flow_id)
        return coordinator

    async def _lease_seconds(self, coordinator: Coordinator, flow_id: str) -> float:
        def look(queue: Queue) -> float | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else flow.lease_seconds

        found = await coordinator.read(look)
        if found is None:
            raise await self._missing(coordinator.name, flow_id)
        return found

    # Rows

    async def _renew(self, name: str, flow_id: str) -> Lease:
        lease = await self._until_free(flow_id, lambda: self._renewals.ask(flow_id))
        if lease is None:
            raise await self._missing(name, flow_id)
        return lease

    async def _renew_many(self, flow_ids: Sequence[str]) -> Sequence[Lease | Held | None]:
        leases = await self._store.renew(sorted(set(flow_ids)))
        return [
            (leases[flow_id] or Held.HELD) if flow_id in leases else None for flow_id in flow_ids
        ]

    async def _until_free(self, flow_id: str, ask: Callable[[], Awaitable[T | Held]]) -> T:
        """The answer of `ask`, by which this flow renews its lease, once nobody holds its rows.

        Meanwhile the flow is not taken for dead here. Raises Unavailable.
        """
        try:
            with self._replica.renewing(flow_id):
                for pause in pauses():
                    answer = await ask()
                    if not isinstance(answer, Held):
                        return answer
                    await asyncio.sleep(pause)
        except StoreUnavailable:
            pass
        raise Unavailable(UNAVAILABLE)

    async def _positions_of(
        self, queue_id: str, numbers: Sequence[int]
    ) -> dict[int, tuple[int, str | None]]:
        return await self._positions.ask((queue_id, numbers))

    async def _positions_of_many(
        self, asked: Sequence[tuple[str, Sequence[int]]]
    ) -> Sequence[dict[int, tuple[int, str | None]]]:
        wanted: dict[str, set[int]] = {}
        for queue_id, numbers in asked:
            wanted.setdefault(queue_id, set()).update(numbers)
        try:
            found = {
                queue_id: await self._store.positions(queue_id, sorted(numbers))
                for queue_id, numbers in wanted.items()
            }
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        return [
            {number: found[queue_id][number] for number in numbers if number in found[queue_id]}
            for queue_id, numbers in asked
        ]

    async def _row(self, flow_id: str) -> FlowRow | None:
        try:
            return await self._store.flow(flow_id)
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None

    async def _missing(self, name: str, flow_id: str) -> Exception:
        """Why a flow that was asked for is not bound: the error to raise."""
        self._tokens.pop(flow_id, None)
        row = await self._row(flow_id)
        try:
            if row is None:
                # Deleted with its queue?
                self._replica.forget_name(name)
                await self._replica.coordinator(name)
            elif row.reason is not None and await self._is_of(name, row):
                return FlowGone(flow_id, row.reason)
        except QueueNotFound as error:
            return error
        return FlowNotFound(flow_id)

    async def _is_of(self, name: str, row: FlowRow) -> bool:
        """Whether the flow is or was bound to the queue of this name. Raises QueueNotFound."""
        try:
            await self._of_queue(name, row.flow_id, row.queue_id)
        except FlowNotFound:
            return False
        return True
