"""Topics of Kafka that grow: queues in use get the new partitions within seconds.

The regular upkeep compares every queue with its topic, once a minute. Consumers would wait long for
new partitions. So every `ROUND_SECONDS` each replica also compares the queues in its memory. Those
are all queues whose consumers it serves.

**What a round costs.** One question for each cluster and access, about all topics at once, and no
statement in the database unless a topic has grown.

**A cluster that hangs** delays its own queues alone. Its next question begins after the last one
has ended, and these questions have threads of their own (`broker.logs.external`). A cluster that
did not answer is left to the upkeep for a minute.

**Replicas** may find the same growth at once, and one of them may ask a broker that does not know
the latest count yet. So a queue follows only if it was not resized since it was compared, and no
partition is taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from broker.calls.access import QueueAccess
from broker.core import commands as c
from broker.core.cuts import last_resize
from broker.core.errors import Invalid, QueueNotFound, Unavailable
from broker.core.queue import Queue
from broker.logs.names import decides_count
from broker.logs.ports import CALLER, GROWTH, Logs
from broker.replica.coordinator import Coordinator
from broker.replica.transaction import Submission

_log = structlog.get_logger()

ROUND_SECONDS = 5.0
AWAY_SECONDS = 60.0


@dataclass(slots=True)
class _Asked:
    """The last question to a cluster, and when the next one may begin, by the loop's clock."""

    task: asyncio.Task[None] | None = None
    next_at: float = 0.0


class TopicGrowth:
    """The queues of this replica whose log decides their partition count."""

    def __init__(self, queues: QueueAccess, logs: Logs) -> None:
        self._replica = queues.replica
        self._logs = logs
        self._asked: dict[object, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def round(self) -> None:
        """Begins a question to each cluster, unless the last one is under way."""
        readers: dict[str, list[Coordinator]] = {}
        for coordinator in self._replica.loaded():
            assert coordinator.queue is not None
            if decides_count(log := coordinator.queue.settings.log):
                readers.setdefault(log, []).append(coordinator)
        clusters = self._logs.clusters([*readers])
        self._asked = {cluster: self._asked.get(cluster) or _Asked() for cluster in clusters}
        now = asyncio.get_running_loop().time()
        for cluster, logs in clusters.items():
            asked = self._asked[cluster]
            if now >= asked.next_at and (asked.task is None or asked.task.done()):
                own = {log: readers[log] for log in logs}
                asked.task = asyncio.create_task(self._compare(asked, own))
                self._tasks.add(asked.task)
                asked.task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, asked: _Asked, readers: Mapping[str, Sequence[Coordinator]]) -> None:
        """`readers`: by their logs, which are in one cluster."""
        CALLER.set(GROWTH)
        try:
            counts = await self._logs.partition_counts([*readers])
        except Invalid:
            # The upkeep says so.
            asked.next_at = asyncio.get_running_loop().time() + AWAY_SECONDS
            return
        for log, count in counts.items():
            for coordinator in readers[log]:
                try:
                    await _follow(coordinator, count)
                except Exception:
                    _log.exception("a queue does not follow its topic", queue=coordinator.name)


async def _follow(coordinator: Coordinator, count: int) -> None:
    queue = coordinator.queue
    change = None if queue is None else growth_of(queue, count)
    # It was deleted or resized meanwhile, or the database is away: the next round compares again.
    with suppress(QueueNotFound, Unavailable):
        if change is not None:
            await coordinator.submit(Submission(change))


def growth_of(queue: Queue, count: int) -> c.Change | None:
    """The change with which a queue follows its topic, which has so many partitions; None if it
    needs none.

    Deciding it raises LogChanged if the queue was resized meanwhile: then the count may be an old
    one.
    """
    if queue.settings.partition_count >= count:
        return None
    return c.Change({"partition_count": count}, checked=last_resize(queue))
