"""Renewals of leases, at once or with those of others.

A renewal that somebody awaits goes out at once, and with it those that come while another one is
under way (`store_calls`). A flow that waits in a long poll awaits nothing. So its renewal is
gathered with those of others for a moment: one statement for all of them instead of one for each.
If a commit changes the flow's view meanwhile, it renews the lease in passing, because it writes the
flow's row anyway.

A renewal waits for no lock. If a commit of this replica writes the flow's row, the renewal goes out
as soon as that commit has ended; if another transaction has locked the row, again after a pause.

While a renewal is under way this replica does not end the flow, however long the store takes.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from broker.core.errors import Unavailable
from broker.replica.store_calls import UNAVAILABLE, Awaiter, Batcher, answered, pauses
from broker.store.ports import Commit, Lease, Store, StoreUnavailable

T = TypeVar("T")

# How long a renewal that nobody awaits may wait for others, and for how much of its lease at most:
# it must not come too late.
GATHER_SECONDS = 0.05
GATHER_SHARE = 0.01


class RowLocked(Enum):
    """Instead of an answer: another transaction holds the rows, try again."""

    LOCKED = "locked"


# None: the flow is not bound.
Renewed: TypeAlias = Lease | RowLocked | None
# Is given the revision of the flow's view in the store as far as it is known (0: not at all), None
# if the flow is not bound, or what was raised.
OnRenewed: TypeAlias = Callable[[int | Exception | None], object]
_Gathered: TypeAlias = dict[str, tuple[OnRenewed, ...]]


class Renewals:
    """The renewals of all flows that call this replica. It contains those that are under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batcher: Batcher[str, Renewed] = Batcher(self._renew_many)
        self._under_way: Counter[str] = Counter()
        self.gathered: _Gathered = {}
        """The flows whose renewals wait for others."""
        # The flows whose rows a commit of this replica writes; it ends when the future is done.
        self._committing: dict[str, asyncio.Future[None]] = {}
        self._awaiter: Awaiter = answered
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, flow_id: object) -> bool:
        return flow_id in self._under_way

    async def now(self, flow_id: str) -> Lease | None:
        """Renews the flow's lease; None if it is not bound. Raises Unavailable."""
        self.hurry()
        return await self.until_free(flow_id, lambda: self._batcher.put(flow_id))

    async def until_free(self, flow_id: str, renew: Callable[[], Awaitable[T | RowLocked]]) -> T:
        """The answer of `renew`, by which this flow renews its lease, once its rows are free.

        Raises Unavailable.
        """
        self._under_way[flow_id] += 1
        try:
            answer = RowLocked.LOCKED if flow_id in self._committing else await renew()
            if not isinstance(answer, RowLocked):
                return answer
            for pause in pauses():
                if (commit := self._committing.get(flow_id)) is not None:
                    await asyncio.wait([commit], timeout=pause)
                else:
                    await asyncio.sleep(pause)
                answer = await renew()
                if not isinstance(answer, RowLocked):
                    return answer
        except StoreUnavailable:
            pass
        finally:
            self._ends(flow_id)
        raise Unavailable(UNAVAILABLE)

    def soon(
        self, flow_id: str, lease_seconds: float, on_renewed: OnRenewed, awaiter: Awaiter = answered
    ) -> None:
        """Renews the flow's lease within a moment.

        `awaiter` awaits the answers of all that goes out together, so all callers name the same.
        """
        self._under_way[flow_id] += 1
        self.gathered[flow_id] = (*self.gathered.get(flow_id, ()), on_renewed)
        self._awaiter = awaiter
        loop = asyncio.get_running_loop()
        due = loop.time() + min(GATHER_SECONDS, GATHER_SHARE * lease_seconds)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due, self._timer = due, loop.call_at(due, self.hurry)

    def hurry(self) -> None:
        """What is gathered goes out now: somebody awaits it."""
        if self._timer is not None:
            self._timer.cancel()
            self._due, self._timer = math.inf, None
            gathered, self.gathered = self.gathered, {}
            self._go_out(gathered)

    async def finish(self) -> None:
        """Sends what is gathered, and waits for what is under way."""
        self.hurry()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._batcher.finish()

    @contextmanager
    def by_commit(self, commit: Commit) -> Iterator[None]:
        """While this commit is under way, which renews what is gathered of those that it renews. If
        it fails, they go out.
        """
        taken = {id: self.gathered.pop(id) for id in commit.renewed if id in self.gathered}
        ended = asyncio.get_running_loop().create_future()
        written = [flow.id for flow in commit.flows] + [*commit.renewed]
        self._committing.update(dict.fromkeys(written, ended))
        try:
            yield
        except Exception:
            self._go_out(taken)
            raise
        finally:
            for flow_id in written:
                self._committing.pop(flow_id, None)
            if not ended.done():
                ended.set_result(None)
        for flow_id, waiting in taken.items():
            self._give(flow_id, waiting, 0)

    def _go_out(self, gathered: _Gathered) -> None:
        if gathered:
            futures = [self._batcher.put(flow_id) for flow_id in gathered]
            self._spawn(self._answer(self._awaiter(_all(futures)), gathered))

    async def _answer(self, answers: Awaitable[Sequence[Renewed]], gathered: _Gathered) -> None:
        try:
            found: Sequence[Renewed | Exception] = await answers
        except Exception as error:
            found = [error] * len(gathered)
        for (flow_id, waiting), renewed in zip(gathered.items(), found, strict=True):
            if isinstance(renewed, RowLocked):
                self._spawn(self._again(flow_id, waiting))
            else:
                self._give(flow_id, waiting, _revision(renewed))

    async def _again(self, flow_id: str, waiting: tuple[OnRenewed, ...]) -> None:
        """Of one whose row was held."""
        renewed: Lease | Exception | None
        try:
            renewing = self.until_free(flow_id, lambda: self._batcher.put(flow_id))
            renewed = await self._awaiter(renewing)
        except Exception as error:
            renewed = error
        self._give(flow_id, waiting, _revision(renewed))

    def _give(
        self, flow_id: str, waiting: tuple[OnRenewed, ...], renewed: int | Exception | None
    ) -> None:
        for on_renewed in waiting:
            self._ends(flow_id)
            if isinstance(renewed, StoreUnavailable | Unavailable):
                # Each caller raises one of its own.
                renewed = Unavailable(UNAVAILABLE)
            on_renewed(renewed)

    def _ends(self, flow_id: str) -> None:
        self._under_way[flow_id] -= 1
        if not self._under_way[flow_id]:
            del self._under_way[flow_id]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # The loop keeps no task by itself.
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew_many(self, flow_ids: Sequence[str]) -> Sequence[Renewed]:
        leases = await self._store.renew(sorted(set(flow_ids)))
        return [(leases[id] or RowLocked.LOCKED) if id in leases else None for id in flow_ids]


async def _all(futures: Sequence[asyncio.Future[Renewed]]) -> Sequence[Renewed]:
    return await asyncio.gather(*futures)


def _revision(renewed: Lease | Exception | None) -> int | Exception | None:
    return renewed.view_revision if isinstance(renewed, Lease) else renewed
