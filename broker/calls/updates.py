"""The view of a flow: the current one, the next one (long poll), or a stream of all.

A view is read from the queue in memory, its positions from the store. A position belongs to an
epoch, and a view is returned only if both have the same epoch. Positions are read in batches.

**A long poll renews the lease, and is answered only after that**: a client counts its lease from
when it sent the poll. A flow whose view in memory is not newer than what it has will wait, so it
begins to wait at once, and its renewal is gathered with those of others (`renewals`). Who waits is
woken only if the renewal found something: the flow is gone, the store knows a newer view (another
replica has changed it), or the store failed. If the poll is to be answered before, because the view
has changed or the time is over, the renewal goes out at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

from broker.calls import views
from broker.calls.access import FlowRows, QueueAccess
from broker.calls.rendering import needed_positions, partitions_in_update, update_view
from broker.core.errors import QueueNotFound
from broker.core.model import Flow
from broker.core.queue import Queue
from broker.pieces import pieces
from broker.replica.clock import StoreClock
from broker.replica.coordinator import Coordinator
from broker.replica.notifier import Watch
from broker.replica.replica import Replica
from broker.replica.store_calls import Awaiter, Batcher, answered, store_available
from broker.store.ports import Positions

# Views of more partitions are made in pieces, and one view at a time: each keeps the processor busy
# for long. A partition of a view takes a microsecond or two, less than other items of a piece.
BIG_VIEW = 1000
NOT_RENEWED = "the lease is not renewed yet"


class LongPoll:
    """A flow that waits for its next view, as long as this is entered (`with`)."""

    __slots__ = (
        "_is_awaited",
        "_replica",
        "_until",
        "_watch",
        "after",
        "coordinator",
        "flow_id",
        "is_renewing",
        "renewed",
    )

    def __init__(
        self,
        replica: Replica,
        coordinator: Coordinator,
        flow_id: str,
        after: int,
        seconds: float,
        renewed: int | None = None,
    ) -> None:
        """It waits at most so many seconds from now on. `renewed`: if its lease is renewed already,
        what that has told.
        """
        self._replica = replica
        self._watch: Watch | None = None
        self._until = asyncio.get_running_loop().time() + seconds
        self._is_awaited = False
        # While it is under way `renewed` means nothing.
        self.is_renewing = renewed is None
        self.renewed: int | Exception | None = renewed
        self.coordinator = coordinator
        self.flow_id = flow_id
        self.after = after

    def __enter__(self) -> Self:
        self._watch = self.coordinator.notifier.watch(self.flow_id, self._look)
        # The view may have changed since it was looked at.
        self.coordinator.notifier.begins(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._watch is not None
        self.coordinator.notifier.unwatch(self.flow_id, self._watch)

    @property
    def stops(self) -> bool:
        """Whether the service stops: then nobody waits any more."""
        return self._replica.stopping

    @property
    def at_least(self) -> int:
        """The revision of the view in the store, as far as the renewal has told."""
        return self.renewed if isinstance(self.renewed, int) else 0

    @property
    def is_same(self) -> bool:
        """Whether the view is surely the one that the flow has."""
        queue = self.coordinator.at_hand
        flow = None if queue is None else queue.flows.get(self.flow_id)
        return flow is not None and max(flow.view_revision, self.at_least) <= self.after

    def _look(self) -> views.UpdateView | None:
        """The changed view, with the positions that came back with the commit; None if somebody has
        to be asked, or nothing has changed.
        """
        queue = self.coordinator.at_hand
        flow = None if queue is None else queue.flows.get(self.flow_id)
        if queue is None or flow is None or flow.view_revision <= self.after:
            return None
        numbers = needed_positions(flow)
        positions = self.coordinator.notifier.of(numbers) if len(numbers) <= BIG_VIEW else None
        return None if positions is None else _made(flow.id, positions, self._replica.clock, queue)

    @property
    def seen(self) -> views.UpdateView | None:
        """The changed view, if it was made when the flow was told."""
        return None if self._watch is None else self._watch.seen

    def changes(self) -> Coroutine[Any, Any, bool]:
        """True as soon as the view may have changed, or the renewal is not as it should be; False
        if the time is over.
        """
        assert self._watch is not None
        return self._watch.wait(self._until - asyncio.get_running_loop().time())

    # The renewal

    def renews(self, renewed: int | Exception | None) -> None:
        """The renewal is answered, or has failed. Usually nobody has to know."""
        self.renewed, self.is_renewing = renewed, False
        is_fine = isinstance(renewed, int) and renewed <= self.after
        if self._watch is not None and (self._is_awaited or not is_fine):
            self._watch.set()

    @property
    def has_failed(self) -> bool:
        """Whether the flow is gone, or the renewal has failed."""
        return not self.is_renewing and not isinstance(self.renewed, int)

    async def answer(self) -> None:
        """Returns when the renewal is answered, or has failed."""
        assert self._watch is not None
        self._is_awaited = True
        while self.is_renewing:
            await self._watch.wait()


class UpdateCalls:
    """The views of flows, on request and as soon as they change."""

    def __init__(self, queues: QueueAccess, rows: FlowRows) -> None:
        self._queues = queues
        self._rows = rows
        self.knows = rows.knows
        self._one_big_view = asyncio.Lock()
        self._positions: Batcher[tuple[str, Sequence[int]], Positions] = Batcher(
            self._positions_of_many
        )

    async def get(self, name: str, flow_id: str) -> views.UpdateView:
        """The flow's current view. Raises FlowGone, FlowNotFound."""
        return await self._queues.on(
            name, lambda coordinator: self.view(coordinator, flow_id, fresh=True)
        )

    async def wait(
        self, name: str, flow_id: str, after: int, wait_seconds: float, *, asked: Awaiter = answered
    ) -> views.UpdateView | None:
        """Renews the lease; the flow's view as soon as its revision is above `after`, else None.

        Waits at most `wait_seconds`, and at most half the lease. `asked` awaits what may ask the
        database; the wait itself keeps little, because thousands of flows wait at once. Cancelled
        before the lease is renewed, it raises CancelledError with `NOT_RENEWED`.
        """
        found: views.UpdateView | LongPoll | None
        found = self._waits(name, flow_id, after, wait_seconds, asked)
        try:
            if found is None:
                found = await asked(self.begin(name, flow_id, after, wait_seconds))
            if not isinstance(found, LongPoll):
                return found
            view = None
            with found as waiting:
                while view is None and await waiting.changes() and not waiting.stops:
                    if waiting.has_failed:
                        break
                    view = waiting.seen
                    if view is None and not waiting.is_same:
                        view = await asked(self.of(waiting))
                if waiting.is_renewing:
                    self._queues.replica.renewals.hurry()
                    await waiting.answer()
            if isinstance(waiting.renewed, Exception):
                raise waiting.renewed
            if waiting.renewed is None:
                raise await asked(self._rows.missing(name, flow_id))
            return view
        except asyncio.CancelledError:
            if isinstance(found, LongPoll) and isinstance(found.renewed, int):
                raise
            raise asyncio.CancelledError(NOT_RENEWED) from None

    def hurry(self) -> None:
        """Renews now what waits for other renewals to go out with."""
        self._queues.replica.renewals.hurry()

    def _waits(
        self, name: str, flow_id: str, after: int, wait_seconds: float, asked: Awaiter
    ) -> LongPoll | None:
        """What a flow waits with whose view is surely the one that it has, or is told with the
        commit under way; its renewal is under way. None if neither is sure.
        """
        if (coordinator := self._queues.replica.known(name)) is None:
            return None
        is_ahead = coordinator.notifier.is_committing
        queue = coordinator.queue if is_ahead else coordinator.at_hand
        flow = None if queue is None else queue.flows.get(flow_id)
        if flow is None or wait_seconds <= 0 or (flow.view_revision > after and not is_ahead):
            return None
        lease_seconds = flow.lease_seconds
        seconds = min(wait_seconds, lease_seconds / 2)
        waiting = LongPoll(self._queues.replica, coordinator, flow_id, after, seconds)
        self._queues.replica.renewals.soon(flow_id, lease_seconds, waiting.renews, asked)
        return waiting

    async def begin(
        self, name: str, flow_id: str, after: int, wait_seconds: float
    ) -> views.UpdateView | LongPoll | None:
        """The first step of `wait` if it is not sure that the flow waits: its result, or what it
        waits with.
        """
        lease = await self._rows.renew(name, flow_id)

        async def work(coordinator: Coordinator) -> views.UpdateView | LongPoll | None:
            view = await self._newer(coordinator, flow_id, after, lease.view_revision)
            if view is not None or wait_seconds <= 0:
                return view
            half = await self._lease_seconds(coordinator, flow_id) / 2
            seconds = min(wait_seconds, half)
            return LongPoll(
                self._queues.replica, coordinator, flow_id, after, seconds, lease.view_revision
            )

        return await self._queues.on(name, work)

    async def of(self, waiting: LongPoll) -> views.UpdateView | None:
        """The view that a flow waits for; None if it has not changed. Raises FlowGone,
        FlowNotFound, QueueNotFound, Unavailable.
        """
        coordinator = waiting.coordinator
        try:
            return await self._newer(coordinator, waiting.flow_id, waiting.after, waiting.at_least)
        except QueueNotFound:
            raise await self._rows.missing(coordinator.name, waiting.flow_id) from None

    async def watch(self, name: str, flow_id: str, after: int) -> AsyncIterator[views.UpdateView]:
        """The flow's view each time it has changed; changes between two reads are combined.

        Does not renew. Ends by raising FlowGone or QueueNotFound, and silently when the service
        stops.
        """
        row = await self._rows.row(flow_id)
        if row is None:
            raise await self._rows.missing(name, flow_id)
        coordinator = await self._rows.of_queue(name, flow_id, row.queue_id)
        with coordinator.notifier.watching(flow_id) as changed:
            view = await self._newer(coordinator, flow_id, after, fresh=True)
            while not self._queues.replica.stopping:
                if view is not None:
                    after = view.revision
                    yield view
                await changed.wait()
                if not self._queues.replica.stopping:
                    view = await self._newer(coordinator, flow_id, after)

    async def view(
        self,
        coordinator: Coordinator,
        flow_id: str,
        *,
        fresh: bool = False,
        positions: Positions | None = None,
    ) -> views.UpdateView:
        """The flow's view with its positions; `positions`: those that were just read."""

        def needed(queue: Queue) -> list[int] | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else needed_positions(flow)

        numbers = await coordinator.read(needed, fresh=fresh)
        async with self._one_big_view if len(numbers or ()) > BIG_VIEW else nullcontext():
            while True:
                if positions is None or not positions.keys() >= {*(numbers or ())}:
                    positions = coordinator.notifier.of(numbers or ())
                if positions is None:
                    assert numbers is not None
                    positions = await self._positions.ask((coordinator.queue_id, numbers))
                if len(numbers or ()) > BIG_VIEW:
                    in_pieces = partial(self._made_in_pieces, flow_id, positions)
                    view = await coordinator.read_in_pieces(in_pieces, fresh=fresh)
                else:
                    clock = self._queues.replica.clock
                    at_once = partial(_made, flow_id, positions, clock)
                    view = await coordinator.read(at_once, fresh=fresh)
                if view is not None:
                    return view
                # Something changed meanwhile, or this replica does not know the change yet.
                fresh, positions = True, None
                numbers = await coordinator.read(needed, fresh=True)
                if numbers is None:
                    raise await self._rows.missing(coordinator.name, flow_id)

    async def _made_in_pieces(
        self, flow_id: str, positions: Positions, queue: Queue
    ) -> views.UpdateView | None:
        """As `_made`, with pauses."""
        flow = queue.flows.get(flow_id)
        if flow is None:
            return None
        found: list[views.PartitionInUpdate] = []
        async for numbers in pieces(needed_positions(flow)):
            some = _partitions(queue, flow, numbers, positions)
            if some is None:
                return None
            found += some
        return update_view(queue, flow, found, self._queues.replica.clock.now())

    async def _newer(
        self,
        coordinator: Coordinator,
        flow_id: str,
        after: int,
        at_least: int = 0,
        fresh: bool = False,
    ) -> views.UpdateView | None:
        """The view if its revision is above `after`; `at_least`: the store's revision, below which
        the view is outdated.
        """

        def revision(queue: Queue) -> int | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else flow.view_revision

        found = await coordinator.read(revision, fresh=fresh)
        if not fresh and (found is None or found < at_least):
            found = await coordinator.read(revision, fresh=True)
        if found is not None and found <= after:
            return None
        return await self.view(coordinator, flow_id)

    async def _lease_seconds(self, coordinator: Coordinator, flow_id: str) -> float:
        def look(queue: Queue) -> float | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else flow.lease_seconds

        found = await coordinator.read(look)
        if found is None:
            raise await self._rows.missing(coordinator.name, flow_id)
        return found

    async def _positions_of_many(
        self, asked: Sequence[tuple[str, Sequence[int]]]
    ) -> Sequence[Positions]:
        wanted: dict[str, set[int]] = {}
        for queue_id, numbers in asked:
            wanted.setdefault(queue_id, set()).update(numbers)
        with store_available():
            found = {
                queue_id: await self._queues.store.positions(queue_id, sorted(numbers))
                for queue_id, numbers in wanted.items()
            }
        return [found[queue_id] for queue_id, _ in asked]


def _made(
    flow_id: str, positions: Positions, clock: StoreClock, queue: Queue
) -> views.UpdateView | None:
    """The flow's view; None without the flow or a position of the epoch of each partition."""
    flow = queue.flows.get(flow_id)
    if flow is None:
        return None
    found = _partitions(queue, flow, needed_positions(flow), positions)
    return None if found is None else update_view(queue, flow, found, clock.now())


def _partitions(
    queue: Queue, flow: Flow, numbers: Sequence[int], positions: Positions
) -> list[views.PartitionInUpdate] | None:
    """These partitions in the flow's view; None without a position of the epoch of each."""
    found = partitions_in_update(queue, flow, numbers, positions)
    agree = all(positions.get(one.partition, (None, None))[0] == one.epoch for one in found)
    return found if agree else None
