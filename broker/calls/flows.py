"""The calls of flows: bind, renew, commit, release, drain, unbind.

Commits only touch rows and go out in batches; calls that change the assignment go through the
queue's mailbox.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from broker.calls import views
from broker.calls.access import (
    FlowRows,
    Positioned,
    QueueAccess,
    act_on_flow,
    refuse_begins,
    refuse_far,
    refuse_positions,
    refuse_repetitions,
    shown_flow,
)
from broker.calls.cuts import CommittedPosition, CutCalls
from broker.calls.rendering import needed_positions
from broker.calls.updates import BIG_VIEW, UpdateCalls
from broker.core import commands as c
from broker.core.access import Caller, digest
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Unauthorized,
)
from broker.core.queue import Queue
from broker.logs.bind_access import BindAccess
from broker.logs.ports import Holder, Logs
from broker.logs.positions import Reach
from broker.pieces import pieces
from broker.replica.coordinator import Coordinator
from broker.replica.renewals import RowLocked
from broker.replica.store_calls import Batcher
from broker.replica.transaction import SLICES_AT_ONCE, Submission, all_of, slices
from broker.store.ports import PositionCommit, Positions


class _Call(NamedTuple):
    """Commits of one flow, and the partitions whose positions its answer shows."""

    commits: Sequence[PositionCommit]
    shown: Collection[int]

    @property
    def keys(self) -> Sequence[tuple[str, int]]:
        """Of the partitions in `shown`."""
        return [(self.commits[0].queue_id, number) for number in self.shown]


class _Done(NamedTuple):
    results: Sequence[c.Result | None]
    positions: Positions


class FlowCalls:
    """The calls of consumers."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, rows: FlowRows, updates: UpdateCalls, cuts: CutCalls
    ) -> None:
        self._queues = queues
        self._access = BindAccess(logs)
        self._rows = rows
        self._updates = updates
        self._cuts = cuts
        self._reach = Reach(logs)
        self._commits: Batcher[_Call, _Done] = Batcher(self._commit_many, most=100)

    async def bind(
        self,
        name: str,
        client_name: str,
        instance_id: str | None,
        lease_seconds: float,
        warmup: bool,
        binder: str | None = None,
        attempt: int = 0,
        key_id: str | None = None,
    ) -> views.BoundView:
        """Binds a flow, with the key of this id.

        Raises QueueNotFound, Unavailable, Overtaken, and FlowGone if the same instance was bound
        again at the same time.
        """
        flow_id, token = str(uuid4()), secrets.token_urlsafe(32)
        instance_id = instance_id or str(uuid4())
        command = c.Bind(
            flow_id, instance_id, client_name, lease_seconds, warmup, binder, attempt, key_id
        )
        token_hash = digest(token)

        async def work(coordinator: Coordinator) -> views.BoundView:
            log, start = await coordinator.read(
                lambda queue: (queue.settings.log, queue.settings.start)
            )
            access = await self._access.make(
                log,
                Holder.flow(flow_id, coordinator.queue_id, key_id),
                lambda: coordinator.submit(Submission(command, token_hash=token_hash)),
                lambda: self.unbind(name, flow_id),
            )
            self._rows.remember(flow_id, coordinator.queue_id, token_hash)
            return views.BoundView(
                flow_id=flow_id,
                flow_token=token,
                queue_id=coordinator.queue_id,
                lease_seconds=lease_seconds,
                log=log,
                start=start,
                log_access=access,
                update=await self._updates.view(coordinator, flow_id),
            )

        return await self._queues.on(name, work)

    async def authenticate(self, name: str, flow_id: str, token: str) -> None:
        """Checks that the token is this flow's.

        Raises Unauthorized, Forbidden, FlowGone, FlowNotFound.
        """
        known, reason = self._rows.known_token(flow_id), None
        if known is None:
            row = await self._rows.row(flow_id)
            if row is None:
                raise await self._rows.missing(name, flow_id)
            known, reason = (row.queue_id, row.token_hash), row.reason
            if reason is None:
                self._rows.remember(flow_id, *known)
        queue_id, token_hash = known
        await self._rows.of_queue(name, flow_id, queue_id)
        if not token:
            raise Unauthorized("Send 'Authorization: Bearer <flow_token>' with the token of bind.")
        if not hmac.compare_digest(digest(token), token_hash):
            raise Forbidden(
                "This token is not this flow's; use the flow_token that its bind answered."
            )
        if reason is not None:
            raise FlowGone(flow_id, reason)

    async def unbind(
        self, name: str, flow_id: str, caller: Caller | None = None, reason: str | None = None
    ) -> None:
        """Unbinds the flow unless it has left already. Raises QueueNotFound, FlowNotFound.

        `caller` None: the flow itself. `reason`: what is recorded instead of `unbound`.
        """
        act = act_on_flow(caller, "unbind", name, flow_id)
        shown = partial(shown_flow, flow_id)
        command = c.Unbind(flow_id, reason or "unbound")
        try:
            await self._queues.submit(name, lambda: Submission(command, act=act, shown=shown))
        except FlowNotFound:
            row = await self._rows.row(flow_id)
            if row is None or row.reason is None or not await self._rows.is_of(name, row):
                raise
        self._rows.forget(flow_id)

    async def heartbeat(self, name: str, flow_id: str) -> views.HeartbeatView:
        """Renews the lease. Raises FlowGone, FlowNotFound."""
        lease = await self._rows.renew(name, flow_id)
        return views.HeartbeatView(lease.expires_at, lease.view_revision)

    # Working

    async def _check_positions(
        self, flow_id: str, items: Sequence[Positioned], coordinator: Coordinator
    ) -> None:
        await refuse_positions(coordinator, [item.position for item in items])
        await refuse_far(coordinator, self._reach, flow_id, items)

    async def commit(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.CommitItem]
    ) -> views.ResultsView:
        """Commits positions. Raises FlowGone, FlowNotFound, Invalid."""
        refuse_repetitions([item.partition for item in items])

        async def work(coordinator: Coordinator) -> views.ResultsView:
            await self._check_positions(flow_id, items, coordinator)
            queue_id = coordinator.queue_id
            shown = await coordinator.read(partial(_in_view, flow_id))
            results: list[c.Result] = []
            taken: list[CommittedPosition] = []
            positions: Positions = {}
            async for some in pieces(items):
                commits = [
                    PositionCommit(queue_id, flow_id, seq, one.partition, one.epoch, one.position)
                    for one in some
                ]
                # The last piece sees what all have committed.
                is_last = len(results) + len(some) == len(items)
                done, positions = await self._commit_all(flow_id, commits, shown if is_last else ())
                results += done
                taken += [
                    CommittedPosition(one.partition, one.epoch, one.position, one.reached_cut)
                    for one, result in zip(some, done, strict=True)
                    if result.outcome is c.Outcome.OK
                ]
            await self._cuts.reached(coordinator, taken)
            if not taken:
                # Check that it is bound.
                await self._rows.renew(name, flow_id)
            return await self._results(coordinator, flow_id, results, positions)

        return await self._queues.on(name, work)

    async def release(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.ReleaseItem]
    ) -> views.ResultsView:
        """Commits positions and releases partitions, of each item both or neither.

        Raises FlowGone, FlowNotFound, Invalid.
        """
        refuse_repetitions([item.partition for item in items])
        await self._queues.on(name, partial(self._check_positions, flow_id, items))
        committed = [
            CommittedPosition(item.partition, item.epoch, item.position, item.reached_cut)
            for item in items
        ]
        reaching = await self._queues.on(name, lambda one: self._cuts.reaching(one, committed))

        def asked(some: Sequence[views.ReleaseItem]) -> Submission:
            released = tuple(
                c.ReleaseItem(one.partition, one.epoch, one.finished, reaching.get(one.partition))
                for one in some
            )
            positions = {one.partition: one.position for one in some}
            command = c.Release(flow_id, released)
            return Submission(command, renews=flow_id, seq=seq, released=positions)

        return await self._work(name, flow_id, [partial(asked, some) for some in slices(items)])

    async def children(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.ChildrenItem]
    ) -> views.ResultsView:
        """Reports what comes after partitions and finishes them, of each item all or nothing.

        Raises FlowGone, FlowNotFound, Invalid (also for a fixed queue).
        """
        refuse_repetitions([item.partition for item in items])
        begins = {
            f"partitions.{nth}.children.{place}.position": (child.partition, child.position)
            for nth, item in enumerate(items)
            for place, child in enumerate(item.children)
        }
        await self._queues.on(name, partial(self._check_positions, flow_id, items))
        await self._queues.on(name, lambda queue: refuse_begins(queue, self._reach, begins))

        def asked(some: Sequence[views.ChildrenItem]) -> Submission:
            reports = tuple(
                c.ChildrenItem(
                    item.partition, item.epoch, tuple(map(new_child, item.children)), item.finished
                )
                for item in some
            )
            positions = {item.partition: item.position for item in some}
            command = c.Children(flow_id, reports)
            return Submission(command, renews=flow_id, seq=seq, released=positions)

        return await self._work(name, flow_id, [partial(asked, some) for some in slices(items)])

    async def ready(
        self, name: str, flow_id: str, items: Sequence[views.ReadyItem]
    ) -> views.ResultsView:
        """Reports finished warm-ups. Raises FlowGone, FlowNotFound."""
        refuse_repetitions([item.partition for item in items])

        def asked(some: Sequence[views.ReadyItem]) -> Submission:
            ready = tuple(c.ReadyItem(one.partition, one.epoch) for one in some)
            return Submission(c.Ready(flow_id, ready), renews=flow_id)

        return await self._work(name, flow_id, [partial(asked, some) for some in slices(items)])

    async def drain(
        self,
        name: str,
        flow_id: str,
        timeout_seconds: float | None,
        caller: Caller | None = None,
    ) -> views.UpdateView:
        """Begins to hand over all partitions of the flow. Raises FlowGone, FlowNotFound.

        `caller` None: the flow itself. An administrator's call is no sign of life of the flow, so
        it does not renew the lease (the contract, *Flow*).
        """
        command = c.Drain(flow_id, timeout_seconds)
        act = act_on_flow(caller, "drain", name, flow_id)
        renews = flow_id if act is None else None
        shown = partial(shown_flow, flow_id)
        ask = partial(Submission, command, renews=renews, act=act, shown=shown)
        done = await self._work(name, flow_id, [ask])
        return done.update

    async def _work(
        self, name: str, flow_id: str, asks: Sequence[Callable[[], Submission]]
    ) -> views.ResultsView:
        """The results of all that is asked, in order; a large call is several asks. As many of them
        wait together as one transaction takes.
        """

        async def work(coordinator: Coordinator) -> views.ResultsView:
            results: list[c.Result] = []
            try:
                for first in range(0, len(asks), SLICES_AT_ONCE):
                    some = [
                        coordinator.enqueue(ask()) for ask in asks[first : first + SLICES_AT_ONCE]
                    ]
                    for answer in await all_of(some):
                        results += answer or ()
            except FlowNotFound:
                raise await self._rows.missing(name, flow_id) from None
            return await self._results(coordinator, flow_id, results)

        return await self._queues.on(name, work)

    async def _results(
        self,
        coordinator: Coordinator,
        flow_id: str,
        results: Sequence[c.Result],
        positions: Positions | None = None,
    ) -> views.ResultsView:
        """`positions`: if some are known already."""
        shown: list[views.Result] = []
        async for some in pieces(results):
            shown += [views.Result(r.partition, r.outcome.value, r.current_epoch) for r in some]
        view = await self._updates.view(coordinator, flow_id, positions=positions)
        return views.ResultsView(tuple(shown), view)

    async def _commit_all(
        self, flow_id: str, commits: Sequence[PositionCommit], shown: Collection[int]
    ) -> tuple[Sequence[c.Result], Positions]:
        """One result for each, and the positions of the partitions in `shown`; rows held by another
        transaction are asked for again.
        """
        results: dict[int, c.Result] = {}
        positions: Positions = {}

        async def ask() -> Sequence[c.Result] | RowLocked:
            nonlocal positions
            left = [place for place in range(len(commits)) if place not in results]
            if left:
                call = _Call([commits[place] for place in left], shown)
                answers, positions = await self._commits.ask(call)
                results.update(
                    (place, answer)
                    for place, answer in zip(left, answers, strict=True)
                    if answer is not None
                )
            found = [results[place] for place in range(len(commits)) if place in results]
            return found if len(found) == len(commits) else RowLocked.LOCKED

        return await self._queues.replica.renewals.until_free(flow_id, ask), positions

    async def _commit_many(self, calls: Sequence[_Call]) -> Sequence[_Done]:
        """Commits of several flows in one transaction; two of the same flow go one after the
        other.
        """
        self._queues.replica.tally.commit_batch.observe(len(calls))
        answers = [_Done((), {})] * len(calls)
        waiting = list(enumerate(calls))
        while waiting:
            seen: set[str] = set()
            later: list[tuple[int, _Call]] = []
            now: list[tuple[int, _Call]] = []
            for place, call in waiting:
                flow_id = call.commits[0].flow_id
                (later if flow_id in seen else now).append((place, call))
                seen.add(flow_id)
            commits = [item for _, call in now for item in call.commits]
            shown = {key for _, call in now for key in call.keys}
            results, positions = await self._queues.store.commit_positions(commits, shown)
            following = iter(results)
            for place, call in now:
                told = {key[1]: positions[key] for key in call.keys if key in positions}
                answers[place] = _Done([next(following) for _ in call.commits], told)
            waiting = later
        return answers


def new_child(child: views.NewChild) -> c.NewChild:
    """A reported child as the core takes it."""
    return c.NewChild(child.key, child.parents, child.partition, child.position)


def _in_view(flow_id: str, queue: Queue) -> Collection[int]:
    """The partitions in a flow's view, unless there are very many."""
    flow = queue.flows.get(flow_id)
    numbers = () if flow is None else needed_positions(flow)
    return numbers if len(numbers) <= BIG_VIEW else ()
