"""The calls of administrators: queues and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any
from uuid import uuid4

from broker import views
from broker.coordinator import UNAVAILABLE
from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import Invalid, QueueExists, QueueInUse, QueueNotFound, Unavailable
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.records import Entry
from broker.core.replay import replay_all
from broker.core.transitions import State
from broker.log_calls import LogCalls
from broker.loghouse import has_owner, leads
from broker.logs import Owner
from broker.outside_logs import check_log
from broker.rendering import (
    queue_view,
)
from broker.store.ports import Commit, FlowsBound, NameTaken, QueueGone, StoreUnavailable
from broker.turns import Ask

_WRITABLE = frozenset(field.name for field in fields(Settings)) - {"partitioning"}


class QueueCalls(LogCalls):
    """The part of the facade that administers queues."""

    # Queues

    async def create_queue(self, spec: views.QueueSpec) -> views.QueueView:
        """Creates a queue. Raises QueueExists, Invalid, Unavailable."""
        log = spec.log or f"builtin:{spec.name}"
        check_log(log)
        if await self._found(spec.name):
            raise QueueExists(spec.name)
        owner = await self._owner(log, but=spec.name)
        settings = Settings(
            partition_count=await self._first_count(spec, log, owner),
            access_type=spec.access_type,
            rebalance_delay=spec.rebalance_delay,
            max_handoff_time=spec.max_handoff_time,
            max_warmup_time=spec.max_warmup_time,
            max_concurrent_handoffs=spec.max_concurrent_handoffs,
            log=log,
            start=spec.start,
        )
        now = self._replica.clock.now()
        queue = Queue(str(uuid4()), spec.name, settings, now)
        added = r.PartitionsAdded(0, settings.partition_count, now)
        replay_all(queue, (added,), 1)
        queue.growing = False
        # What was before it does not concern it.
        queue.outage_seen = self._replica.clock.outage_id
        entry = Entry(1, now, (added,), commit_id=uuid4().hex)
        try:
            await self._store.create(
                Commit(queue, 0, entry.commit_id, (entry,), partitions=queue.partitions)
            )
        except NameTaken:
            raise QueueExists(spec.name) from None
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        if has_owner(log) and owner is None:
            try:
                await self._loghouse.make(
                    log, settings.partition_count, Owner(queue.id, queue.created_at, queue.name)
                )
            except BaseException:
                with suppress(StoreUnavailable, QueueGone):
                    await self._store.delete(queue.id, force=True)
                raise
        view = queue_view(queue)
        self._replica.adopt(queue)
        return view

    async def _first_count(
        self, spec: views.QueueSpec, log: str, owner: views.QueueView | None
    ) -> int:
        """The partition count of a new queue: what it says, or that of what it follows."""
        if leads(log):
            whose, count = "the topic", await self._loghouse.partition_count(log)
        elif owner is not None:
            whose, count = f"the queue {owner.name!r}", owner.partition_count
        elif spec.partition_count is None:
            raise Invalid(
                "Say how many partitions the queue is to have.",
                [("partition_count", "is required")],
            )
        else:
            return spec.partition_count
        if spec.partition_count not in (None, count):
            raise Invalid(
                f"A queue that reads the log of {whose} has its partition count, {count}; "
                "leave it out.",
                [("partition_count", f"is {count}, that of {whose}")],
            )
        return count

    async def _found(self, name: str) -> bool:
        try:
            return await self._store.find(name) is not None
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None

    async def change_queue(
        self, name: str, changes: Mapping[str, object], discard: bool
    ) -> views.QueueView:
        """Changes settings.

        Raises QueueNotFound, Invalid, QueueInUse for the log of a queue with flows.
        """
        unknown = sorted(set(changes) - _WRITABLE)
        if unknown:
            raise Invalid(
                f"{unknown[0]!r} cannot be changed.",
                [(field, "cannot be changed") for field in unknown],
            )
        before = await self.queue(name)
        if changes.get("partition_count", before.partition_count) != before.partition_count:
            await self._refuse_resize_of_follower(before)
        if changes.get("log", before.log) != before.log:
            raise Invalid(
                "The log of a queue cannot be changed: its positions would mean nothing there; "
                "create another queue.",
                [("log", "cannot be changed")],
            )
        await self._change(name, changes, discard)
        return await self.queue(name)

    async def _change(self, name: str, changes: Mapping[str, Any], discard: bool) -> None:
        """Carries out a change, and what follows from it in the log and its other readers.

        A discard is part of a resize. It deletes what any removed partition holds, so repeating one
        that was cut short makes up for it.
        """

        def look(queue: Queue) -> tuple[Owner, str, int, int, list[int]]:
            removed = [p.number for p in queue.partitions if p.state is State.REMOVED]
            of = Owner(queue.id, queue.created_at, queue.name)
            return of, queue.settings.log, queue.settings.partition_count, queue.revision, removed

        await self._ask(name, lambda: Ask(c.Change(changes, discard)))
        owner, log, count, revision, removed = await self._read(name, look, fresh=False)
        if "partition_count" not in changes or not await self._owns(name, log):
            return
        await self._loghouse.resized(log, owner, count, revision, removed if discard else ())
        for follower in await self._followers(name, log):
            await self._follow(follower, count, discard)

    async def delete_queue(self, name: str, force: bool) -> None:
        """Deletes a queue, and the log it owns. Raises QueueNotFound, QueueInUse."""
        before = await self.queue(name)
        owns = await self._owns(name, before.log)
        followers = await self._followers(name, before.log) if owns else []
        if followers:
            raise QueueInUse(
                f"The queue {followers[0]!r} reads the log of {name!r}; delete that queue first."
            )
        coordinator = await self._replica.coordinator(name)
        try:
            await self._store.delete(coordinator.queue_id, force=force)
        except FlowsBound:
            raise QueueInUse(
                "Flows are bound to this queue; stop them first, or delete with ?force=true."
            ) from None
        except QueueGone:
            raise QueueNotFound(name) from None
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        finally:
            coordinator.catch_up()
            self._replica.forget_name(name)
        self._replica.notify(coordinator.queue_id)
        if owns:
            await self._loghouse.drop(before.log, Owner(before.id, before.created_at, name))

    async def rebalance_now(self, name: str) -> views.RebalanceStatusView:
        """Rebalances at once, ending any holddown. Raises QueueNotFound."""
        await self._ask(name, lambda: Ask(c.RebalanceNow()))
        return await self.rebalance_status(name)
