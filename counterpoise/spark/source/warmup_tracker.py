"""The source's side of a warm-up: warming partitions, states to restore, and ready partitions.

With replayed history, the source itself knows when a partition is near. With snapshots the driver
restores the state, and names the restored partitions in the document `ready` of the channel:

    {"partitions": {"3": {"epoch": 2}}}

by the epoch of the present owner, which the driver was told. In both cases the settler's thread
tells the service. It also asks for the owners' positions, because no update contains them. That
call renews the lease. So it is made only if Spark has asked for an offset since, because a query
that hangs must lose its lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from counterpoise.flow import Flow
from counterpoise.flow.core import FLOW_GONE
from counterpoise.flow.view import GrantId
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.source.history import Restore
from counterpoise.spark.source.planning import View
from counterpoise.spark.source.progress import Progress, SharedProgress

logger = logging.getLogger("counterpoise.spark")

REFRESH_SECONDS = 0.5
_CALL_SECONDS = 5.0


class WarmupTracker:
    """The warm-ups of one query, which has the option warmup."""

    def __init__(
        self,
        options: SourceOptions,
        flow: Flow,
        shared: SharedProgress,
        clock: Callable[[], float],
    ) -> None:
        self._replays = not options.warmup_from.snapshot
        self._queue = options.queue
        self._flow = flow
        self._shared = shared
        self._clock = clock
        self._restored: frozenset[GrantId] = frozenset()
        self._told: set[GrantId] = set()
        self._warned: set[GrantId] = set()
        self._asked = False
        self._refresh_at = 0.0

    # ------------------------------------------------------------------ for Spark's thread

    def restores(self, progress: Progress, view: View) -> tuple[Restore, ...]:
        """The states to restore from history. Call it with the lock of the progress."""
        self._asked = True
        return progress.restores(view, self._flow.warming) if self._replays else ()

    def has_news(self) -> bool:
        """Whether partitions are ready that the service was not told of."""
        return not self._near() <= self._told

    def warn(self) -> None:
        """Warn of trimmed history, once for each chain."""
        with self._shared.locked() as progress:
            gaps = dict(progress.gaps)
        for grant, (begin, first) in gaps.items():
            if grant not in self._warned:
                self._warned.add(grant)
                logger.warning(
                    "counterpoise: queue %s: the state of partition %d is restored without "
                    "positions %s to %s, which the log has trimmed",
                    self._queue,
                    grant[0],
                    begin,
                    first,
                )

    # ------------------------------------------------------------------ for other threads

    def heard(self, document: Mapping[str, Any]) -> bool:
        """The driver has restored these partitions. Returns whether that is new."""
        restored = frozenset(
            (int(number), int(one["epoch"]))
            for number, one in document.get("partitions", {}).items()
        )
        news = restored - self._restored
        self._restored = restored
        return bool(news)

    def tell(self) -> None:
        """Tell the service which partitions are ready, and ask for the owners' positions. May
        raise.
        """
        warming = self._flow.warming
        live = {(number, one.epoch) for number, one in warming.items()}
        self._told &= live
        if not warming:
            return
        for number, epoch in sorted((self._near() & live) - self._told):
            if self._flow.ready(number, epoch) != FLOW_GONE:
                self._told.add((number, epoch))
                logger.info("counterpoise: partition %d is restored (epoch %d)", number, epoch)
        now = self._clock()
        if self._asked and now >= self._refresh_at:
            self._asked, self._refresh_at = False, now + REFRESH_SECONDS
            self._flow.refresh(timeout_seconds=_CALL_SECONDS)

    def _near(self) -> frozenset[GrantId]:
        if not self._replays:
            return self._restored
        with self._shared.locked() as progress:
            return frozenset(progress.near)
