"""The calls of administrators: queues, their settings, positions and logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal
from uuid import uuid4

from broker import views
from broker.coordinator import UNAVAILABLE
from broker.core import commands as c
from broker.core import records as r
from broker.core.errors import Invalid, QueueExists, QueueInUse, QueueNotFound, Unavailable
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.replay import replay_all
from broker.core.transitions import State
from broker.loghouse import builtin_name
from broker.logs import Owner
from broker.overviews import DECIMAL, Overviews
from broker.rendering import (
    queue_row_view,
    queue_view,
)
from broker.store.ports import Commit, Entry, FlowsBound, NameTaken, QueueGone, StoreUnavailable
from broker.turns import Ask

_WRITABLE = frozenset(field.name for field in fields(Settings)) - {"partitioning"}


class QueueCalls(Overviews):
    """The part of the facade that administers queues."""

    # Queues

    async def create_queue(self, spec: views.QueueSpec) -> views.QueueView:
        """Creates a queue. Raises QueueExists, Invalid, Unavailable."""
        if await self._found(spec.name):
            raise QueueExists(spec.name)
        settings = Settings(
            partition_count=await self._first_count(spec),
            access_type=spec.access_type,
            rebalance_delay=spec.rebalance_delay,
            max_handoff_time=spec.max_handoff_time,
            max_warmup_time=spec.max_warmup_time,
            max_concurrent_handoffs=spec.max_concurrent_handoffs,
            log=spec.log or f"builtin:{spec.name}",
            start=spec.start,
        )
        now = self._replica.clock.now()
        queue = Queue(str(uuid4()), spec.name, settings, now)
        added = r.PartitionsAdded(0, settings.partition_count, now)
        replay_all(queue, (added,), 1)
        queue.growing = False
        # What was before it does not concern it.
        outage = self._replica.clock.outage
        queue.outage_seen = outage.id if outage else 0
        entry = Entry(1, now, (added,), commit_id=uuid4().hex)
        try:
            await self._store.create(
                Commit(queue, 0, entry.commit_id, (entry,), partitions=queue.partitions)
            )
        except NameTaken:
            raise QueueExists(spec.name) from None
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        if builtin_name(settings.log) == spec.name:
            try:
                await self._loghouse.make(
                    spec.name, settings.partition_count, Owner(queue.id, queue.created_at)
                )
            except Unavailable:
                with suppress(StoreUnavailable, QueueGone):
                    await self._store.delete(queue.id, force=True)
                raise
        view = queue_view(queue)
        self._replica.adopt(queue)
        return view

    async def _first_count(self, spec: views.QueueSpec) -> int:
        """The partition count of a new queue: what it says, or that of the queue whose log it
        reads.
        """
        source = builtin_name(spec.log or "")
        if source is None or source == spec.name:
            if spec.partition_count is None:
                raise Invalid(
                    "Say how many partitions the queue is to have.",
                    [("partition_count", "is required")],
                )
            return spec.partition_count
        try:
            owner = await self.queue(source)
        except QueueNotFound:
            raise Invalid(
                f"The log builtin:{source} belongs to the queue {source!r}, which does not exist; "
                "create that first.",
                [("log", f"names the queue {source!r}, which does not exist")],
            ) from None
        if builtin_name(owner.log) != source:
            raise Invalid(
                f"The queue {source!r} has no log of its own, it reads {owner.log}; name that log.",
                [("log", f"names the queue {source!r}, whose log is {owner.log}")],
            )
        count = owner.partition_count
        if spec.partition_count not in (None, count):
            raise Invalid(
                f"A queue that reads the log of {source!r} has its partition count, {count}; "
                "leave it out.",
                [("partition_count", f"is {count}, that of the queue {source!r}")],
            )
        return count

    async def _found(self, name: str) -> bool:
        try:
            return await self._store.find(name) is not None
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None

    async def list_queues(self, limit: int, cursor: str | None) -> views.Page[views.QueueView]:
        """Queues by name; the cursor is the last name of the page before."""
        try:
            rows = await self._store.list(limit + 1, cursor)
        except StoreUnavailable:
            raise Unavailable(UNAVAILABLE) from None
        items = tuple(queue_row_view(row) for row in rows[:limit])
        return views.Page(items, items[-1].name if len(rows) > limit else None)

    async def queue(self, name: str) -> views.QueueView:
        """One queue. Raises QueueNotFound."""
        return await self._read(name, queue_view)

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
        source = builtin_name(before.log)
        follows = source not in (None, name)
        if (
            follows
            and changes.get("partition_count", before.partition_count) != before.partition_count
        ):
            raise Invalid(
                f"This queue reads the log of {source!r} and has its partition count; "
                "resize that queue.",
                [("partition_count", f"follows the queue {source!r}")],
            )
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

        def look(queue: Queue) -> tuple[str, int, int, list[int]]:
            removed = [p.number for p in queue.partitions if p.state is State.REMOVED]
            return queue.settings.log, queue.settings.partition_count, queue.revision, removed

        await self._ask(name, lambda: Ask(c.Change(changes, discard)))
        log, count, revision, removed = await self._read(name, look, fresh=False)
        if builtin_name(log) != name or "partition_count" not in changes:
            return
        await self._loghouse.resized(name, count, revision, removed if discard else ())
        for follower in await self._followers(name):
            await self._follow(follower, count, discard)

    async def _follow(self, name: str, partition_count: int, discard: bool) -> None:
        """A queue that reads another's log has that queue's partition count."""
        changes = {"partition_count": partition_count}
        # One that was deleted meanwhile follows nobody.
        with suppress(QueueNotFound):
            await self._ask(name, lambda: Ask(c.Change(changes, discard)))

    async def delete_queue(self, name: str, force: bool) -> None:
        """Deletes a queue and its built-in log. Raises QueueNotFound, QueueInUse."""
        followers = await self._followers(name)
        if followers:
            raise QueueInUse(
                f"The queue {followers[0]!r} reads the log of {name!r}; delete that queue first."
            )
        log = (await self.queue(name)).log
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
        if builtin_name(log) == name:
            await self._loghouse.drop(name)

    async def _followers(self, name: str) -> list[str]:
        """Other queues that read the built-in log of this one."""
        return [
            row.name
            async for row in self._all_queues()
            if builtin_name(row.log) == name != row.name
        ]

    async def _all_queues(self) -> AsyncIterator[views.QueueView]:
        cursor = None
        while True:
            page = await self.list_queues(500, cursor)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def rebalance_now(self, name: str) -> views.RebalanceStatusView:
        """Rebalances at once, ending any holddown. Raises QueueNotFound."""
        await self._ask(name, lambda: Ask(c.RebalanceNow()))
        return await self.rebalance_status(name)

    # Positions and the log

    async def set_positions(
        self,
        name: str,
        where: Mapping[int, str | None] | Literal["earliest", "latest"] | float,
    ) -> views.PositionsView:
        """Sets where consumers go on, raising the epochs. Raises QueueNotFound, Invalid."""

        def existing(queue: Queue) -> tuple[str, list[int]]:
            return queue.settings.log, [partition.number for partition in queue.existing()]

        log, numbers = await self._read(name, existing)
        if isinstance(where, Mapping):
            unknown = sorted(set(where) - set(numbers))
            if unknown:
                raise Invalid(
                    f"This queue has no partition {unknown[0]}.",
                    [("positions", f"names {unknown}, which do not exist")],
                )
            if builtin_name(log) is not None:
                _refuse_nonsense(where)
            positions: dict[int, str | None] = dict(where)
        else:
            found = await self._loghouse.positions(log, where)
            positions = {number: found.get(number) for number in numbers}
        command = c.RaiseEpochs(tuple(sorted(positions)))
        await self._ask(name, lambda: Ask(command, positions=positions))

        def look(queue: Queue) -> views.PositionsView:
            return views.PositionsView(
                queue.revision,
                tuple(
                    views.PositionSet(number, queue.partitions[number].epoch, positions[number])
                    for number in sorted(positions)
                ),
            )

        return await self._read(name, look, fresh=False)

    async def log_access(
        self, name: str, purpose: Literal["read", "publish"]
    ) -> views.LogAccessView:
        """Where a queue's messages are, and credentials. Raises QueueNotFound, Unavailable."""
        queue = await self.queue(name)
        return views.LogAccessView(
            log=queue.log,
            log_name=builtin_name(queue.log),
            partition_count=queue.partition_count,
            start=queue.start,
            access=await self._loghouse.access(queue.log, purpose),
        )

    async def keep_logs(self) -> None:
        """The regular upkeep of all built-in logs, and of queues that follow one."""
        queues = [queue async for queue in self._all_queues()]
        readers: dict[str, list[views.QueueView]] = {}
        for queue in queues:
            source = builtin_name(queue.log)
            if source is not None:
                readers.setdefault(source, []).append(queue)
        for owner in queues:
            if builtin_name(owner.log) != owner.name:
                continue
            committed = [await self._committed(reader) for reader in readers[owner.name]]
            await self._loghouse.keep(
                owner.name,
                Owner(owner.id, owner.created_at),
                owner.partition_count,
                owner.revision,
                committed,
            )
            for reader in readers[owner.name]:
                if reader.partition_count != owner.partition_count:
                    await self._follow(reader.name, owner.partition_count, discard=False)

    async def _committed(self, queue: views.QueueView) -> dict[int, str | None]:
        """Up to where each partition was processed, removed ones too: they are kept no longer than
        the others."""
        rows = await self._store.positions(queue.id)
        return {number: position for number, (_, position) in rows.items()}


def _refuse_nonsense(positions: Mapping[int, str | None]) -> None:
    """Positions of the built-in log are decimal numbers."""
    wrong = sorted(
        number
        for number, position in positions.items()
        if position is not None and not DECIMAL.fullmatch(position)
    )
    if wrong:
        raise Invalid(
            f"{positions[wrong[0]]!r} is not a position of the built-in log; those are decimal "
            "numbers.",
            [(f"positions.{number}", "is not a decimal number") for number in wrong],
        )
