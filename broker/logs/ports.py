"""The service's interfaces of logs: `Logs` for its calls, and a `LogKind` for each kind.

Both name a log as the queue does (`builtin:flights`, `redis://host:port/DB/NAME`, …), both name
its owner with a `LogOwner`, and both use the verbs of `counterpoise.logs`. Positions
are strings that only the log can compare; times are in Unix seconds. A `Holder` says for whom
credentials are made, and `LogAccess` is what is given to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from broker.logs.peeking import Peek
from broker.logs.publisher import Appended
from broker.logs.retention import Retention
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    Bounds,
    LogUnavailable,
    Message,
    Successor,
)

Purpose = Literal["read", "publish"]
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""For whom the service calls a log: the id of a key, FLOWS, ANYONE without keys, MIRRORS for
positions that it mirrors, GROWTH for the counts of topics, else itself."""
FLOWS = "flows"
MIRRORS = "mirrors"
GROWTH = "growth"
ANYONE = "anyone"
__all__ = [
    "Bounds",
    "Holder",
    "LogAccess",
    "LogDatabaseUnavailable",
    "LogKind",
    "LogOwner",
    "Logs",
    "Positions",
    "Purpose",
    "RangeLogs",
    "Root",
    "Sealing",
    "Span",
    "messages_after",
]
Positions = Mapping[int, str | None]
"""A queue's committed position of each partition; None without one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """For whom credentials of the built-in log are made, on one queue.

    `name` is `flow:ID` or `key:ID`, or `anyone` for callers of a service without keys. `key_id`:
    the key with which it was made, also of a flow.
    """

    name: str
    queue_id: str
    key_id: str | None = None

    @classmethod
    def flow(cls, flow_id: str, queue_id: str, key_id: str | None = None) -> Holder:
        """A flow, bound with this key; its credentials end soon after it."""
        return cls(f"flow:{flow_id}", queue_id, key_id)

    @classmethod
    def caller(cls, queue_id: str, flow_id: str | None, key_id: str | None) -> Holder:
        """Who makes a call: a flow, or the holder of a key, or anyone."""
        if flow_id is not None:
            return cls.flow(flow_id, queue_id, key_id)
        return cls("anyone" if key_id is None else f"key:{key_id}", queue_id, key_id)

    @staticmethod
    def flow_id(name: str) -> str | None:
        """The flow's id in the name of a holder; None for other holders."""
        kind, _, flow_id = name.partition(":")
        return flow_id if kind == "flow" else None


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Short-lived credentials for the built-in log; the URL contains the password: never log it."""

    url: str = field(repr=False)
    expires_at: float


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The queue that a log was made for; `created_at` (Unix seconds) tells namesakes apart."""

    queue_id: str
    queue: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Root:
    """A partition with which a queue on a dynamic log begins; `position` None: its start."""

    partition: int
    key: str
    position: str | None


@dataclass(frozen=True, slots=True)
class Sealing:
    """A split or merge of a dynamic log: what it sealed, with the final ends, and what came."""

    ends: Mapping[int, str]
    successors: Sequence[Successor]


class LogDatabaseUnavailable(LogUnavailable):
    """The database of the built-in log, which is the service's own, failed."""


@dataclass(frozen=True, slots=True)
class Span:
    """Of one partition the first position, the end, and the number of messages after a position."""

    start: str
    end: str
    lag: int | None

    def after(self, position: str | None) -> int | None:
        """The most messages from a position to the end; None for one that the log cannot have."""
        return messages_after(self.start, self.end, position)


def messages_after(start: str, end: str, position: str | None) -> int | None:
    """The most messages from a position to the end; positions of known kinds are numbers."""
    number = position is None or (position.isascii() and position.isdecimal())
    # A text that is no position is stored nowhere but by hand; Python does not read numbers of any
    # length.
    if not number or len(position or "") > 19:
        return None
    at = int(start) if position is None else max(int(start), int(position))
    return int(end) - at if at <= int(end) else None


class Logs(Protocol):
    """The logs of all queues, as the calls of the service use them. For the event loop."""

    @property
    def ranges(self) -> RangeLogs:
        """The dynamic built-in logs."""
        ...

    def takes_cuts(self, log: str) -> bool:
        """Whether a resize of this log can keep the order of keys between its partitions."""
        ...

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """Credentials for a log; None if consumers and publishers must bring their own.

        `refused`: the log refused those that the holder has. Raises Unavailable.
        """
        ...

    async def holders(self) -> frozenset[str]:
        """The names of all that have had credentials for a while. Raises Unavailable."""
        ...

    async def keys_in_use(self) -> frozenset[str]:
        """The ids of all keys with which credentials were made. Raises Unavailable."""
        ...

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        """End the credentials of these, and their connections, at once. Raises Unavailable."""
        ...

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        keys: Mapping[int, str] | None = None,
    ) -> None:
        """Make the log of a queue that was just created, empty. Raises Unavailable, Invalid.

        `keys` of the partitions make the built-in log a dynamic one.
        """
        ...

    async def partition_count(self, log: str) -> int:
        """The partition count of a log with its own count. Raises Unavailable, Invalid."""
        ...

    def clusters(self, logs: Sequence[str]) -> Mapping[object, Sequence[str]]:
        """These logs with counts of their own, by the cluster that has them (and the access to it).

        Addresses to which the service does not connect are left out.
        """
        ...

    async def partition_counts(self, logs: Sequence[str]) -> Mapping[str, int]:
        """The partition counts of logs of one cluster, by one question.

        Logs that are not there, or refused to the service, are left out. Raises Invalid if the
        cluster does not answer.
        """
        ...

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        """Set the log's count to its owner's, then delete the messages of `discard`.

        `revision` is the owner's revision that set the count. If the log cannot be reached,
        `maintain` sets the count later; but only the administrator can repeat a failed deletion,
        so this raises Unavailable.
        """
        ...

    async def positions(
        self, log: str, where: Literal["earliest", "latest"] | float
    ) -> Mapping[int, str]:
        """For each partition the position at an end of the log, or of a time; none without a log.

        Raises Invalid, also for logs of kinds that the service does not know, and Unavailable.
        """
        ...

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """The ends of these partitions; empty if the log does not answer."""
        ...

    async def bounds(self, log: str, partitions: Sequence[int] | None = None) -> Bounds | None:
        """Starts, ends and cuts of these partitions, or of all that the log ever had; None if it
        does not answer now, or is not there. A log outside the service is not waited for long if
        `partitions` are named.
        """
        ...

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Span]:
        """For display: start and end of these partitions, and the messages after each position.

        Empty if the log does not answer soon.
        """
        ...

    async def ages(self, log: str, positions: Mapping[int, str]) -> Mapping[int, float]:
        """For display: how many seconds ago the message at each position was published.

        As far as the log says it soon; see `counterpoise.logs.Log.ages`.
        """
        ...

    async def store_offsets(self, log: str, group: str, positions: Mapping[int, str]) -> str | None:
        """Store positions of a log in Kafka as offsets of a consumer group.

        Returns why that failed; None: they are stored. After a failure some may be.
        """

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """Messages to look at (`broker.logs.peeking`). Raises Invalid, Unavailable."""
        ...

    async def append(
        self,
        log: str,
        message: Message,
        id: str | None,
        partition_count: int,
        partition: int | None = None,
    ) -> Appended:
        """Append one message (`broker.logs.publisher`). Raises Invalid, Unavailable."""
        ...

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Sequence[Positions],
        keys: Mapping[int, str] | None = None,
        retention: Retention | None = None,
    ) -> Mapping[int, str]:
        """The regular upkeep of one log: it exists and has its owner's count.

        Returns the positions up to which there is something to trim.

        With `keys`, those of its owner's partitions, it is a dynamic log, which has no such count.

        `committed` has the positions of each queue that reads the log. Messages that all of them
        have processed can be trimmed; a position that is none counts as if nothing were committed.
        Of those a built-in log keeps what the `retention` of its owner says. Best effort: a failure
        is logged.
        """
        ...

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """Delete the messages below these positions, if there is such a log of this owner.

        Raises Unavailable; then some may be deleted.
        """
        ...

    async def drop(self, log: str, owner: LogOwner) -> None:
        """Delete the log with its messages, if it belongs to this queue.

        Raises Unavailable. A log at an address that is not listed any more stays, which is logged.
        """
        ...


class RangeLogs(Protocol):
    """Dynamic built-in logs (`counterpoise.logs.ranges`). All calls may be repeated.

    Raises Unavailable, and Invalid for what cannot be done.
    """

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        """The partitions with which a new queue on an existing log begins: they cover every key.

        With `latest` those that are not sealed, at their ends, else the oldest ones with messages.
        """
        ...

    async def split(
        self,
        log: str,
        partition: int,
        at: int | Literal["middle", "load"],
        owner: LogOwner,
        *,
        dry_run: bool = False,
    ) -> Sealing:
        """Seal a partition; two begin, the second with the hash `at`.

        `dry_run`: nothing of it stays. `load`: where the keys of its last messages lie half on
        either side. Raises PartitionEnded if it was split at another hash before, or merged.
        """
        ...

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing:
        """Seal two partitions with adjacent ranges; one begins with both. Raises PartitionEnded.

        `dry_run`: nothing of it stays.
        """
        ...


class LogKind(Protocol):
    """All logs of one kind. Every call is bounded in time, may be repeated, and raises LogError.

    LogUnavailable if the log cannot be reached or is too slow, and LogNotFound where documented.
    A late call with an `owner` changes nothing if the log belongs to another queue.
    """

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """Credentials for this log and this holder; None if the service gives none."""
        ...

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
    ) -> bool:
        """Make the log unless it exists; then its count stays. False: it belongs to a later queue.

        `committed` has the positions that each reader has reached. A log that has lost messages
        continues there, so that no known position means another message.
        """
        ...

    async def partition_count(self, log: str) -> int:
        """The log's partition count. Raises LogNotFound."""
        ...

    async def set_partition_count(
        self, log: str, partition_count: int, revision: int, owner: LogOwner
    ) -> bool:
        """Refuse appends routed with another count from now on; False if the call is outdated.

        `revision` is the queue's revision that set the count; a lower one than before changes
        nothing. Raises LogNotFound.
        """
        ...

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner
    ) -> frozenset[int]:
        """Delete the messages of those partitions that are outside the count, and return them.

        Raises LogNotFound.
        """
        ...

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """Delete the messages below these positions. Raises LogNotFound."""
        ...

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """Start and end of these partitions, or of all that the log ever had.

        `seconds`: a shorter time limit, for a list that only shows the ends; after a too slow
        answer the log may not be asked for a while. Raises LogNotFound.
        """
        ...

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """For each partition the first position published at `time` or later, else its end.

        No message published since then is below it. Raises LogNotFound.
        """
        ...

    async def ages(
        self, log: str, positions: Mapping[int, str], *, seconds: float
    ) -> Mapping[int, float]:
        """See `counterpoise.logs.Log.ages`; within so many seconds."""
        ...

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """Messages to look at (`broker.logs.peeking`). Raises LogNotFound."""
        ...

    async def append(self, log: str, batch: AppendBatch) -> AppendResult:
        """Append one message with the service's own access; see `counterpoise.logs.Log.append`."""
        ...

    async def drop(self, log: str, owner: LogOwner) -> None:
        """Delete the log with its messages, if it belongs to this queue."""
        ...
