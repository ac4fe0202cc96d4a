"""What the service needs of logs: `Logs` for its calls, and below that a `LogKind` for each kind.

Both name a log as the queue does (`builtin:flights`, `redis://host:port/DB/NAME`, …), both name the
queue whose log it is with a `LogOwner`, and both use the verbs of `counterpoise.logs`. Positions
are strings that only the log can compare; times are in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from counterpoise.logs import Bounds, LogOwner, LogUnavailable

__all__ = [
    "Bounds",
    "LogAccess",
    "LogDatabaseUnavailable",
    "LogKind",
    "LogOwner",
    "Logs",
    "Positions",
    "Purpose",
    "Span",
]

Purpose = Literal["read", "publish"]
Positions = Mapping[int, str | None]
"""Up to where a queue has processed each partition; None where it has committed nothing."""


class LogDatabaseUnavailable(LogUnavailable):
    """The database of the built-in log, which is the service's own, did not do what was asked."""


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Short-lived credentials for the built-in log; the URL carries the password: never log it."""

    url: str = field(repr=False)
    expires_at: float


@dataclass(frozen=True, slots=True)
class Span:
    """Of one partition the first position, the end, and how many messages are past a position."""

    start: str
    end: str
    lag: int | None


class Logs(Protocol):
    """The logs of all queues, as the calls of the service use them. For the event loop."""

    async def access(self, log: str, purpose: Purpose) -> LogAccess | None:
        """Credentials for a log; None where consumers and publishers must bring their own.

        Raises Unavailable.
        """
        ...

    async def ensure(self, log: str, partition_count: int, owner: LogOwner) -> None:
        """Make the log of a queue that was just created, empty. Raises Unavailable, Invalid."""
        ...

    async def partition_count(self, log: str) -> int:
        """How many partitions a log that decides by itself has. Raises Unavailable, Invalid."""
        ...

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        """Tell the log its owner's count, then delete what the partitions of `discard` hold.

        `revision` is the owner's that set the count. A log that cannot be told learns it from
        `maintain`; what could not be deleted only the administrator can repeat, so that raises
        Unavailable.
        """
        ...

    async def positions(
        self, log: str, where: Literal["earliest", "latest"] | float
    ) -> Mapping[int, str]:
        """Of each partition the position at an end of the log, or of a time; none without a log.

        Raises Invalid, also for logs of kinds that the service does not know, and Unavailable.
        """
        ...

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """Where these partitions end; empty if the log does not say."""
        ...

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Span]:
        """For show: where these partitions start and end, and what is left from each position on.

        Empty if the log does not say so soon.
        """
        ...

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Sequence[Positions],
    ) -> None:
        """The regular upkeep of one log: it exists, has its owner's count, and is trimmed.

        `committed` has the positions of each queue that reads the log. What all of them have
        processed is trimmed. Best effort: a failure is logged.
        """
        ...

    async def drop(self, log: str, owner: LogOwner) -> None:
        """Delete the log with all it holds, if it is this queue's. A failure is logged."""
        ...


class LogKind(Protocol):
    """All logs of one kind. Every call is bounded in time, may be repeated, and raises LogError.

    LogUnavailable when the log cannot be reached or is too slow, and LogNotFound where it says so.
    A call that names an `owner` changes nothing when the log is another queue's: it came too late.
    """

    async def access(self, purpose: Purpose) -> LogAccess | None:
        """Credentials for all logs of this kind; None if the service gives none."""
        ...

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
    ) -> bool:
        """Make the log unless it exists; then its count stays. False: it is a later queue's.

        `committed` has the positions that each reader has reached. A log that has lost messages
        goes on there, so that no position that a reader knows means another message.
        """
        ...

    async def partition_count(self, log: str) -> int:
        """How many partitions the log has. Raises LogNotFound."""
        ...

    async def set_partition_count(
        self, log: str, partition_count: int, revision: int, owner: LogOwner
    ) -> bool:
        """Refuse appends routed with another count from now on; False if that comes too late.

        `revision` is the queue's that set the count; one lower than the log has seen changes
        nothing. Raises LogNotFound.
        """
        ...

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner
    ) -> frozenset[int]:
        """Delete what these hold and return which: those outside the count. Raises LogNotFound."""
        ...

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """Delete what lies below these positions. Raises LogNotFound."""
        ...

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """Where these partitions, or all that the log has had, start and end.

        `seconds`: give up earlier than usual, for a list that only shows it; a log that was too
        slow for that may be left alone for a while. Raises LogNotFound.
        """
        ...

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """Of each partition the first position published at `time` or later, else its end.

        Nothing published since lies below it. Raises LogNotFound.
        """
        ...

    async def drop(self, log: str, owner: LogOwner) -> None:
        """Delete the log with all it holds, if it is this queue's."""
        ...
