"""The progress of one query, shared by its threads.

Spark's thread plans and learns what is done, the channel's thread learns it too, and the settler's
thread tells the service. Each works under one lock, and reads the flow's view only while it holds
the lock. So the progress sees the views in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from counterpoise.spark.channel.handoffs import Handoffs
from counterpoise.spark.flows.bound import Tells
from counterpoise.spark.plan.offsets import Json, Offset, Slice
from counterpoise.spark.plan.place import Place
from counterpoise.spark.plan.progress import Progress


class Books:
    """`wake` is set when there may be something to tell the service."""

    def __init__(
        self,
        flow: Tells,
        place: Place,
        wake: threading.Event,
        handoffs: Handoffs,
        progress: Progress | None = None,
    ) -> None:
        self._flow = flow
        self._lock = threading.Lock()
        self._progress = progress or Progress()
        self.place = place
        self.wake = wake
        self.handoffs = handoffs
        # The offset that Spark got last: `done` of an older one is ignored.
        self.planned: Json | None = None
        self._closing = False

    @contextmanager
    def locked(self) -> Iterator[Progress]:
        """The progress, for one thread at a time."""
        with self._lock:
            yield self._progress

    @property
    def in_flight(self) -> frozenset[int]:
        """The partitions in flight; a new object whenever that changes. Needs no lock."""
        return self._progress.in_flight

    def plan(self, planned: Offset) -> Json:
        """Give this offset to Spark. Call it with the lock."""
        self.planned = replace(planned, queue_id=self.place.queue_id).to_json()
        return self.planned

    def take_nothing_new(self) -> None:
        """Plan no micro-batch from now on."""
        with self._lock:
            self._closing = True

    def is_closing(self) -> bool:
        """Whether no more micro-batches are planned."""
        return self._closing

    # ------------------------------------------------------------------ what is done

    def asked_from(self, offset: Offset) -> None:
        """Spark asks for the offset after `offset`: all of `offset` is in the sink."""
        lost: Sequence[Slice] = ()
        with self._lock:
            bound = self._flow.status == "bound"
            if offset is not self._progress.start or self._progress.in_flight:
                lost = self._progress.finished(offset, self._flow.partitions)
                self.wake.set()
        if bound:
            self._report(lost)

    def batch_done(self, end: Json) -> bool:
        """The micro-batch up to `end` is in Spark's commit log. It may come late.

        It counts only for the micro-batch planned last; otherwise Spark's own question is newer.
        """
        with self._lock:
            if not self._progress.in_flight or end != self.planned:
                return False
            offset = self.place.offset(end)
            lost = self._progress.finished(offset, self._flow.partitions)
        if self._flow.status == "bound":
            self._report(lost)
        self.wake.set()
        return True

    def _report(self, lost: Sequence[Slice]) -> None:
        for one in lost:
            self.handoffs.taken_over(one.partition, one.epoch, one.end)
