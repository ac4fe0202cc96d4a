"""How the partitions of one query came and went, counted.

*Graceful* is a partition that was released here. *Forced* is one that was being revoked and was
taken away before it was released: its micro-batch outlasted the deadline, and what of it was not
committed goes to the successor as well. *Lost* is everything else that went without a release: an
expired lease, positions that were reset, partitions that were discarded.

Slices that are *skipped* were planned under an epoch that is over, before a crash or a forced
handoff, and are not read. What was *taken over* was read, and went on with somebody else meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from counterpoise.flow.view import Owned
from counterpoise.spark.plan.offsets import Slice
from counterpoise.wire import ReleaseItem

logger = logging.getLogger("counterpoise.spark")


class Handoffs:
    """Counts since the query started; to be told by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: Counter[str] = Counter()
        self._gone: Counter[str] = Counter()
        self._skipped_slices = 0
        self._taken: set[tuple[int, int]] = set()

    def granted(self, owned: Owned) -> None:
        """The flow owns it from now on."""
        with self._lock:
            self._received[owned.handed_over or "initial"] += 1

    def released(self, item: ReleaseItem) -> None:
        """The service took the release."""
        with self._lock:
            self._gone["finished" if item.finished else "graceful"] += 1

    def lost(self, owned: Owned) -> None:
        """It is gone and was not released here (a flow does not tell this of its releases)."""
        forced = owned.state == "revoking"
        with self._lock:
            self._gone["forced" if forced else "lost"] += 1
        if forced:
            logger.warning(
                "counterpoise: partition %d (epoch %d) was taken away at its deadline: its "
                "micro-batch outlasted the queue's max_handoff_time. What was not committed is "
                "delivered to its new owner too. Raise max_handoff_time, or lower "
                "maxMessagesPerTrigger",
                *(owned.partition, owned.epoch),
            )

    @property
    def received(self) -> dict[str, int]:
        """How many partitions came, by how their owners before had let go."""
        with self._lock:
            return dict(sorted(self._received.items()))

    @property
    def gone(self) -> dict[str, int]:
        """How many went: `graceful`, `forced`, `lost`, `finished`."""
        with self._lock:
            return {how: self._gone[how] for how in ("graceful", "forced", "lost", "finished")}

    # ------------------------------------------------------------------ read by others instead

    def skipped(self, slices: Sequence[Slice]) -> None:
        """These slices of a micro-batch are not read."""
        if not slices:
            return
        with self._lock:
            self._skipped_slices += len(slices)
        logger.warning(
            "counterpoise: skipped %s: planned before a crash or a forced handoff, and the "
            "partitions have gone on with another epoch since; their owners read these messages",
            ", ".join(
                f"partition {one.partition} [{one.start}, {one.end}) of epoch {one.epoch}"
                for one in slices
            ),
        )

    def taken_over(self, partition: int, epoch: int, position: str | None) -> None:
        """What was read up to `position` cannot be committed: the epoch is over."""
        with self._lock:
            if (partition, epoch) in self._taken:
                return
            self._taken.add((partition, epoch))
        logger.warning(
            "counterpoise: partition %d was taken over while a micro-batch with its messages was "
            "running (epoch %d is over): what was not committed before position %s is delivered "
            "to its new owner too",
            *(partition, epoch, position),
        )

    @property
    def skipped_slices(self) -> int:
        """How many slices were skipped."""
        return self._skipped_slices

    @property
    def taken_over_count(self) -> int:
        """How many grants ended while something was read under them."""
        return len(self._taken)
