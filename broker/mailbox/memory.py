"""Large queues and the garbage collector.

A full pass of the collector over a queue of 100,000 partitions takes some 100 ms, during which the
process serves no queue. The partitions are in no reference cycle and stay for as long as the queue
is used, so the collector does not have to look at them: what is in memory after a large queue came
is taken out of its sight (`gc.freeze`). It is still freed when the last reference goes.
"""

from __future__ import annotations

import gc

from broker.core.state.queue import Queue

LARGE = 10_000


def keep(queue: Queue) -> None:
    """The queue stays in memory for a while."""
    if len(queue.partitions) >= LARGE:
        gc.freeze()
