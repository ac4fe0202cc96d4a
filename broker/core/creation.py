"""A new queue: its first entry, and the queue that follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core import records as r
from broker.core.cuts import FIRST_SECONDS
from broker.core.queue import Queue
from broker.core.replay import replay_all


def create(
    queue: Queue,
    commit_id: str,
    *,
    partition_count: int = 0,
    roots: Sequence[r.Child] = (),
    awaits_cuts: bool = False,
) -> r.Entry:
    """The first entry, applied to the `queue`, which has no partitions yet.

    A fixed queue gets the partitions from 0 to `partition_count` - 1; those beyond the count of its
    settings are to be drained. A dynamic queue gets its `roots`. `awaits_cuts`: the log may have
    been resized before there was this queue.
    """
    now = queue.created_at
    records: list[r.Record]
    if queue.lineage is None:
        records = [r.PartitionsAdded(0, partition_count, now)]
        surplus = tuple(range(queue.settings.partition_count, partition_count))
        if surplus:
            records.append(r.PartitionsRetired(surplus))
    else:
        numbers = tuple(root.partition for root in roots)
        records = [r.ChildrenAdded(tuple(roots), now), r.WaitsEnded(numbers, now)]
    if awaits_cuts:
        records.append(r.CutsAwaited(now + FIRST_SECONDS))
    replay_all(queue, records, 1)
    # That is for partitions that are added to others.
    queue.growing = False
    queue.journal.forget()
    return r.Entry(queue.revision, now, tuple(records), commit_id=commit_id)
