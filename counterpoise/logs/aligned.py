"""Several logs read side by side, as one log (the contract, *Aligned logs*).

The numbers of partitions are those of `counterpoise.logs.groups`, positions those of the logs. Each
partition has the promises of its own log. The logs are asked one after the other, so their ends are
not of one instant. Publishers append to the logs themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from counterpoise.logs.errors import LogBehind, LogError, PositionAhead, PositionTrimmed
from counterpoise.logs.groups import joined, joined_bounds, parted, place
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog, fair_shares
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Log, Rest
from counterpoise.logs.rows import Rows

NOT_PUBLISHED = (
    "several logs that are read side by side take no messages together: publish to the queue of "
    "each log"
)


class AlignedLog(NumberedLog):
    """These logs as one. See `counterpoise.logs.Log`."""

    kind = "the aligned logs"
    too_large = TOO_LARGE["aligned"]
    appends_in_parallel = False

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs

    def __repr__(self) -> str:
        return f"AlignedLog({[*self._logs]!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        raise LogError(NOT_PUBLISHED)

    def next_sequence(self, publisher: str) -> int:
        raise LogError(NOT_PUBLISHED)

    def rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[Rows]:
        which, number = place(partition, len(self._logs))
        with _numbered(partition):
            for rows in self._logs[which].rows(
                number, start, end, max_messages=max_messages, max_bytes=max_bytes
            ):
                yield rows.of_partition(partition)

    def first(
        self, ranges: Mapping[int, tuple[str, str]], *, max_messages: int, max_bytes: int
    ) -> Mapping[int, tuple[Rows, str]]:
        parts = [
            log.first(some, max_messages=max_messages, max_bytes=max_bytes // len(self._logs))
            if some
            else {}
            for log, some in zip(self._logs, parted(ranges, len(self._logs)), strict=True)
        ]
        found = joined(parts)
        return {number: (one.of_partition(number), end) for number, (one, end) in found.items()}

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        # A queue is aligned on built-in logs alone, which answer for all partitions or none.
        parts = parted(dict.fromkeys(partitions), len(self._logs))
        return joined_bounds(
            [log.bounds([*some]) for log, some in zip(self._logs, parts, strict=True)]
        )

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        """Of all logs with such partitions, if each of them can wake the reader."""
        seconds, descriptors = float("inf"), list[int]()
        for log, some in zip(self._logs, parted(ends, len(self._logs)), strict=True):
            rest = log.watch(some) if some else Rest(float("inf"))
            if rest is None:
                return None
            seconds = min(seconds, rest.seconds)
            descriptors += rest.descriptors
        return Rest(seconds, tuple(descriptors))

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        parts = parted(positions, len(self._logs))
        return joined(
            [log.ages(some) if some else {} for log, some in zip(self._logs, parts, strict=True)]
        )

    def first_since(self, partition: int, start: str, end: str, at: datetime) -> str:
        which, own = place(partition, len(self._logs))
        with _numbered(partition):
            return self._logs[which].first_since(own, start, end, at)

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        shares = fair_shares(backlogs, max_messages)
        planned = sum(shares.values())
        wanted: dict[int, dict[int, int]] = defaultdict(dict)
        for number, share in shares.items():
            if share:
                which, partition = place(number, len(self._logs))
                wanted[which][partition] = share
        admitted, width = dict.fromkeys(begins, 0), len(self._logs)
        for which, some in wanted.items():
            starts = {p: str(begins[p * width + which]) for p in some}
            most = sum(some.values())
            ends = self._logs[which].limit(starts, most, max_bytes=max_bytes * most // planned)
            for partition, end in ends.items():
                number = partition * width + which
                admitted[number] = self.number(end) - begins[number]
        return admitted


@contextmanager
def _numbered(partition: int) -> Iterator[None]:
    """Errors name the partition by its number here."""
    try:
        yield
    except PositionTrimmed as error:
        raise PositionTrimmed(partition, error.position, error.first) from error
    except PositionAhead as error:
        raise PositionAhead(partition, error.position, error.end) from error
    except LogBehind as error:
        raise LogBehind(partition, error.end, error.wanted) from error
