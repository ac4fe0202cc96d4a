"""Reads of a queue between two of its transactions, and notices of its next change.

What a read needs from the store beside the queue are positions; a commit returns some of them.

**Views are made when flows are notified, and answered a little later.** While the store works on a
transaction, the queue in memory runs ahead, so nobody may read it. So the view of a flow that waits
is made right after the commit that changes it (`Watch.refresh`). All that follows, to write the
answer and to send it, takes several times as long, and is done while the store carries out the next
commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from broker.core.queue import Queue
from broker.store.ports import Positions

T = TypeVar("T")
# A flow needs one. A client whose connection broke polls again, and its last poll still waits.
MOST_POLLS = 2
PendingRead = tuple[Callable[[Queue], Any], asyncio.Future[Any]]


async def answer_reads(queue: Queue, reads: Collection[PendingRead]) -> None:
    """Gives each `extract`'s result, or its error, to the one who waits for it.

    What their callers submit at once is in the mailbox afterwards.
    """
    for extract, future in reads:
        if future.done():
            continue
        try:
            seen = extract(queue)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(seen)
    await asyncio.sleep(0)


class Watch:
    """Waits for changes of a flow's view, or of a queue: like `asyncio.Event`, for one who waits.

    Thousands of flows wait at once, and an event of asyncio takes three quarters of a kilobyte.
    """

    __slots__ = ("_extract", "_future", "_is_set", "is_late", "is_over", "seen")

    def __init__(self, extract: Callable[[], Any] | None = None) -> None:
        """`extract` makes of the queue what has changed; None: it is to be read from the store."""
        self._is_set = False
        self._extract = extract
        self.seen: Any = None
        """What `extract` has made at the last change."""
        self.is_late = False
        """Whether it began amid the commit that is under way."""
        self.is_over = False
        """Whether the one who waits is to end, because too many do."""
        self._future: asyncio.Future[None] | None = None

    @property
    def makes_views(self) -> bool:
        """Whether it is that of a poll, not of a stream."""
        return self._extract is not None

    def is_set(self) -> bool:
        """Whether something has changed that is not known yet."""
        return self._is_set

    def refresh(self) -> None:
        """Makes `seen` of what has just changed, if it is awaited and possible.

        A defect is not the mailbox's: the one who waits makes it again, and meets it.
        """
        self.seen = None
        if self._extract is not None and self._future is not None:
            with suppress(Exception):
                self.seen = self._extract()

    def set(self) -> None:
        """Something has changed."""
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        """What has changed so far is known."""
        self._is_set = False

    async def wait(self, seconds: float | None = None) -> bool:
        """True once something has changed, False if nothing does within so many seconds. What has
        changed is known then.
        """
        if not self._is_set and (seconds is None or seconds > 0):
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, self._wake)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        is_set, self._is_set = self._is_set, False
        return is_set

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class ViewNotifier:
    """Those who watch one queue or flows of it, and what a commit brings them: the positions that
    came back with it, and their wake-up.

    Flows that wait make their views at once, and callers in this round of the event loop, without
    reading the positions again. They are forgotten with the round: positions change without any
    commit.
    """

    def __init__(self) -> None:
        # By flow; those of the queue by "". They are woken in the order in which they came.
        self.watches: dict[str, tuple[Watch, ...]] = {}
        self._positions: Positions = {}
        self._came: list[Watch] = []
        self.is_committing = False
        """Whether the store is at work on a commit, which may change views."""

    @contextmanager
    def watching(self, flow_id: str = "") -> Iterator[Watch]:
        """A watch that is set at every change of a flow's view, or of the queue if no flow is
        named.
        """
        watch = self.watch(flow_id)
        try:
            yield watch
        finally:
            self.unwatch(flow_id, watch)

    def watch(self, flow_id: str, extract: Callable[[], Any] | None = None) -> Watch:
        """As `watching`, until `unwatch`. With an `extract` it is that of a poll, of which a flow
        has `MOST_POLLS`: beyond it the one that has waited longest is over.
        """
        watch = Watch(extract)
        self.watches[flow_id] = watches = (*self.watches.get(flow_id, ()), watch)
        if extract is not None and len(watches) > MOST_POLLS:
            for one in [one for one in watches if one.makes_views][:-MOST_POLLS]:
                one.is_over = True
                one.set()
        return watch

    def unwatch(self, flow_id: str, watch: Watch) -> None:
        """Nobody waits with this watch any more."""
        others = tuple(one for one in self.watches[flow_id] if one is not watch)
        if others:
            self.watches[flow_id] = others
        else:
            del self.watches[flow_id]

    @contextmanager
    def committing(self) -> Iterator[None]:
        """While the store is at work."""
        self.is_committing = True
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self.is_committing = False
            came, self._came = self._came, []
            if came and not loop.is_closed():  # else the service is gone
                loop.call_soon(self._set_late, came)

    @staticmethod
    def _set_late(watches: Iterable[Watch]) -> None:
        """Their views are made when the positions of the commit have been forgotten."""
        for watch in watches:
            watch.is_late = False
            watch.set()

    def begins(self, watch: Watch) -> None:
        """Somebody begins to wait. Whether something has changed is to be found out, but not before
        the end of the commit that is under way: it may be what that brings. The positions that come
        back with it may be older than the call: the flow may have committed newer ones and polled
        meanwhile. So its view is not made with them.
        """
        if self.is_committing:
            watch.is_late = True
            self._came.append(watch)
        else:
            watch.set()

    def keep(self, positions: Positions) -> None:
        """What the commit has returned."""
        self._positions = positions

    def forget_soon(self) -> None:
        """After everyone was answered: they run before what forgets the positions."""
        asyncio.get_running_loop().call_soon(self._forget)

    def of(self, numbers: Collection[int]) -> Positions | None:
        """The positions of these partitions; None if not all of them are known."""
        known = self._positions
        return known if all(number in known for number in numbers) else None

    def _forget(self) -> None:
        self._positions = {}

    def wake(self, flow_ids: frozenset[str] | None) -> None:
        """Makes the views of those who watch these flows, or the queue, and wakes them.

        None: those of all flows.
        """
        for key in list(self.watches) if flow_ids is None else (*sorted(flow_ids), ""):
            for watch in self.watches.get(key, ()):
                if not watch.is_late:
                    watch.refresh()
                    watch.set()

    def end(self) -> None:
        """The service stops: all are woken."""
        for watches in self.watches.values():
            for watch in watches:
                watch.set()
