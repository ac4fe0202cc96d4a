"""The slices that a micro-batch reads, once Spark has written its offsets down.

The offsets alone determine them. Slices that were superseded since they were planned are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from counterpoise.errors import CounterpoiseError
from counterpoise.spark.channel.planned import Plans
from counterpoise.spark.flows.bound import BoundFlow, in_doubt
from counterpoise.spark.plan.offsets import Json, replay_slices, slices
from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.plan.planning import View, pack, sort_out
from counterpoise.spark.run.books import Books
from counterpoise.spark.tasks.executor import LogPartition, log_partition
from counterpoise.spark.tasks.log_connection import LogConnection

# How long a micro-batch waits for a certain view of the flow.
SETTLE_SECONDS = 2.0


class Batches:
    """`cores`: the limit of reading tasks. `plans`: tells the driver the plan of each batch."""

    def __init__(
        self,
        options: SourceOptions,
        flow: BoundFlow,
        books: Books,
        connection: LogConnection,
        cores: int,
        plans: Plans | None,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._flow = flow
        self._books = books
        self._connection = connection
        self._cores = cores
        self._plans = plans
        self._clock = clock
        self._last: tuple[Json, Json, list[LogPartition]] | None = None

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        """The slices of the micro-batch from `start` to `end`, without superseded ones."""
        if self._last is not None and self._last[:2] == (start, end):
            return self._last[2]
        place = self._books.place
        before, after = place.offset(start), place.offset(end)
        planned = slices(before, after)
        view = self._known_view() if planned else None
        sorted_out = sort_out(planned, view)
        with self._books.locked() as progress:
            progress.replaying(before, after)
            progress.skip(sorted_out.skipped)
            self._books.planned = end
        self._books.handoffs.skipped(sorted_out.skipped)
        # History is read under any owner, because the next offset builds on it.
        read = [*sorted_out.read, *replay_slices(before, after)]
        groups = [
            log_partition(self._connection, self._options, group)
            for group in pack(read, self._cores)
        ]
        if not groups and after.prepared != before.prepared:
            # Each task warms up a worker.
            groups = [log_partition(self._connection, self._options, ())] * self._cores
        if self._plans is not None:
            self._plans.say(start, end, [one.slices for one in groups], sorted_out.skipped)
        self._last = (start, end, groups)
        return groups

    def _known_view(self) -> View | None:
        """The flow's view, once it is certain; None if it stays uncertain for a while."""
        give_up_at = self._clock() + SETTLE_SECONDS
        while self._flow.status == "binding" or in_doubt(self._flow, self._clock()):
            left = give_up_at - self._clock()
            if left <= 0:
                return None
            with contextlib.suppress(CounterpoiseError):
                self._flow.wait(min(left, 0.1))
        return self._flow.partitions if self._flow.status == "bound" else None
