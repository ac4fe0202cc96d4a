"""The calls of flows: bind, renew, commit, release, drain, unbind.

Commits only touch rows and go out in batches; calls that change the assignment go through the
queue's mailbox.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from broker.calls import views
from broker.calls.access import QueueAccess, act_of
from broker.calls.flow_rows import FlowRows, Held
from broker.calls.updates import UpdateCalls
from broker.core import commands as c
from broker.core.access import Caller, digest
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    Unauthorized,
)
from broker.core.state.queue import Queue
from broker.logs.ports import Holder, Logs
from broker.logs.positions import refuse_invalid, surely_valid
from broker.mailbox.batches import Batcher
from broker.mailbox.coordinator import Coordinator
from broker.mailbox.turns import Ask, slices
from broker.store.key_ports import Act
from broker.store.ports import PositionCommit


class FlowCalls:
    """The calls of consumers."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, rows: FlowRows, updates: UpdateCalls
    ) -> None:
        self._queues = queues
        self._logs = logs
        self._rows = rows
        self._updates = updates
        self._commits: Batcher[Sequence[PositionCommit], Sequence[c.Result | None]] = Batcher(
            self._commit_many, most=100
        )

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
            # Steps that may fail come first: a bind without an answer would be repeated for ever.
            holder = Holder.flow(flow_id, coordinator.queue_id, key_id)
            access = await self._logs.access(log, "read", holder)
            await coordinator.ask(Ask(command, token_hash=token_hash))
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

    async def unbind(self, name: str, flow_id: str, caller: Caller | None = None) -> None:
        """Unbinds the flow unless it has left already. Raises QueueNotFound, FlowNotFound.

        `caller` None: the flow itself.
        """
        act = _act_on(caller, "unbind", name, flow_id)
        shown = partial(_shown, flow_id)
        try:
            await self._queues.ask(name, lambda: Ask(c.Unbind(flow_id), act=act, shown=shown))
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

    async def commit(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.CommitItem]
    ) -> views.ResultsView:
        """Commits positions. Raises FlowGone, FlowNotFound, Invalid."""
        _refuse_repetitions([item.partition for item in items])

        async def work(coordinator: Coordinator) -> views.ResultsView:
            await _refuse_positions(coordinator, [item.position for item in items])
            queue_id = coordinator.queue_id
            commits = [
                PositionCommit(queue_id, flow_id, seq, item.partition, item.epoch, item.position)
                for item in items
            ]
            results = await self._commit_all(flow_id, commits)
            if all(result.outcome is not c.Outcome.OK for result in results):
                # Check that it is bound.
                await self._rows.renew(name, flow_id)
            return await self._results(coordinator, flow_id, results)

        return await self._queues.on(name, work)

    async def release(
        self, name: str, flow_id: str, seq: int | None, items: Sequence[views.ReleaseItem]
    ) -> views.ResultsView:
        """Commits positions and releases partitions, of each item both or neither.

        Raises FlowGone, FlowNotFound, Invalid.
        """
        _refuse_repetitions([item.partition for item in items])
        given = [item.position for item in items]
        await self._queues.on(name, lambda queue: _refuse_positions(queue, given))
        released = [c.ReleaseItem(item.partition, item.epoch, item.finished) for item in items]
        positions = {item.partition: item.position for item in items}
        asks = [
            partial(Ask, c.Release(flow_id, some), renews=flow_id, seq=seq, released=positions)
            for some in slices(released)
        ]
        return await self._work(name, flow_id, asks)

    async def ready(
        self, name: str, flow_id: str, items: Sequence[views.ReadyItem]
    ) -> views.ResultsView:
        """Reports finished warm-ups. Raises FlowGone, FlowNotFound."""
        _refuse_repetitions([item.partition for item in items])
        ready = [c.ReadyItem(item.partition, item.epoch) for item in items]
        asks = [partial(Ask, c.Ready(flow_id, some), renews=flow_id) for some in slices(ready)]
        return await self._work(name, flow_id, asks)

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
        act = _act_on(caller, "drain", name, flow_id)
        renews = flow_id if act is None else None
        shown = partial(_shown, flow_id)
        ask = partial(Ask, command, renews=renews, act=act, shown=shown)
        done = await self._work(name, flow_id, [ask])
        return done.update

    async def _work(
        self, name: str, flow_id: str, asks: Sequence[Callable[[], Ask]]
    ) -> views.ResultsView:
        """The results of all that is asked, one after the other; a large call is several asks."""

        async def work(coordinator: Coordinator) -> views.ResultsView:
            results: list[c.Result] = []
            try:
                for ask in asks:
                    results += await coordinator.ask(ask()) or ()
            except FlowNotFound:
                raise await self._rows.missing(name, flow_id) from None
            return await self._results(coordinator, flow_id, results)

        return await self._queues.on(name, work)

    async def _results(
        self, coordinator: Coordinator, flow_id: str, results: Sequence[c.Result]
    ) -> views.ResultsView:
        return views.ResultsView(
            tuple(
                views.Result(result.partition, result.outcome.value, result.current_epoch)
                for result in results
            ),
            await self._updates.view(coordinator, flow_id),
        )

    async def _commit_all(
        self, flow_id: str, commits: Sequence[PositionCommit]
    ) -> Sequence[c.Result]:
        """One result for each; rows held by another transaction are asked for again."""
        results: dict[int, c.Result] = {}

        async def ask() -> Sequence[c.Result] | Held:
            left = [place for place in range(len(commits)) if place not in results]
            if left:
                answers = await self._commits.ask([commits[place] for place in left])
                results.update(
                    (place, answer)
                    for place, answer in zip(left, answers, strict=True)
                    if answer is not None
                )
            if len(results) < len(commits):
                return Held.HELD
            return [results[place] for place in range(len(commits))]

        return await self._rows.until_free(flow_id, ask)

    async def _commit_many(
        self, calls: Sequence[Sequence[PositionCommit]]
    ) -> Sequence[Sequence[c.Result | None]]:
        """Commits of several flows in one transaction; two of the same flow go one after the
        other.
        """
        answers: list[Sequence[c.Result | None]] = [()] * len(calls)
        waiting = list(enumerate(calls))
        while waiting:
            seen: set[str] = set()
            later: list[tuple[int, Sequence[PositionCommit]]] = []
            now: list[tuple[int, Sequence[PositionCommit]]] = []
            for place, call in waiting:
                flow_id = call[0].flow_id
                (later if flow_id in seen else now).append((place, call))
                seen.add(flow_id)
            commits = [item for _, call in now for item in call]
            results = iter(await self._queues.store.commit_positions(commits))
            for place, call in now:
                answers[place] = [next(results) for _ in call]
            waiting = later
        return answers


async def _refuse_positions(coordinator: Coordinator, given: Sequence[str | None]) -> None:
    """Raises Invalid for what cannot be a position of the queue's log; `given` as in the call."""
    doubtful = {
        f"partitions.{place}.position": position
        for place, position in enumerate(given)
        if position is not None and not surely_valid(position)
    }
    if doubtful:
        refuse_invalid(await coordinator.read(lambda queue: queue.settings.log), doubtful)


def _act_on(caller: Caller | None, call: str, queue: str, flow_id: str) -> Act | None:
    """The call on a flow for the audit; None if it is the flow's own."""
    by_flow = caller is None or caller.flow_id is not None
    return None if by_flow else act_of(caller, call, queue, flow_id)


def _shown(flow_id: str, queue: Queue) -> Mapping[str, Any] | None:
    """A flow in the audit; None if it is not bound."""
    flow = queue.flows.get(flow_id)
    if flow is None:
        return None
    return {
        "client_name": flow.client_name,
        "instance_id": flow.instance_id,
        "key_id": flow.key_id,
        "partitions": len(flow.owned),
        "draining": flow.draining,
    }


def _refuse_repetitions(numbers: Sequence[int]) -> None:
    if len(set(numbers)) == len(numbers):
        return
    number, _ = Counter(numbers).most_common(1)[0]
    raise Invalid(
        f"Partition {number} is named more than once; name each partition once per call.",
        [("partitions", f"names {number} more than once")],
    )
