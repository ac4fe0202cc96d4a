"""The calls about the logs of queues: positions, access, upkeep; and who owns and who follows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import structlog

from broker.calls import views
from broker.calls.monitoring import DECIMAL, Overviews
from broker.calls.rendering import queue_row_view, queue_view
from broker.coordinator import UNAVAILABLE
from broker.core import commands as c
from broker.core.errors import Invalid, QueueNotFound, Unavailable
from broker.core.queue import Queue
from broker.logs.names import builtin_name, canonical, decides_count, has_owner
from broker.logs.ports import LogOwner
from broker.store.ports import StoreUnavailable
from broker.turns import Ask
from counterpoise.logs.address import kind_of

_log = structlog.get_logger()


class LogCalls(Overviews):
    """The part of the facade that knows which queue reads which log."""

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

    async def _all_queues(self) -> AsyncIterator[views.QueueView]:
        cursor = None
        while True:
            page = await self.list_queues(500, cursor)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

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
            if kind_of(log) is not None:
                _refuse_nonsense(where)
                _refuse_ahead(where, await self._logs.ends(log, sorted(where)))
            positions: dict[int, str | None] = dict(where)
        else:
            found = await self._logs.positions(log, where)
            positions = {number: found.get(number) for number in numbers}
        command = c.RaiseEpochs(tuple(sorted(positions)))
        await self._ask(name, lambda: Ask(command, positions=positions))

        def look(queue: Queue) -> views.PositionsView:
            return views.PositionsView(
                queue.revision,
                tuple(
                    views.PositionSet(number, queue.partitions[number].epoch, positions[number])
                    for number in sorted(positions)
                    if queue.exists(number)
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
            access=await self._logs.access(queue.log, purpose),
        )

    async def keep_logs(self) -> None:
        """The regular upkeep of all logs, and of queues that follow one."""
        readers: dict[str, list[views.QueueView]] = {}
        async for queue in self._all_queues():
            if kind_of(queue.log) is not None:
                readers.setdefault(canonical(queue.log), []).append(queue)
        for reading in readers.values():
            reading.sort(key=lambda queue: (queue.created_at, queue.name))
            if decides_count(reading[0].log):
                await self._follow_topic(reading)
                continue
            owner = _owner_among(reading)
            if owner is None or not await self._is_there(owner):
                continue
            log_owner = LogOwner(owner.id, owner.name, owner.created_at)
            await self._logs.maintain(
                owner.log,
                owner.partition_count,
                owner.revision,
                log_owner,
                [await self._committed(reader) for reader in reading],
            )
            if not await self._is_there(owner):
                # It was deleted meanwhile, and the upkeep may have made its log again.
                await self._logs.drop(owner.log, log_owner)
                continue
            for reader in reading:
                if reader.partition_count != owner.partition_count:
                    await self._follow(reader.name, owner.partition_count, discard=False)

    async def _is_there(self, queue: views.QueueView) -> bool:
        """Whether this queue still exists, and not only another of its name."""
        return await self._store.find(queue.name) == queue.id

    async def _follow_topic(self, readers: Sequence[views.QueueView]) -> None:
        """Queues have as many partitions as the topic that they read; a topic only grows."""
        try:
            count = await self._logs.partition_count(readers[0].log)
        except Invalid as error:
            _log.warning("a topic cannot be asked", log=readers[0].log, error=str(error))
            return
        for reader in readers:
            if reader.partition_count < count:
                await self._follow(reader.name, count, discard=False)

    async def _committed(self, queue: views.QueueView) -> dict[int, str | None]:
        """Up to where each partition was processed, removed ones too: they are kept no longer than
        the others."""
        rows = await self._store.positions(queue.id)
        return {number: position for number, (_, position) in rows.items()}

    # Who owns a log and who follows

    async def _readers(self, log: str) -> list[views.QueueView]:
        """All queues that read this log, in the order of their creation."""
        spelling = canonical(log)
        found = [row async for row in self._all_queues() if canonical(row.log) == spelling]
        return sorted(found, key=lambda queue: (queue.created_at, queue.name))

    async def _owns(self, name: str, log: str) -> bool:
        """Whether this queue owns the log it reads. A built-in log's name says so."""
        if not has_owner(log):
            return False
        source = builtin_name(log)
        if source is not None:
            return source == name
        readers = await self._readers(log)
        return bool(readers) and readers[0].name == name

    async def _followers(self, name: str, log: str) -> list[str]:
        """The other queues that read the log which this one owns."""
        return [reader.name for reader in await self._readers(log) if reader.name != name]

    async def _owner(self, log: str, but: str) -> views.QueueView | None:
        """The queue, another than `but`, that owns this log; None if it has none yet, or never.

        Raises Invalid for a built-in log that there is not.
        """
        source = builtin_name(log)
        if source is None:
            readers = [queue for queue in await self._readers(log) if queue.name != but]
            return readers[0] if readers and has_owner(log) else None
        if source == but:
            return None
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
        return owner

    async def _refuse_resize_of_follower(self, queue: views.QueueView) -> None:
        if decides_count(queue.log):
            raise Invalid(
                f"This queue has the partition count of {queue.log}; add partitions to the topic, "
                "and the queue follows within a minute.",
                [("partition_count", "follows the topic")],
            )
        owner = await self._owner(queue.log, but=queue.name) if has_owner(queue.log) else None
        if owner is not None and not await self._owns(queue.name, queue.log):
            raise Invalid(
                f"This queue reads the log of {owner.name!r} and has its partition count; "
                "resize that queue.",
                [("partition_count", f"follows the queue {owner.name!r}")],
            )

    async def _follow(self, name: str, partition_count: int, discard: bool) -> None:
        """A queue that reads another's log has that queue's partition count."""
        changes = {"partition_count": partition_count}
        # One that was deleted meanwhile follows nobody.
        with suppress(QueueNotFound):
            await self._ask(name, lambda: Ask(c.Change(changes, discard)))


def _owner_among(readers: Sequence[views.QueueView]) -> views.QueueView | None:
    """Which of the queues that read one log owns it, given in the order of their creation."""
    if not readers:
        return None
    name = builtin_name(readers[0].log)
    return next((queue for queue in readers if name in (None, queue.name)), None)


def _refuse_nonsense(positions: Mapping[int, str | None]) -> None:
    """Positions of all kinds of logs that are known here are decimal numbers."""
    wrong = sorted(
        number
        for number, position in positions.items()
        if position is not None and not DECIMAL.fullmatch(position)
    )
    if wrong:
        raise Invalid(
            f"{positions[wrong[0]]!r} is not a position of this queue's log; those are "
            "decimal numbers.",
            [(f"positions.{number}", "is not a decimal number") for number in wrong],
        )


def _refuse_ahead(positions: Mapping[int, str | None], reached: Mapping[int, str]) -> None:
    """A position that a partition has not reached is a mistake: what is published next would lie
    below it, and be passed over. `reached`: where partitions end, as far as the log says so."""
    ahead = sorted(
        number
        for number, position in positions.items()
        if position is not None and number in reached and int(position) > int(reached[number])
    )
    if ahead:
        first = ahead[0]
        raise Invalid(
            f"The log's partition {first} ends at {reached[first]}, and {positions[first]} lies "
            "behind that; send 'latest' for the end.",
            [(f"positions.{number}", f"lies behind {reached[number]}") for number in ahead],
        )
