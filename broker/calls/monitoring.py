"""The calls that show one queue: status, history, partitions, flows and the stream of changes.

**A change is read once for all who follow its queue.** It wakes all of them at the same time. Were
each to read it, a thousand followers would take the connections of the pool for seconds, and other
queues' commits would wait. So their reads are gathered (`Batcher`), and those of the same place are
one. Two connections are the most that all followers take: one for what is new, one for those who
have missed something, so that many who resume do not delay the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from broker.calls import views
from broker.calls.access import QueueAccess
from broker.calls.history import History, within
from broker.calls.rendering import (
    event_view,
    flow_view,
    on_a_page,
    partition_view,
    status_of,
)
from broker.calls.times import time_of
from broker.core.errors import Invalid, QueueNotFound
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.logs.ports import Logs
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.scaling import Load, load_of
from broker.store.ports import QueueGone, StoreUnavailable
from counterpoise import wire

DECIMAL = re.compile("[0-9]{1,18}")
# The most revisions that are read at once for a reader of events, who keeps them until they are
# sent.
EVENTS_AT_ONCE = 5
# Others get on after so many.
ENTRIES_AT_ONCE = 5
# Of the rebalances whose entries are read for one another; a single one may have more.
MOST_ENTRIES = 200
# A page that has read more ends, however few items it has.
MOST_READ = 1000
# Of one entry on a page.
MOST_MOVES = 3000
# As JSON an item is a little longer than it is measured here: a page has 1 MiB at most.
HISTORY_BYTES = 900_000
# A page of partitions, of which several are asked for one after the other.
LAG_AT_ONCE = 500
MOST_LAGS = 1000


class _Place(NamedTuple):
    """Where somebody is who follows a queue."""

    queue_id: str
    revision: int


class MonitoringCalls:
    """The view of a queue for administrators."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._queues = queues
        self._logs = logs
        self._new = queues.replica.batcher(self._read_changes)
        self._missed = queues.replica.batcher(self._read_changes)

    async def rebalance_status(self, name: str) -> wire.RebalanceStatus:
        """The rebalance status. Raises QueueNotFound."""
        return await self._queues.on(name, status_of)

    async def rebalances(
        self, name: str, limit: int, cursor: str | None, *, moves: bool = False
    ) -> wire.Page[wire.Rebalance]:
        """The history, newest first, at most HISTORY_BYTES of it.

        The cursor is the last id of the previous page. If that page did not have all moves of its
        last entry, the cursor is this id and how many there were, and the entry comes again with
        the moves after them.
        """
        before, passed = _place(cursor, moves)
        queue_id = await self._queues.read(name, lambda queue: queue.id)
        items: list[wire.Rebalance] = []
        size = read = 0
        while True:
            found, before, entries = await self._history(
                name, queue_id, limit + 1 - len(items), before, passed, moves=moves
            )
            for view in found:
                view, bytes = within(view, HISTORY_BYTES)
                size += bytes
                if len(items) == limit or (items and size > HISTORY_BYTES):
                    return wire.Page(tuple(items), str(items[-1].id))
                items.append(view)
                if moves and view.more_moves:
                    place = passed.get(view.id, 0) + len(view.moves)
                    return wire.Page(tuple(items), f"{view.id}.{place}")
            read += entries
            if before is None:
                return wire.Page(tuple(items), None)
            if read >= MOST_READ:
                return wire.Page(tuple(items), str(before))

    async def _history(
        self,
        name: str,
        queue_id: str,
        limit: int,
        before: int | None,
        passed: Mapping[int, int],
        *,
        moves: bool,
    ) -> tuple[list[wire.Rebalance], int | None, int]:
        """At most so many rebalances, the lowest id that was read (None: no more), and how many
        entries were read.
        """
        history = History(most_moves=MOST_MOVES if moves else 0, passed=passed)
        lowest: int | None = None
        with store_available():
            try:
                revisions = await self._queues.store.history(queue_id, limit, before, MOST_ENTRIES)
                for first in range(0, len(revisions), ENTRIES_AT_ONCE):
                    some = revisions[first : first + ENTRIES_AT_ONCE]
                    entries = await self._queues.store.entries_at(queue_id, some)
                    history.add(entries)
                    ids = [one.rebalance_id for one in entries if one.rebalance_id is not None]
                    lowest = min(ids if lowest is None else [lowest, *ids], default=None)
            except QueueGone:
                raise QueueNotFound(name) from None
            found = history.views(await self._queues.store.flows_named(history.flow_ids))
        return found, lowest, len(revisions)

    async def partitions(
        self, name: str, limit: int, cursor: str | None, *, ages: bool = True
    ) -> wire.Page[wire.Partition]:
        """Partitions by number, at most PAGE_BYTES of them; the cursor is the last number of the
        previous page.

        Waits a moment for the log to report their ends and, with `ages`, the times of their next
        messages, which some logs have to fetch.
        """
        after = -1 if cursor is None else number_of(cursor)

        async def work(coordinator: Coordinator) -> wire.Page[wire.Partition]:
            wanted, more = await coordinator.read(
                lambda queue: on_a_page(queue, after, limit), fresh=True
            )
            with store_available():
                positions = await self._queues.store.positions(coordinator.queue_id, wanted)

            def extract(queue: Queue) -> tuple[Settings, tuple[wire.Partition, ...]]:
                # Some may have been removed since.
                return queue.settings, tuple(
                    partition_view(queue, queue.partitions[number], positions)
                    for number in wanted
                    if queue.exists(number)
                )

            settings, items = await coordinator.read(extract)
            items = await self._with_spans(settings, items)
            if ages:
                items = await self._with_ages(settings, items)
            return wire.Page(items, str(wanted[-1]) if more else None)

        return await self._queues.on(name, work)

    async def every_partition(self, name: str, *, ages: bool) -> AsyncIterator[wire.Partition]:
        """All partitions of the queue, read in pages; see `partitions`. Raises QueueNotFound."""
        cursor: str | None = None
        while True:
            page = await self.partitions(name, LAG_AT_ONCE, cursor, ages=ages)
            for one in page.items:
                yield one
            cursor = page.next_cursor
            if cursor is None:
                return

    async def lag(self, name: str) -> views.LagView:
        """The lag of the queue without what is paused. Raises QueueNotFound.

        Of a queue with more than MOST_LAGS partitions, no single ones are given.
        """
        messages = unknown = 0
        seconds: float | None = None
        found: dict[int, int] = {}
        async for one in self.every_partition(name, ages=True):
            if one.paused is not None:
                continue
            messages += one.lag or 0
            unknown += one.lag is None
            if one.lag_seconds is not None:
                seconds = max(seconds or 0.0, one.lag_seconds)
            if one.lag is not None and len(found) <= MOST_LAGS:
                found[one.partition] = one.lag
        if not (messages or unknown):
            seconds = 0.0
        return views.LagView(messages, unknown, seconds, found if len(found) <= MOST_LAGS else {})

    async def load(self, name: str, lag: views.LagView | None) -> Load:
        """What an autoscaler has to know of the queue; `lag` as known. Raises QueueNotFound."""
        now = self._queues.replica.clock.now()
        messages = seconds = None
        if lag is not None and not lag.unknown:
            messages, seconds = lag.messages, lag.seconds
        return await self._queues.read(
            name, lambda queue: load_of(queue, messages, now, lag_seconds=seconds)
        )

    async def _with_spans(
        self, settings: Settings, items: tuple[wire.Partition, ...]
    ) -> tuple[wire.Partition, ...]:
        spans = await self._logs.spans(
            settings.log, {item.partition: item.position for item in items}
        )

        def with_span(item: wire.Partition) -> wire.Partition:
            span = spans.get(item.partition)
            if span is None:
                return item
            return structs.replace(item, end=span.end, lag=span.lag)

        return tuple(map(with_span, items))

    async def _with_ages(
        self, settings: Settings, items: tuple[wire.Partition, ...]
    ) -> tuple[wire.Partition, ...]:
        ages = await self._logs.ages(
            settings.log,
            {
                item.partition: str(int(item.end) - item.lag)
                for item in items
                if item.end is not None and item.lag
            },
        )
        return tuple(structs.replace(item, lag_seconds=ages.get(item.partition)) for item in items)

    async def flows(self, name: str, limit: int, cursor: str | None) -> wire.Page[wire.FlowSummary]:
        """Bound flows in the order of binding; the cursor is the bind number before."""
        after = -1 if cursor is None else number_of(cursor)

        def extract(queue: Queue) -> list[tuple[int, wire.FlowSummary]]:
            bind_numbers = sorted(
                bind_number for bind_number in queue.flows.by_bind_number if bind_number > after
            )[: limit + 1]
            return [
                (bind_number, flow_view(queue.flows.by_bind_number[bind_number], 0.0))
                for bind_number in bind_numbers
            ]

        found = await self._queues.read(name, extract)
        with store_available():
            leases = await self._queues.store.leases([flow.flow_id for _, flow in found[:limit]])
        items = tuple(
            structs.replace(flow, lease_expires_at=time_of(leases[flow.flow_id]))
            for _, flow in found[:limit]
            if flow.flow_id in leases
        )
        return wire.Page(items, str(found[limit - 1][0]) if len(found) > limit else None)

    async def events(self, name: str, after: int | None) -> AsyncIterator[views.EventView]:
        """The changes committed after the revision `after` (None: from now on), one event each.

        Ends by raising QueueNotFound, Invalid if `after` is above the queue's revision or too old,
        and silently when the service stops. A slow reader reads the missed changes from the store,
        so this replica stores nothing for it. All followers who are woken by a change get the same
        views.
        """
        queue_id, revision = await self._queues.read(name, lambda queue: (queue.id, queue.revision))
        if after is not None and after > revision:
            # A queue that was deleted and made again, or the same before a restore.
            raise Invalid(
                f"This queue is at revision {revision}, so its changes were not followed to "
                f"{after}; start from now on."
            )
        with self._queues.replica.coordinator_of(queue_id).notifier.watching() as changed:
            seen = revision if after is None else after
            reads = self._missed
            while not self._queues.replica.stopping:
                changed.clear()
                try:
                    found = await reads.put(_Place(queue_id, seen))
                except StoreUnavailable:
                    await asyncio.sleep(1)
                    continue
                if isinstance(found, QueueGone):
                    raise QueueNotFound(name)
                if isinstance(found, Exception):
                    raise Invalid(
                        f"Changes after revision {seen} are no longer stored; start from now on."
                    )
                for event in found:
                    seen = event.revision
                    yield event
                reads = self._missed
                if len(found) < EVENTS_AT_ONCE:
                    await changed.wait()
                    reads = self._new

    async def _read_changes(
        self, places: Sequence[_Place]
    ) -> Sequence[Sequence[views.EventView] | Exception]:
        """The next changes at each place, or why there are none; each place is read once."""
        found: dict[_Place, Sequence[views.EventView] | Exception] = {}
        for place in places:
            if place in found:
                continue
            try:
                entries = await self._queues.store.changes_after(*place, EVENTS_AT_ONCE)
            except (QueueGone, KeyError) as error:
                found[place] = error
            else:
                found[place] = tuple(map(event_view, entries))
        return [found[place] for place in places]


def _place(cursor: str | None, moves: bool) -> tuple[int | None, Mapping[int, int]]:
    """The id before which the history continues, and the moves of an entry that were shown."""
    if cursor is None:
        return None, {}
    id, found, passed = cursor.partition(".")
    if not (found and moves):
        return number_of(cursor), {}
    return number_of(id) + 1, {number_of(id): number_of(passed)}


def number_of(cursor: str) -> int:
    """A cursor that is a number. Raises Invalid."""
    if not DECIMAL.fullmatch(cursor):
        raise foreign_cursor()
    return int(cursor)


def foreign_cursor() -> Invalid:
    """The error for a cursor that no page of the list has had."""
    return Invalid(
        "This cursor does not come from this call; leave it out to start anew.",
        [("cursor", "is not a cursor of this list")],
    )
