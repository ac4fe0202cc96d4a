"""A new queue: its first entry, and the queue that follows from it.

It may have very many partitions, so it is made in pieces, as large as the caller likes: between two
of them others get on. Nobody else knows the queue yet, so none of it is ever taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core import records as r
from broker.core.cuts import FIRST_SECONDS
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.replay import begin, replay


class Creation:
    """A queue in the making. `queue` is whole after `finish`."""

    def __init__(
        self, id: str, name: str, settings: Settings, now: float, *, outage_seen: int = 0
    ) -> None:
        """`outage_seen` is the latest outage: earlier ones do not concern the queue."""
        self.queue = Queue(id, name, settings, now)
        self.queue.outage_seen = outage_seen
        self._now = now
        self._retired: list[r.Record] = []
        self._roots: list[r.Child] = []
        begin(self.queue, 1)

    def add(self, numbers: Sequence[int]) -> None:
        """The next partitions of a fixed queue, from 0 on and without a gap."""
        queue = self.queue
        assert numbers[0] == queue.configured_count, "a piece is missing"
        replay(queue, r.PartitionsAdded(numbers[0], numbers[-1] + 1, self._now))
        queue.journal.forget()

    def retire(self) -> None:
        """What was added beyond the partition count is to be drained."""
        queue = self.queue
        numbers = tuple(range(queue.settings.partition_count, queue.configured_count))
        if numbers:
            self._retired.append(r.PartitionsRetired(numbers))
            replay(queue, self._retired[0])
            queue.journal.forget()

    def add_roots(self, roots: Sequence[r.Child]) -> None:
        """The next partitions of a dynamic queue; they follow none."""
        for record in self._of_roots(roots):
            replay(self.queue, record)
        self.queue.journal.forget()
        self._roots += roots

    def finish(self, commit_id: str, *, awaits_cuts: bool = False) -> r.Entry:
        """The first entry. `awaits_cuts`: the log may have been resized before there was this
        queue.
        """
        queue, now = self.queue, self._now
        # However many pieces it was made in.
        records: list[r.Record]
        if queue.lineage is None:
            records = [r.PartitionsAdded(0, len(queue.partitions), now), *self._retired]
        else:
            records = self._of_roots(self._roots)
        if awaits_cuts:
            records.append(r.CutsAwaited(now + FIRST_SECONDS))
            replay(queue, records[-1])
        # That is for partitions that are added to others.
        queue.growing = False
        queue.journal.forget()
        return r.Entry(queue.revision, now, tuple(records), commit_id=commit_id)

    def _of_roots(self, roots: Sequence[r.Child]) -> list[r.Record]:
        numbers = tuple(root.partition for root in roots)
        return [r.ChildrenAdded(tuple(roots), self._now), r.WaitsEnded(numbers, self._now)]
