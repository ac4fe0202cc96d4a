"""Measurements of queues: taking them, and showing them as lag and rates, with the ages at commit.

What was published and processed between two rounds follows from the ends of the logs and from the
lag: as many messages were processed as were published, less those by which the lag grew. So neither
needs the positions of the last round, and partitions may come and go in between.

**Taking them is bounded.** A replica begins no measurement later than `ROUND_BUDGET` seconds after
the round began. Where that is not enough (many queues, large ones, logs that do not answer), its
next round goes on with the queues after them, and each queue has fewer measurements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from broker.calls.access import QueueAccess
from broker.calls.commit_ages import committed_after
from broker.calls.monitoring import DECIMAL, MonitoringCalls
from broker.calls.times import time_of
from broker.core.errors import BrokerError
from broker.replica.store_calls import store_available
from broker.store.measurements import KEPT_SECONDS, MOST_QUEUES, Measurement
from counterpoise import wire

ROUND_BUDGET = 6.0
# A log that does not answer takes a second and a half.
AT_ONCE = 4


class MeasurementCalls:
    """The measurements of the last hour."""

    def __init__(self, queues: QueueAccess, monitoring: MonitoringCalls) -> None:
        self._queues = queues
        self._monitoring = monitoring
        # The name of the queue that this replica measured last.
        self._last = ""

    async def of_queue(self, name: str) -> wire.Measurements:
        """Those of the queue, in order. Raises QueueNotFound, Unavailable."""
        queue_id = await self._queues.read(name, lambda queue: queue.id)
        since = round(self._queues.replica.clock.now()) - KEPT_SECONDS
        with store_available():
            taken = await self._queues.store.measurements.of_queue(queue_id, since)
            counts = await self._queues.store.measurements.ages_of_queue(queue_id, since)
        return wire.Measurements(with_rates(taken), committed_after(counts))

    async def take(self) -> None:
        """Takes a round, unless another replica has. Raises StoreUnavailable."""
        at = round(self._queues.replica.clock.now())
        store = self._queues.store
        if not await store.measurements.begin(at):
            return
        ids = {row.queue.name: row.queue.id for row in await store.list(MOST_QUEUES, None)}
        waiting = iter(sorted(ids, key=lambda name: (name <= self._last, name)))
        taken: dict[str, Measurement] = {}
        time = asyncio.get_running_loop().time
        end = time() + ROUND_BUDGET

        async def work() -> None:
            for name in waiting:
                self._last = name
                measured = await self._measured(name, at)
                if measured is not None:
                    taken[ids[name]] = measured
                if time() > end:
                    return

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        await store.measurements.add(taken)

    async def _measured(self, name: str, at: int) -> Measurement | None:
        """The queue as it is now; None if it is gone or cannot be read."""
        lag = end = 0
        known = True
        try:
            async for one in self._monitoring.every_partition(name, ages=False):
                if one.lag is None or one.end is None or not DECIMAL.fullmatch(one.end):
                    known = False
                else:
                    lag += one.lag
                    end += int(one.end)
        except BrokerError:
            return None
        return Measurement(at, lag, end) if known else Measurement(at, None, None)


def _difference(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before


def with_rates(taken: Sequence[Measurement]) -> tuple[wire.MeasuredQueue, ...]:
    """Measurements in order, and between each two of them the rates.

    A sum that fell says nothing of a rate: a partition was removed, or positions were set back.
    """
    items = [wire.MeasuredQueue(time_of(one.at), one.lag, None, None) for one in taken[:1]]
    for before, one in pairwise(taken):
        published = processed = None
        appended = _difference(before.end, one.end)
        grown = _difference(before.lag, one.lag)
        if appended is not None and grown is not None:
            seconds = one.at - before.at
            done = appended - grown
            published = appended / seconds if appended >= 0 else None
            processed = done / seconds if appended >= 0 and done >= 0 else None
        items.append(wire.MeasuredQueue(time_of(one.at), one.lag, published, processed))
    return tuple(items)
