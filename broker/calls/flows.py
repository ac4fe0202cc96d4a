"""The calls that change which flows a queue has, and what they own: bind, release, drain, unbind.

They are commands, which go through the queue's mailbox.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Sequence
from functools import partial
from uuid import uuid4

from broker.calls.access import QueueAccess, act_on_flow, shown_flow
from broker.calls.bound_flows import BoundFlow, BoundFlows
from broker.calls.cuts import CutCalls
from broker.calls.ends import LogEnds
from broker.calls.flow_views import FlowViews
from broker.calls.items import refuse_begins, refuse_items, refuse_repetitions
from broker.calls.previews import PreviewCalls
from broker.calls.rendering import log_access, results_view
from broker.calls.times import time_of
from broker.core import commands as c
from broker.core.access import Caller, digest
from broker.core.errors import FlowGone, FlowNotFound, QueueNotFound
from broker.logs.bind_access import BindAccess
from broker.logs.ports import Holder, Logs
from broker.logs.positions import Reach
from broker.replica.coordinator import Coordinator
from broker.replica.transaction import Submission
from counterpoise import wire


class FlowCalls:
    """The calls of consumers, and of administrators on them."""

    def __init__(
        self,
        queues: QueueAccess,
        logs: Logs,
        bound: BoundFlows,
        views: FlowViews,
        cuts: CutCalls,
        ends: LogEnds,
        reach: Reach,
        quota: c.Quota | None,
        previews: PreviewCalls,
    ) -> None:
        """`quota` is what each key may do in a queue; None: whatever it likes."""
        self._queues = queues
        self._access = BindAccess(logs)
        self._bound = bound
        self._views = views
        self._cuts = cuts
        self._ends = ends
        self._reach = reach
        self._quota = quota
        self._previews = previews

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
        at_once: bool = False,
        keeps_state: bool = False,
        weight: int = 1,
        max_partitions: int | None = None,
    ) -> wire.Bound:
        """Binds a flow, with the key of this id.

        Raises Invalid, QueueNotFound, Unavailable, Overtaken, StateKept, TooManyFlows, and FlowGone
        if the same instance was bound again at the same time.
        """
        command = c.Bind(
            str(uuid4()),
            instance_id or str(uuid4()),
            client_name,
            lease_seconds,
            warmup,
            binder,
            attempt,
            key_id,
            self._quota,
            at_once,
            keeps_state,
            weight,
            max_partitions,
        )
        coordinator = await self._queues.replica.coordinator(name)
        try:
            return await self._bind(coordinator, command)
        except QueueNotFound:
            again = await self._queues.again(coordinator)
        return await self._bind(again, command)

    async def _bind(self, coordinator: Coordinator, command: c.Bind) -> wire.Bound:
        flow_id, token = command.flow_id, secrets.token_urlsafe(32)
        token_hash = digest(token)
        log = await coordinator.read(lambda queue: queue.settings.log)
        access = await self._access.make(
            log,
            Holder.flow(flow_id, coordinator.queue_id, command.key_id),
            lambda: coordinator.submit(Submission(command, token_hash=token_hash)),
            lambda: self.unbind(coordinator.name, flow_id),
        )
        self._bound.remember(flow_id, coordinator.queue_id, token_hash)
        return wire.Bound(
            flow_id=flow_id,
            flow_token=token,
            queue_id=coordinator.queue_id,
            lease_seconds=command.lease_seconds,
            log=log,
            log_access=log_access(access),
            update=await self._views.view(BoundFlow(coordinator, flow_id)),
        )

    async def unbind(
        self,
        name: str,
        flow_id: str,
        caller: Caller | None = None,
        reason: str | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.Preview | None:
        """Unbinds the flow unless it has left already. Raises QueueNotFound, FlowNotFound.

        `caller` None: the flow itself. `reason`: what is recorded instead of `unbound`. `dry_run`:
        changes nothing, and says what would come of it.
        """
        act = act_on_flow(caller, "unbind", name, flow_id)
        shown = partial(shown_flow, flow_id)
        command = c.Unbind(flow_id, reason or "unbound")
        try:
            if dry_run:
                return await self._previews.of(name, command)
            await self._queues.submit(name, lambda: Submission(command, act=act, shown=shown))
        except FlowNotFound:
            error = await self._bound.missing(name, flow_id)
            if not isinstance(error, FlowGone):
                raise error from None
            if dry_run:
                return await self._previews.of(name, None)
        self._bound.forget(flow_id)
        return None

    async def heartbeat(self, flow: BoundFlow) -> wire.Heartbeat:
        """Renews the lease. Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable."""
        lease = await self._bound.renew(flow)
        return wire.Heartbeat(time_of(lease.expires_at), lease.view_revision)

    async def release(
        self, flow: BoundFlow, seq: int | None, items: Sequence[c.ReleaseItem]
    ) -> wire.Results:
        """Commits positions and releases partitions, of each item both or neither. That one is
        finished is compared with the log.

        Raises FlowGone, FlowNotFound, QueueNotFound, Invalid, Unavailable.
        """

        async def released() -> c.Release:
            await refuse_items(flow, self._reach, items)
            reaching = await self._cuts.reaching(flow.coordinator, items)
            known = await self._ends.of_releases(flow.coordinator, reaching)
            return c.Release(flow.flow_id, tuple(known))

        return await self._report(flow, released(), seq)

    async def children(
        self, flow: BoundFlow, seq: int | None, items: Sequence[c.ChildrenItem]
    ) -> wire.Results:
        """Reports what comes after partitions and finishes them, of each item all or nothing. Both
        are compared with the log.

        Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable, Invalid (also for a fixed queue).
        """
        begins = {
            f"partitions.{nth}.children.{place}.position": child
            for nth, item in enumerate(items)
            for place, child in enumerate(item.children)
        }

        async def reported() -> c.Children:
            await refuse_items(flow, self._reach, items)
            await refuse_begins(flow, self._reach, begins)
            known = await self._ends.of_reports(flow.coordinator, items)
            return c.Children(flow.flow_id, tuple(known))

        return await self._report(flow, reported(), seq)

    async def ready(self, flow: BoundFlow, items: Sequence[c.ReadyItem]) -> wire.Results:
        """Reports finished warm-ups. Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable."""

        refuse_repetitions([item.partition for item in items])
        return await self._work(
            flow, Submission(c.Ready(flow.flow_id, tuple(items)), renews=flow.flow_id)
        )

    async def drain(
        self,
        flow: BoundFlow,
        timeout_seconds: float | None,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.Update | wire.Preview:
        """Begins to hand over all partitions of the flow. Raises FlowGone, FlowNotFound,
        QueueNotFound, Unavailable.

        `caller` None: the flow itself. An administrator's call is no sign of life of the flow, so
        it does not renew the lease (the contract, *Flow*). Nor does a `dry_run`, which changes
        nothing, and says what would move.
        """
        coordinator, flow_id = flow
        command = c.Drain(flow_id, timeout_seconds)
        if dry_run:
            try:
                return await self._previews.of(coordinator.name, command)
            except FlowNotFound:
                raise await self._bound.missing(coordinator.name, flow_id) from None
        act = act_on_flow(caller, "drain", coordinator.name, flow_id)
        renews = flow_id if act is None else None
        shown = partial(shown_flow, flow_id)
        submission = Submission(command, renews=renews, act=act, shown=shown)
        _, view = await self._done(flow, submission)
        return view

    async def _report(
        self, flow: BoundFlow, command: Awaitable[c.Release | c.Children], seq: int | None
    ) -> wire.Results:
        """As `_work`, of a command that is made by what the log and the queue say."""
        try:
            made = await command
        except (FlowNotFound, QueueNotFound):
            raise await self._bound.missing(flow.coordinator.name, flow.flow_id) from None
        return await self._work(flow, Submission(made, renews=flow.flow_id, seq=seq))

    async def _work(self, flow: BoundFlow, submission: Submission) -> wire.Results:
        """The answer to a flow's command."""
        return results_view(*await self._done(flow, submission))

    async def _done(
        self, flow: BoundFlow, submission: Submission
    ) -> tuple[Sequence[c.Result], wire.Update]:
        """The results of a flow's command, and its view after it."""
        coordinator, flow_id = flow
        try:
            results = await coordinator.submit(submission)
            return results or (), await self._views.view(flow)
        except (FlowNotFound, QueueNotFound):
            raise await self._bound.missing(coordinator.name, flow_id) from None
