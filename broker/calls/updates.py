"""Flows that follow their view: the current one, the next one (long poll), or a stream of all.

**A long poll renews the lease, and is answered only after that**: a client counts its lease from
when it sent the poll. A flow whose view in memory is not newer than what it has will wait, so it
begins to wait at once, and its renewal is gathered with those of others (`renewals`). Who waits is
woken only if the renewal found something: the flow is gone, the store has a newer view (another
replica has changed it), or the store failed. If the poll is to be answered before, because the view
has changed or the time is over, the renewal goes out at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self

from broker.calls.access import QueueAccess
from broker.calls.bound_flows import BoundFlow, BoundFlows
from broker.calls.flow_views import FlowViews
from broker.core.errors import QueueNotFound
from broker.core.queue import Queue
from broker.replica.notifier import Watch
from broker.replica.replica import Replica
from broker.replica.store_calls import Awaiter, answered
from counterpoise import wire

NOT_RENEWED = "the lease is not renewed yet"


class LongPoll:
    """A flow that waits for its next view, as long as this is entered (`with`)."""

    __slots__ = (
        "_flow",
        "_is_awaited",
        "_replica",
        "_until",
        "_views",
        "_watch",
        "after",
        "is_renewing",
        "renewed",
    )

    def __init__(
        self,
        replica: Replica,
        views: FlowViews,
        flow: BoundFlow,
        after: int,
        seconds: float,
        renewed: int | None = None,
    ) -> None:
        """It waits at most so many seconds from now on. `renewed`: if its lease is renewed already,
        the revision of its view in the store.
        """
        self._replica = replica
        self._views = views
        self._flow = flow
        self._watch: Watch | None = None
        self._until = asyncio.get_running_loop().time() + seconds
        self._is_awaited = False
        # While it is under way `renewed` means nothing.
        self.is_renewing = renewed is None
        self.renewed: int | Exception | None = renewed
        self.after = after

    def __enter__(self) -> Self:
        coordinator, flow_id = self._flow
        self._watch = coordinator.notifier.watch(flow_id, self._changed)
        # The view may have changed since it was read.
        coordinator.notifier.begins(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._watch is not None
        coordinator, flow_id = self._flow
        coordinator.notifier.unwatch(flow_id, self._watch)
        # The watch refers to this object.
        self._watch = None

    @property
    def stops(self) -> bool:
        """Whether it waits no more: the service stops, or newer polls of the flow wait."""
        assert self._watch is not None
        return self._replica.stopping or self._watch.is_over

    @property
    def at_least(self) -> int:
        """The revision of the view in the store, as far as the renewal has answered it."""
        return self.renewed if isinstance(self.renewed, int) else 0

    @property
    def is_same(self) -> bool:
        """Whether the view is surely the one that the flow has."""
        queue = self._flow.coordinator.at_hand
        flow = None if queue is None else queue.flows.get(self._flow.flow_id)
        return flow is not None and max(flow.view_revision, self.at_least) <= self.after

    def _changed(self) -> wire.Update | None:
        """The changed view, with the positions that came back with the commit; None if it takes a
        read of the store, or nothing has changed.
        """
        queue = self._flow.coordinator.at_hand
        flow = None if queue is None else queue.flows.get(self._flow.flow_id)
        if queue is None or flow is None or flow.view_revision <= self.after:
            return None
        view = self._views.at_once(self._flow, None, queue)
        return view if isinstance(view, wire.Update) else None

    @property
    def seen(self) -> wire.Update | None:
        """The changed view, if it was made when the flow was woken."""
        return None if self._watch is None else self._watch.seen

    def changes(self) -> Coroutine[Any, Any, bool]:
        """True as soon as the view may have changed, or the renewal is not as it should be; False
        if the time is over.
        """
        assert self._watch is not None
        return self._watch.wait(self._until - asyncio.get_running_loop().time())

    # The renewal

    def renews(self, renewed: int | Exception | None) -> None:
        """The renewal is answered, or has failed. Usually the one who waits need not know."""
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

    def __init__(self, queues: QueueAccess, bound: BoundFlows, views: FlowViews) -> None:
        self._replica = queues.replica
        self._bound = bound
        self._views = views

    async def wait(
        self, flow: BoundFlow, after: int, wait_seconds: float, *, asked: Awaiter = answered
    ) -> wire.Update | None:
        """Renews the lease; the flow's view as soon as its revision is above `after`, else None.

        Waits at most `wait_seconds`, and at most half the lease. `asked` awaits what may call the
        database; the wait itself keeps little, because thousands of flows wait at once. Cancelled
        before the lease is renewed, it raises CancelledError with `NOT_RENEWED`.
        """
        found: wire.Update | LongPoll | None
        found = self._waits(flow, after, wait_seconds, asked)
        try:
            if found is None:
                found = await asked(self._begin(flow, after, wait_seconds))
            if not isinstance(found, LongPoll):
                return found
            view = None
            with found as waiting:
                while view is None and await waiting.changes() and not waiting.stops:
                    if waiting.has_failed:
                        break
                    view = waiting.seen
                    if view is None and not waiting.is_same:
                        view = await asked(self._newer(flow, after, waiting.at_least))
                if waiting.is_renewing:
                    self._replica.renewals.hurry()
                    await waiting.answer()
            if isinstance(waiting.renewed, Exception):
                raise waiting.renewed
            if waiting.renewed is None:
                raise await asked(self._bound.missing(flow.coordinator.name, flow.flow_id))
            return view
        except asyncio.CancelledError:
            if isinstance(found, LongPoll) and isinstance(found.renewed, int):
                raise
            raise asyncio.CancelledError(NOT_RENEWED) from None

    def _waits(
        self, flow: BoundFlow, after: int, wait_seconds: float, asked: Awaiter
    ) -> LongPoll | None:
        """What a flow waits with whose view is surely the one that it has, or comes with the commit
        under way; its renewal is under way. None if neither is sure.
        """
        coordinator = flow.coordinator
        is_ahead = coordinator.notifier.is_committing
        queue = coordinator.queue if is_ahead else coordinator.at_hand
        known = None if queue is None else queue.flows.get(flow.flow_id)
        if known is None or wait_seconds <= 0 or (known.view_revision > after and not is_ahead):
            return None
        lease_seconds = known.lease_seconds
        seconds = min(wait_seconds, lease_seconds / 2)
        waiting = LongPoll(self._replica, self._views, flow, after, seconds)
        self._replica.renewals.soon(flow.flow_id, lease_seconds, waiting.renews, asked)
        return waiting

    async def _begin(
        self, flow: BoundFlow, after: int, wait_seconds: float
    ) -> wire.Update | LongPoll | None:
        """The first step of `wait` if it is not sure that the flow waits: its result, or what it
        waits with.
        """
        lease = await self._bound.renew(flow)
        view = await self._newer(flow, after, lease.view_revision)
        if view is not None or wait_seconds <= 0:
            return view
        seconds = min(wait_seconds, await self._lease_seconds(flow) / 2)
        return LongPoll(self._replica, self._views, flow, after, seconds, lease.view_revision)

    async def watch(self, flow: BoundFlow, after: int) -> AsyncIterator[wire.Update]:
        """The flow's view each time it has changed; changes between two reads are combined.

        Does not renew. Ends by raising FlowGone or QueueNotFound, and silently when the service
        stops.
        """
        with flow.coordinator.notifier.watching(flow.flow_id) as changed:
            view = await self._newer(flow, after, fresh=True)
            while not self._replica.stopping:
                if view is not None:
                    after = view.revision
                    yield view
                await changed.wait()
                if not self._replica.stopping:
                    view = await self._newer(flow, after)

    async def _newer(
        self, flow: BoundFlow, after: int, at_least: int = 0, fresh: bool = False
    ) -> wire.Update | None:
        """The view if its revision is above `after`; `at_least`: the store's revision, below which
        the view is outdated. Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable.
        """
        coordinator, flow_id = flow

        def revision(queue: Queue) -> int | None:
            known = queue.flows.get(flow_id)
            return None if known is None else known.view_revision

        try:
            found = await coordinator.read(revision, fresh=fresh)
            if not fresh and (found is None or found < at_least):
                found = await coordinator.read(revision, fresh=True)
            if found is not None and found <= after:
                return None
            return await self._views.view(flow)
        except QueueNotFound:
            raise await self._bound.missing(coordinator.name, flow_id) from None

    async def _lease_seconds(self, flow: BoundFlow) -> float:
        def extract(queue: Queue) -> float | None:
            known = queue.flows.get(flow.flow_id)
            return None if known is None else known.lease_seconds

        found = await flow.coordinator.read(extract)
        if found is None:
            raise await self._bound.missing(flow.coordinator.name, flow.flow_id)
        return found
