"""Counts of the partitions that one query got and gave.

*Graceful*: the partition was released here. *Forced*: the partition was being revoked and was taken
before its release, because its micro-batch outlasted the deadline; its uncommitted messages go to
the successor too. *Lost*: every other end without a release: an expired lease, positions that were
reset, partitions that were discarded.

*Skipped* slices were planned under an epoch that is over, before a crash or a forced handoff, and
are not read. *Taken over*: the partition was read, and another owner continued it meanwhile.
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
    """Counts since the query started; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: Counter[str] = Counter()
        self._gone: Counter[str] = Counter()
        self._skipped_slices = 0
        self._taken: set[tuple[int, int]] = set()

    def granted(self, owned: Owned) -> None:
        """The flow owns the partition from now on."""
        with self._lock:
            self._received[owned.handed_over or "initial"] += 1

    def released(self, item: ReleaseItem) -> None:
        """The service accepted the release."""
        with self._lock:
            self._gone["finished" if item.finished else "graceful"] += 1

    def lost(self, owned: Owned) -> None:
        """The partition is gone without a release here (a flow does not report its releases)."""
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
        """How many partitions came, by how they left their previous owners."""
        with self._lock:
            return dict(sorted(self._received.items()))

    @property
    def gone(self) -> dict[str, int]:
        """How many partitions went: `graceful`, `forced`, `lost`, `finished`."""
        with self._lock:
            return {how: self._gone[how] for how in ("graceful", "forced", "lost", "finished")}

    # ------------------------------------------------------------------ read by other owners

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
        """Messages up to `position` were read and cannot be committed: the epoch is over."""
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
        """How many grants ended while their messages were being read."""
        return len(self._taken)
