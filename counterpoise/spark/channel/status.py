"""The status of a query: in its progress, in the channel, for a `QueueListener`.

Values are texts, numbers and objects of these, so that Spark shows them unchanged.

`Handoffs` counts the partitions that the query got and gave. *Graceful*: the partition was released
here. *Forced*: the partition was being revoked and was taken before its release, because its
micro-batch outlasted the deadline; its uncommitted messages go to the successor too. *Lost*: every
other end without a release: an expired lease, positions that were reset, partitions that were
discarded.

*Rows dropped*: after a partition came from another consumer, Spark's watermark dropped rows of this
query as late. Its own may be among them, because Spark does not say which.

*Skipped* slices were planned under an epoch that is over, before a crash or a forced handoff, and
are not read. *Taken over*: the partition was read, and another owner continued it meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from counterpoise.errors import CounterpoiseError
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.spark.offsets import Json, Slice
from counterpoise.wire import ReleaseItem, barrier_text

logger = logging.getLogger("counterpoise.spark")

# How partitions are left that another consumer has processed since.
_ELSEWHERE = ("graceful", "forced", "orphaned")


class Handoffs:
    """Counts since the query started; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: Counter[str] = Counter()
        self._gone: Counter[str] = Counter()
        self._skipped_slices = 0
        self._rows_dropped = 0
        self._rows_dropped_before = 0
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
                owned.partition,
                owned.epoch,
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

    def dropped_rows(self, total: int) -> None:
        """The watermark has dropped so many rows since the query started."""
        with self._lock:
            self._rows_dropped = total
            if not any(self._received[how] for how in _ELSEWHERE):
                self._rows_dropped_before = total

    @property
    def rows_dropped(self) -> int:
        """How many of them since a partition came from another consumer."""
        with self._lock:
            return self._rows_dropped - self._rows_dropped_before

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
            partition,
            epoch,
            position,
        )

    @property
    def skipped_slices(self) -> int:
        """How many slices were skipped."""
        return self._skipped_slices

    @property
    def taken_over_count(self) -> int:
        """How many grants ended while their messages were being read."""
        return len(self._taken)


def behind_latest(lag: Collection[int]) -> Json:
    """The lag of partitions under the names of Spark's Kafka source; nothing without any."""
    if not lag:
        return {}
    return {
        "minOffsetsBehindLatest": min(lag),
        "maxOffsetsBehindLatest": max(lag),
        "avgOffsetsBehindLatest": sum(lag) / len(lag),
    }


@dataclass(frozen=True)
class QueryStatus:
    """The status of a query at one moment. `positions`: up to where its partitions are done."""

    queue: str
    url: str
    instance: str
    status: str
    draining: bool
    partitions: Mapping[int, Owned]
    warming: Mapping[int, Warming]
    positions: Mapping[int, str | None]
    bounds: Bounds | None
    handoffs: Handoffs
    last_error: CounterpoiseError | None = None
    in_flight: frozenset[int] = field(default=frozenset())

    def report(self) -> Json:
        """For people and metrics: counts, lag, errors."""
        states = [held.state for held in self.partitions.values()]
        lag = self.lag()
        gone = self.handoffs.gone
        return {
            "status": self.status,
            "owned": len(states),
            "revoking": states.count("revoking"),
            "retiring": states.count("retiring"),
            "warming": len(self.warming),
            "paused": sum(held.paused is not None for held in self.partitions.values()),
            "draining": int(self.draining),
            "skippedSlices": self.handoffs.skipped_slices,
            "takenOver": self.handoffs.taken_over_count,
            "rowsDroppedAtLeast": self.handoffs.rows_dropped,
            "handoffsGraceful": gone["graceful"],
            "handoffsForced": gone["forced"],
            "partitionsLost": gone["lost"],
            "partitionsFinished": gone["finished"],
            "received": self.handoffs.received,
            "lastError": "" if self.last_error is None else str(self.last_error),
            "ends": self.ends(),
            "waits": self.waits(),
            "lagTotal": sum(lag.values()),
            "lag": {str(number): behind for number, behind in lag.items()},
            **behind_latest(lag.values()),
            "description": self._description(sum(lag.values())),
        }

    def _description(self, behind: int) -> str:
        """The source in a line, for people."""
        parts = f"{len(self.partitions)} partition{'s' * (len(self.partitions) != 1)}"
        away = "" if self.last_error is None else f"; {self.last_error}"
        status = f"{self.status}, draining" if self.draining else self.status
        return f"queue {self.queue} ({status}): {parts}, {behind} messages behind{away}"

    def ends(self) -> Json:
        """The log's ends of the held partitions, from the latest answer."""
        bounds = self.bounds
        if bounds is None:
            return {}
        return {
            str(number): bounds.ends[number]
            for number in sorted(self.partitions)
            if number in bounds.ends
        }

    def waits(self) -> Json:
        """The held partitions that an ordered resize stops: `at 1002 for 0, 2` (the cut, and the
        partitions that have to reach theirs)."""
        texts = {
            str(number): barrier_text(held.cut, held.waits_for)
            for number, held in sorted(self.partitions.items())
        }
        return {number: text for number, text in texts.items() if text}

    def lag(self) -> dict[int, int]:
        """Messages between the done position and the end; with holes in the log, at most so many.

        Only of partitions whose end is known: not while they are being revoked, and not directly
        after the grant.
        """
        bounds = self.bounds
        behind: dict[int, int] = {}
        for number in sorted(self.partitions):
            if bounds is None or number not in bounds.ends:
                continue
            position = self.positions.get(number) or bounds.starts[number]
            end = bounds.ends[number]
            if position.isdecimal() and end.isdecimal():
                behind[number] = max(0, int(end) - int(position))
        return behind

    def view(self) -> Json:
        """The partitions of the flow, for the channel."""
        return {
            "queue": self.queue,
            "url": self.url,
            "instance": self.instance,
            "status": self.status,
            "draining": self.draining,
            "partitions": {
                **{
                    str(number): {
                        "epoch": one.epoch,
                        "state": "warming",
                        "position": one.position,
                        "handed_over": None,
                    }
                    for number, one in sorted(self.warming.items())
                },
                **{
                    str(number): {
                        "epoch": one.epoch,
                        "state": one.state,
                        "position": self.positions.get(number) or one.position,
                        "handed_over": one.handed_over,
                    }
                    for number, one in sorted(self.partitions.items())
                },
            },
            "inFlight": sorted(self.in_flight),
        }
