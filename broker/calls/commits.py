"""Commits of positions: they change no assignment, only rows, and go out in batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from broker.calls.access import QueueAccess
from broker.calls.bound_flows import BoundFlow, BoundFlows
from broker.calls.commit_ages import CommitAges
from broker.calls.cuts import CutCalls
from broker.calls.flow_views import FlowViews, shown_positions
from broker.calls.items import refuse_items
from broker.calls.rendering import results_view
from broker.core import commands as c
from broker.core.errors import QueueNotFound
from broker.logs.positions import Reach
from broker.replica.renewals import RowLocked
from broker.store.ports import PositionCommit, Positions
from counterpoise import wire

MOST_AT_ONCE = 100


class _Batch(NamedTuple):
    """Commits of one flow, and the partitions whose positions its answer shows."""

    commits: Sequence[PositionCommit]
    shown: Collection[int]

    @property
    def keys(self) -> Sequence[tuple[str, int]]:
        """Of the partitions in `shown`."""
        return [(self.commits[0].queue_id, number) for number in self.shown]


class _Done(NamedTuple):
    """Of a batch: the results, None where rows are locked, and the positions that it shows."""

    results: Sequence[c.Result | None]
    positions: Positions


class CommitCalls:
    """The commits of all flows."""

    def __init__(
        self,
        queues: QueueAccess,
        bound: BoundFlows,
        views: FlowViews,
        cuts: CutCalls,
        reach: Reach,
        ages: CommitAges,
    ) -> None:
        self._replica = queues.replica
        self._store = queues.store
        self._bound = bound
        self._views = views
        self._cuts = cuts
        self._reach = reach
        self._ages = ages
        self._batches = queues.replica.batcher(self._commit_batches, most=MOST_AT_ONCE)

    async def commit(
        self, flow: BoundFlow, seq: int | None, items: Sequence[c.CommitItem]
    ) -> wire.Results:
        """Commits positions. Raises FlowGone, FlowNotFound, QueueNotFound, Invalid, Unavailable."""
        coordinator, flow_id = flow
        try:
            await refuse_items(flow, self._reach, items)
            shown = await coordinator.read(partial(shown_positions, flow_id))
            commits = [
                PositionCommit(
                    coordinator.queue_id,
                    flow_id,
                    seq,
                    one.partition,
                    one.epoch,
                    one.position,
                    one.done_above,
                )
                for one in items
            ]
            results, positions = await self._commit(flow_id, commits, shown)
            committed = [
                item
                for item, result in zip(items, results, strict=True)
                if result.outcome is c.Outcome.OK
            ]
            await self._cuts.reached(coordinator, committed)
            if not committed:
                # Check that it is bound.
                await self._bound.renew(flow)
            view = await self._views.view(flow, positions=positions)
        except QueueNotFound:
            raise await self._bound.missing(coordinator.name, flow_id) from None
        return results_view(results, view)

    async def _commit(
        self, flow_id: str, commits: Sequence[PositionCommit], shown: Collection[int]
    ) -> tuple[Sequence[c.Result], Positions]:
        """One result for each, and the positions of the partitions in `shown`; what is locked by
        another transaction is sent again.
        """
        results: dict[int, c.Result] = {}
        positions: Positions = {}

        async def send() -> Sequence[c.Result] | RowLocked:
            nonlocal positions
            left = [place for place in range(len(commits)) if place not in results]
            if left:
                batch = _Batch([commits[place] for place in left], shown)
                answers, positions = await self._batches.put(batch)
                results.update(
                    (place, answer)
                    for place, answer in zip(left, answers, strict=True)
                    if answer is not None
                )
            found = [results[place] for place in range(len(commits)) if place in results]
            return found if len(found) == len(commits) else RowLocked.LOCKED

        return await self._replica.renewals.until_free(flow_id, send), positions

    async def _commit_batches(self, batches: Sequence[_Batch]) -> Sequence[_Done]:
        """Commits of several flows in one transaction; two of the same flow go one after the
        other.
        """
        self._replica.tally.commit_batch.observe(len(batches))
        answers = [_Done((), {})] * len(batches)
        waiting = list(enumerate(batches))
        while waiting:
            seen: set[str] = set()
            later: list[tuple[int, _Batch]] = []
            now: list[tuple[int, _Batch]] = []
            for place, batch in waiting:
                flow_id = batch.commits[0].flow_id
                (later if flow_id in seen else now).append((place, batch))
                seen.add(flow_id)
            commits = [item for _, batch in now for item in batch.commits]
            shown = {key for _, batch in now for key in batch.keys}
            results, positions, replaced = await self._store.commit_positions(commits, shown)
            self._ages.note(commits, replaced)
            following = iter(results)
            for place, batch in now:
                of_batch = {key[1]: positions[key] for key in batch.keys if key in positions}
                answers[place] = _Done([next(following) for _ in batch.commits], of_batch)
            waiting = later
        return answers
