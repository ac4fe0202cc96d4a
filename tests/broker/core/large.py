"""Large queues, for what is measured and counted of the core."""

from __future__ import annotations

from broker.core import records as r
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.replay import replay_all


def large(partitions: int, flows: int, *, warmup: bool = False) -> Queue:
    """A queue that is Ready, with its partitions spread over the flows."""
    queue = Queue("id", "large", Settings(partition_count=partitions), 0.0)
    commit(queue, (r.PartitionsAdded(0, partitions, 0.0),))
    bound = [r.FlowBound(f"f{i}", f"i{i}", "test", i, 10.0, warmup, 0.0) for i in range(flows)]
    commit(queue, tuple(bound))
    for first in range(0, partitions, 10_000):
        numbers = range(first, min(first + 10_000, partitions))
        grants = (r.Grant(n, None, f"f{n % flows}", 1, "initial", None, False) for n in numbers)
        commit(queue, (r.GrantedOutside(1, "bind", 0.0), r.Granted(tuple(grants), 0.0)))
    return queue


def commit(queue: Queue, records: tuple[r.Record, ...]) -> None:
    replay_all(queue, records, queue.revision + 1)
    queue.journal.forget()
    queue.touched = set()
