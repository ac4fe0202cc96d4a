"""Shared by the logs whose positions are decimal numbers: all current ones.

Such positions can be compared and subtracted. `NumberedLog` has the calls of `Log` that need no
more, and `fair_shares` distributes a number of messages to read over partitions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from counterpoise.logs.address import Kind
from counterpoise.logs.errors import InvalidPosition, LogError, PositionAhead
from counterpoise.logs.port import Bounds, Rest

if TYPE_CHECKING:
    import pyarrow as pa

    from counterpoise.logs.rows import Rows

# The first number that is too large for a position: Redis' scripts count exactly up to there, the
# other logs have signed 64-bit numbers.
TOO_LARGE: Mapping[Kind, int] = {
    "builtin": 2**63,
    "aligned": 2**63,
    "redis": 2**53,
    "kafka": 2**63,
}


# A search by time reads so many messages before and after the middle at each step.
_NEIGHBOURS = 8
_STEP_BYTES = 1024 * 1024


def fair_shares(backlogs: Mapping[int, int], max_messages: int) -> dict[int, int]:
    """Split `max_messages` over partitions with these numbers of messages, fairly.

    Backlogs smaller than an equal share are served in full; the others get equal shares of the
    rest. The remainder goes to the longest backlogs (ties: the lowest partition), so that over time
    no partition is passed over.
    """
    shares = dict.fromkeys(backlogs, 0)
    waiting = sorted(
        (partition for partition in backlogs if backlogs[partition] > 0),
        key=lambda partition: (backlogs[partition], -partition),
    )
    left = max(0, max_messages)
    for served, partition in enumerate(waiting):
        # Those with a remainder come last, and the last has the longest backlog.
        shares[partition] = min(backlogs[partition], left // (len(waiting) - served))
        left -= shares[partition]
    return shares


def position_number(position: str, too_large: int) -> int | None:
    """A position as a number; None if it is not a decimal number below `too_large`."""
    # No limit has more digits. The length is checked first: Python refuses very long numbers.
    if not (position.isascii() and position.isdecimal() and len(position) < 20):
        return None
    number = int(position)
    return number if number < too_large else None


def to_arrow() -> Callable[[Rows], pa.RecordBatch]:
    """What makes a batch of MESSAGE_SCHEMA of rows. Raises LogError without pyarrow."""
    try:
        from counterpoise.logs.record_batch import record_batch
    except ModuleNotFoundError:
        raise LogError(
            "batches of messages need a package that is not installed: "
            "pip install 'counterpoise[arrow]'. Single messages do without"
        ) from None
    return record_batch


class NumberedLog(ABC):
    """The calls of `counterpoise.logs.Log` that only compare positions and count between them.

    Their numbers of messages are exact if positions have no holes. A subclass gives its name for
    errors in `kind`, and the first number that is too large for a position.
    """

    kind: ClassVar[str]
    too_large: ClassVar[int]

    @abstractmethod
    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        """See `Log.bounds`."""

    @abstractmethod
    def rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[Rows]:
        """See `Log.rows`."""

    def read(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `Log.read`."""
        record_batch = to_arrow()
        for rows in self.rows(
            partition, start, end, max_messages=max_messages, max_bytes=max_bytes
        ):
            yield record_batch(rows)

    @abstractmethod
    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        """How many messages from each of `begins` on, fairly, within both limits.

        At least one if there is any in `backlogs` (with the same keys).
        """

    @classmethod
    def number(cls, position: str) -> int:
        """A position as a number; raises InvalidPosition."""
        number = position_number(position, cls.too_large)
        if number is None:
            raise InvalidPosition(f"{position!r} is not a position of {cls.kind}")
        return number

    @staticmethod
    def lacks(partition: int, position: int) -> LogError:
        """The error for a message that is missing without being trimmed or discarded."""
        return LogError(
            f"the log lacks position {position} of partition {partition}, though it was neither "
            "trimmed nor discarded: another program has deleted it, or the log is damaged. Restore "
            f"the log, or reset the queue's positions to {position + 1} or later to pass over it"
        )

    def first(
        self,
        ranges: Mapping[int, tuple[str, str]],
        *,
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, tuple[Rows, str]]:
        """Nothing: this log has no call for it."""
        return {}

    def begin(self, ranges: Mapping[int, tuple[str, str]]) -> None:
        """Nothing: in this log each read is one question."""
        return  # the default, as that of `first`

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        """None: this log wakes nobody."""
        return None

    def glance(self, ends: Mapping[int, str]) -> Rest | None:
        """The same: in this log it leaves nothing behind to begin to wait."""
        return self.watch(ends)

    def first_since(self, partition: int, start: str, end: str, at: datetime) -> str:
        """See `Log.first_since`. Halves the range. An old time is only believed together with its
        neighbours, so each step reads a few messages.
        """
        low, high = self.number(start), self.number(end)
        while low < high:
            begin = max(low, (low + high) // 2 - _NEIGHBOURS)
            times = self._times(partition, begin, high)
            recent = [position for position, published_at in times if published_at >= at]
            if recent:
                high = recent[0]
            elif times:
                low = times[-1][0] + 1
            else:
                high = begin
        return str(low)

    def _times(self, partition: int, begin: int, end: int) -> list[tuple[int, datetime]]:
        """The positions and publishing times of the first messages in [begin, end)."""
        parts = self.rows(
            partition,
            str(begin),
            str(end),
            max_messages=2 * _NEIGHBOURS,
            max_bytes=_STEP_BYTES,
        )
        return [
            (self.number(position), published_at)
            for rows in parts
            for shown in [rows.columns()]
            for position, published_at in zip(shown.positions, shown.published_at, strict=True)
        ]

    def compare(self, a: str, b: str) -> int:
        return self.number(a) - self.number(b)

    def backlog(self, positions: Mapping[int, str | None], bounds: Bounds) -> Mapping[int, int]:
        counts = {}
        for partition, position in positions.items():
            start = self.number(bounds.starts[partition])
            end = self.number(bounds.ends[partition])
            at = start if position is None else max(start, self.number(position))
            if at > end:
                raise PositionAhead(partition, str(at), str(end))
            counts[partition] = end - at
        return counts

    def limit(
        self,
        starts: Mapping[int, str],
        max_messages: int,
        bounds: Bounds | None = None,
        *,
        max_bytes: int | None = None,
    ) -> Mapping[int, str]:
        if bounds is None:
            bounds = self.bounds(list(starts))
        backlogs = self.backlog(starts, bounds)
        begins = {p: self.number(bounds.ends[p]) - backlogs[p] for p in starts}
        if max_bytes is None:
            shares: Mapping[int, int] = fair_shares(backlogs, max_messages)
        else:
            shares = self._admit(begins, backlogs, max_messages, max_bytes)
        return {
            partition: str(begins[partition] + shares[partition]) if shares[partition] else start
            for partition, start in starts.items()
        }
