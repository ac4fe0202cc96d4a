"""The calls of flows: bind, follow the view, commit, release, leave.

Renewals and commits touch rows only and go out in batches; what changes the assignment goes through
the queue's mailbox. A flow's view is read from the queue in memory, its positions from the store: a
position goes with an epoch, and a view is told only if both are of the same epoch.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from broker import views
from broker.batches import Batcher
from broker.calls import Calls
from broker.coordinator import UNAVAILABLE, Coordinator
from broker.core import commands as c
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    QueueNotFound,
    Unauthorized,
    Unavailable,
)
from broker.core.queue import Queue
from broker.loghouse import Loghouse
from broker.rendering import update_view
from broker.replica import Replica
from broker.store.ports import FlowRow, Lease, PositionCommit, StoreUnavailable
from broker.turns import Ask

MOST_KNOWN_TOKENS = 100_000


class FlowCalls(Calls):
    """The part of the facade that consumers use."""

    def __init__(self, replica: Replica, loghouse: Loghouse) -> None:
        super().__init__(replica, loghouse)
        self._tokens: dict[str, tuple[str, bytes]] = {}
        self._renewals: Batcher[str, Lease | None] = Batcher(self._renew_many)
        self._commits: Batcher[Sequence[PositionCommit], Sequence[c.Result]] = Batcher(
            self._commit_many, most=100
        )
        self._positions: Batcher[tuple[str, Sequence[int]], dict[int, tuple[int, str | None]]] = (
            Batcher(self._positions_of_many)
        )

    async def bind(
        self,
        name: str,
        client_name: str,
        instance_id: str | None,
        lease_seconds: float,
        warmup: bool,
    ) -> views.BoundView:
        """Binds a flow.

        Raises QueueNotFound, Unavailable, and FlowGone if the same instance was bound again at the
        same time.
        """
        flow_id, token = str(uuid4()), secrets.token_urlsafe(32)
        command = c.Bind(flow_id, instance_id or str(uuid4()), client_name, lease_seconds, warmup)
        digest = hashlib.sha256(token.encode()).digest()

        async def work(coordinator: Coordinator) -> views.BoundView:
            log, start = await coordinator.read(
                lambda queue: (queue.settings.log, queue.settings.start)
            )
            # First what may fail: a bind that cannot be answered would be bound again and again.
            access = await self._loghouse.access(log, "read")
            await coordinator.ask(Ask(command, token_hash=digest))
            self._remember(flow_id, coordinator.queue_id, digest)
            return views.BoundView(
                flow_id=flow_id,
                flow_token=token,
                lease_seconds=lease_seconds,
                log=log,
                start=start,
                log_access=access,
                update=await self._view(coordinator, flow_id),
            )

        return await self._on(name, work)

    async def authenticate(self, name: str, flow_id: str, token: str) -> None:
        """Checks that the token is this flow's.

        Raises Unauthorized, Forbidden, FlowGone, FlowNotFound.
        """
        known, reason = self._tokens.get(flow_id), None
        if known is None:
            row = await self._row(flow_id)
            if row is None:
                raise await self._missing(name, flow_id)
            known, reason = (row.queue_id, row.token_hash), row.reason
            if reason is None:
                self._remember(flow_id, *known)
        queue_id, digest = known
        await self._of_queue(name, flow_id, queue_id)
        if not token:
            raise Unauthorized("Send 'Authorization: Bearer <flow_token>' with the token of bind.")
        if not hmac.compare_digest(hashlib.sha256(token.encode()).digest(), digest):
            raise Forbidden(
                "This token is not this flow's; use the flow_token that its bind answered."
            )
        if reason is not None:
            raise FlowGone(flow_id, reason)

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

    async def unbind(self, name: str, flow_id: str, reason: str = "unbound") -> None:
        """Unbinds the flow; nothing if it has left already. Raises QueueNotFound, FlowNotFound."""
        try:
            await self._ask(name, lambda: Ask(c.Unbind(flow_id, reason)))
        except FlowNotFound:
            row = await self._row(flow_id)
            if row is None or row.reason is None or not await self._is_of(name, row):
                raise
        self._tokens.pop(flow_id, None)

    # Following the view

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

    # Working

    async def commit(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.CommitItem]
    ) -> views.ResultsView:
        """Commits positions. Raises FlowGone, FlowNotFound."""
        _refuse_repetitions([item.partition for item in items])

        async def work(coordinator: Coordinator) -> views.ResultsView:
            queue_id = coordinator.queue_id
            commits = [
                PositionCommit(queue_id, flow_id, seq, item.partition, item.epoch, item.position)
                for item in items
            ]
            results = await self._commits.ask(commits) if commits else ()
            if all(result.outcome is not c.Outcome.OK for result in results):
                # Is it bound at all?
                await self._renew(name, flow_id)
            return await self._results(coordinator, flow_id, results)

        return await self._on(name, work)

    async def release(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.ReleaseItem]
    ) -> views.ResultsView:
        """Commits positions and lets partitions go, atomically. Raises FlowGone, FlowNotFound."""
        _refuse_repetitions([item.partition for item in items])
        command = c.Release(
            flow_id, tuple(c.Let(item.partition, item.epoch, item.finished) for item in items)
        )
        positions = {item.partition: item.position for item in items}
        return await self._work(
            name, flow_id, lambda: Ask(command, renews=flow_id, seq=seq, released=positions)
        )

    async def ready(
        self, name: str, flow_id: str, items: Sequence[views.ReadyItem]
    ) -> views.ResultsView:
        """Says that warm-ups are done. Raises FlowGone, FlowNotFound."""
        _refuse_repetitions([item.partition for item in items])
        command = c.Ready(flow_id, tuple(c.Warm(item.partition, item.epoch) for item in items))
        return await self._work(name, flow_id, lambda: Ask(command, renews=flow_id))

    async def drain(
        self, name: str, flow_id: str, timeout_seconds: float | None, by_flow: bool = True
    ) -> views.UpdateView:
        """Begins to hand over all that the flow owns. Raises FlowGone, FlowNotFound.

        An administrator's call (not `by_flow`) says nothing about whether the flow lives, so it
        does not renew the lease (the contract, *Flow*).
        """
        command = c.Drain(flow_id, timeout_seconds)
        renews = flow_id if by_flow else None
        done = await self._work(name, flow_id, lambda: Ask(command, renews=renews))
        return done.update

    async def _work(self, name: str, flow_id: str, make: Callable[[], Ask]) -> views.ResultsView:
        async def work(coordinator: Coordinator) -> views.ResultsView:
            try:
                results = await coordinator.ask(make())
            except FlowNotFound:
                raise await self._missing(name, flow_id) from None
            return await self._results(coordinator, flow_id, results or ())

        return await self._on(name, work)

    async def _results(
        self, coordinator: Coordinator, flow_id: str, results: Sequence[c.Result]
    ) -> views.ResultsView:
        return views.ResultsView(
            tuple(
                views.Result(result.partition, result.outcome.value, result.current_epoch)
                for result in results
            ),
            await self._view(coordinator, flow_id),
        )

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

        def bare(queue: Queue) -> views.UpdateView | None:
            flow = queue.flows.get(flow_id)
            return None if flow is None else update_view(queue, flow, {}, self._replica.clock.now())

        while True:
            view = await coordinator.read(bare, fresh=fresh)
            if view is None and not fresh:
                fresh = True
                continue
            if view is None:
                raise await self._missing(coordinator.name, flow_id)
            if not view.partitions:
                return view
            numbers = [partition.partition for partition in view.partitions]
            positions = await self._positions_of(coordinator.queue_id, numbers)
            if all(
                positions.get(seen.partition, (None, None))[0] == seen.epoch
                for seen in view.partitions
            ):
                return replace(
                    view,
                    partitions=tuple(
                        replace(seen, position=positions[seen.partition][1])
                        for seen in view.partitions
                    ),
                )
            fresh = True

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
        try:
            lease = await self._renewals.ask(flow_id)
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        if lease is None:
            raise await self._missing(name, flow_id)
        return lease

    async def _renew_many(self, flow_ids: Sequence[str]) -> Sequence[Lease | None]:
        leases = await self._store.renew(sorted(set(flow_ids)))
        return [leases.get(flow_id) for flow_id in flow_ids]

    async def _commit_many(
        self, calls: Sequence[Sequence[PositionCommit]]
    ) -> Sequence[Sequence[c.Result]]:
        """Commits of several flows in one transaction; two of the same flow go one after the
        other.
        """
        answers: list[Sequence[c.Result]] = [()] * len(calls)
        waiting = list(enumerate(calls))
        while waiting:
            seen: set[str] = set()
            later: list[tuple[int, Sequence[PositionCommit]]] = []
            now: list[tuple[int, Sequence[PositionCommit]]] = []
            for place, call in waiting:
                flow_id = call[0].flow_id
                (later if flow_id in seen else now).append((place, call))
                seen.add(flow_id)
            try:
                flat = await self._store.commit_positions(
                    [item for _, call in now for item in call]
                )
            except StoreUnavailable:
                raise Unavailable(UNAVAILABLE) from None
            results = iter(flat)
            for place, call in now:
                answers[place] = [next(results) for _ in call]
            waiting = later
        return answers

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

    def _remember(self, flow_id: str, queue_id: str, digest: bytes) -> None:
        if len(self._tokens) >= MOST_KNOWN_TOKENS:
            self._tokens.clear()
        self._tokens[flow_id] = (queue_id, digest)


def _refuse_repetitions(numbers: Sequence[int]) -> None:
    if len(set(numbers)) == len(numbers):
        return
    number, _ = Counter(numbers).most_common(1)[0]
    raise Invalid(
        f"Partition {number} is named more than once; name each partition once per call.",
        [("partitions", f"names {number} more than once")],
    )
