"""Large queues and the garbage collector.

A full pass of the collector over a queue of 100,000 partitions takes some 100 ms, during which the
process serves no queue. The partitions are in no reference cycle and stay for as long as the queue
is used, so the collector does not have to look at them: what is in memory after a large queue came
is taken out of its sight (`gc.freeze`). It is still freed when the last reference goes.
"""

from __future__ import annotations

import gc
from weakref import WeakKeyDictionary

from broker.core.queue import Queue

LARGE = 10_000


class Memory:
    """What this replica has in memory for a while."""

    def __init__(self) -> None:
        self._sizes: WeakKeyDictionary[Queue, int] = WeakKeyDictionary()

    def keep(self, queue: Queue) -> None:
        """The queue came, or may have grown."""
        if len(queue.partitions) >= self._sizes.get(queue, 0) + LARGE:
            self._sizes[queue] = len(queue.partitions)
            gc.freeze()
