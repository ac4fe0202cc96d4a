"""The regular upkeep of all logs, and of queues that follow one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import structlog

from broker.calls.access import QueueAccess
from broker.calls.cuts import CutCalls
from broker.calls.growth import growth_of
from broker.calls.positions import stored_positions
from broker.calls.readers import LogReaders, Trims, alone, log_owner, owner_among
from broker.core.errors import BrokerError, Invalid, LogChanged, QueueNotFound
from broker.core.queue import Queue
from broker.logs.names import decides_count, parts_of
from broker.logs.ports import Logs
from broker.logs.positions import number_of
from broker.logs.retention import Retention
from broker.replica.transaction import Submission
from broker.store.ports import StoreError
from broker.store.trims import Trimming
from counterpoise import wire
from counterpoise.logs.address import kind_of
from counterpoise.logs.errors import InvalidLog
from counterpoise.logs.groups import parted

_log = structlog.get_logger()
# Logs outside the service whose upkeep is under way: so many may hang before others wait.
OUTSIDE_AT_ONCE = 8


class Upkeep:
    """What logs need now and then: their counts, their keys, and trims."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, readers: LogReaders, cuts: CutCalls, trims: Trims
    ) -> None:
        self._queues = queues
        self._logs = logs
        self._readers = readers
        self._cuts = cuts
        self._trims = trims

    async def maintain(self) -> None:
        """The regular upkeep of all logs, and of queues that follow one.

        What goes wrong with one log is logged, and the others get theirs. Raises Unavailable.
        """
        trims = await self._trims.all()
        by_log = await self._by_log()
        # Built-in logs have one database; of the others some may hang.
        builtin, outside = asyncio.Semaphore(1), asyncio.Semaphore(OUTSIDE_AT_ONCE)

        async def maintain(log: str, readers: Sequence[wire.Queue]) -> None:
            async with builtin if kind_of(log) == "builtin" else outside:
                with _alone(log):
                    await self._maintain(readers, trims.get(log))

        async with asyncio.TaskGroup() as tasks:
            for log, readers in by_log.items():
                tasks.create_task(maintain(log, readers))
        await self._trims.forget(trims, by_log)

    async def _maintain(self, readers: Sequence[wire.Queue], seen: Trimming | None) -> None:
        """`seen`: of before these were listed."""
        if decides_count(readers[0].log):
            await self._follow_topic(readers)
            return
        owner = owner_among(readers)
        if owner is None or not await self._is_there(owner):
            return
        below = await self._logs.maintain(
            owner.log,
            owner.partition_count,
            owner.revision,
            log_owner(owner),
            [await self._usable(one, owner.log) for one in readers],
            await self._keys(owner),
            _retention(owner),
        )
        if not await self._is_there(owner):
            # The queue was deleted meanwhile, and the upkeep may have made its log again.
            await self._logs.drop(owner.log, log_owner(owner))
            return
        for reader in readers if owner.partitioning == "fixed" else ():
            # A queue with ordered resizes follows the log, as it is found just below.
            if reader.ordered_resize:
                continue
            with alone(reader.name):
                if await self._has_another_count(reader, owner):
                    await self._readers.follow(reader.name, owner.partition_count, discard=False)
        for reader in readers:
            if reader.ordered_resize:
                await self._cuts.look_again(reader.name)
        # Last, because nobody waits for it.
        await self._trims.finish(owner.log, seen)
        if below:
            await self._trims.trim(owner.log, below, log_owner(owner), seen)

    async def _keys(self, owner: wire.Queue) -> Mapping[int, str] | None:
        """The keys of a dynamic queue's partitions, by number; None of a fixed queue."""
        if owner.partitioning == "fixed":
            return None

        def extract(queue: Queue) -> dict[int, str]:
            nodes = {} if queue.lineage is None else queue.lineage.nodes
            return {number: node.key for number, node in nodes.items()}

        return await self._queues.read(owner.name, extract)

    async def _by_log(self) -> dict[str, list[wire.Queue]]:
        """The readers of each log of a known kind, in the order of their creation."""
        readers: dict[str, list[wire.Queue]] = {}
        async for queue in self._readers.all():
            with _alone(queue.log):
                if kind_of(queue.log) is not None:
                    for log in parts_of(queue.log):
                        readers.setdefault(log, []).append(queue)
        for reading in readers.values():
            reading.sort(key=lambda queue: (queue.created_at, queue.name))
        return readers

    async def _is_there(self, queue: wire.Queue) -> bool:
        """Whether this very queue still exists, not only another one of its name."""
        return await self._queues.store.find(queue.name) == queue.id

    async def _follow_topic(self, readers: Sequence[wire.Queue]) -> None:
        """Queues take the partition count of their topic; a topic only grows."""
        try:
            count = await self._logs.partition_count(readers[0].log)
        except Invalid as error:
            _log.warning("a topic does not answer", log=readers[0].log, error=str(error))
            return
        for reader in readers:
            if reader.partition_count < count:
                with alone(reader.name):
                    await self._grow(reader.name, count)

    async def _grow(self, name: str, count: int) -> None:
        # It was deleted or resized meanwhile: the next upkeep compares again.
        with suppress(QueueNotFound, LogChanged):
            change = await self._queues.read(name, lambda queue: growth_of(queue, count))
            if change is not None:
                await self._queues.submit(name, lambda: Submission(change))

    async def _has_another_count(self, reader: wire.Queue, owner: wire.Queue) -> bool:
        count = owner.partition_count
        if len(parts_of(reader.log)) > 1:
            count = await self._readers.aligned_count(reader.log, reader.name)
        return reader.partition_count != count

    async def _usable(self, queue: wire.Queue, log: str) -> dict[int, str | None]:
        """The queue's positions in this log; None for what is no position. Nothing of such a
        partition is trimmed.
        """
        positions = await stored_positions(self._queues.store, queue.id)
        given = ((number, at) for number, at in positions.items() if at is not None)
        wrong = [number for number, at in given if number_of(queue.log, at) is None]
        if wrong:
            _log.warning(
                "these partitions have a position that is none: set it (POST …/positions)",
                queue=queue.name,
                partitions=wrong[:10],
            )
        positions.update(dict.fromkeys(wrong))
        parts = parts_of(queue.log)
        return positions if len(parts) == 1 else parted(positions, len(parts))[parts.index(log)]


def _retention(owner: wire.Queue) -> Retention | None:
    seconds, most_bytes = owner.retention_seconds, owner.retention_bytes
    return None if seconds is None or most_bytes is None else Retention(seconds, most_bytes)


@contextmanager
def _alone(log: str) -> Iterator[None]:
    """What goes wrong with one log is logged, and stops nothing else."""
    try:
        yield
    except (BrokerError, StoreError, InvalidLog) as error:
        _log.warning("the upkeep of a log was cut short", log=log, error=str(error))
    except Exception:
        _log.exception("the upkeep of a log failed", log=log)
