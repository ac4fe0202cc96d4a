"""All logs of one service in memory, and the service's side of them.

Every method is one transaction under one lock, so the promises of `counterpoise.logs.port` about
instants (2, 3 and 4) hold by construction. Nothing waits.

Consumers and publishers find the logs by an access `memory://ID`, which is good in this process as
long as the `MemoryLogs` exists.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from counterpoise.logs.errors import (
    InvalidMessage,
    LogNotFound,
    LogUnavailable,
    StalePartitionCount,
)
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Message
from counterpoise.logs.rows import microseconds_of

SCHEME = "memory://"

_numbers = itertools.count(1)
_all: WeakValueDictionary[str, MemoryLogs] = WeakValueDictionary()


class Row(NamedTuple):
    """A message in the log, and when it was published (microseconds since 1970)."""

    message: Message
    microseconds: int


@dataclass(slots=True)
class _Partition:
    """The messages from `first` on; those below `discarded` vanished without an error."""

    first: int = 0
    discarded: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    def trim(self, below: int) -> None:
        gone = min(max(0, below - self.first), len(self.rows))
        del self.rows[:gone]
        self.first += gone


@dataclass(slots=True)
class _Log:
    partition_count: int
    incarnation: str
    owner_id: str | None
    owner_created_at: float
    revision: int = 0
    partitions: dict[int, _Partition] = field(default_factory=dict)
    next_sequences: dict[str, int] = field(default_factory=dict)

    def may_touch(self, owner_id: str | None) -> bool:
        return owner_id is None or self.owner_id in (None, owner_id)

    def add_partitions(self) -> None:
        for number in range(self.partition_count):
            self.partitions.setdefault(number, _Partition())


class Chunk(NamedTuple):
    """What a read found from a position on: rows, and the partition's positions at that instant."""

    rows: Sequence[Row]
    first: int
    discarded: int
    end: int


class MemoryLogs:
    """The logs by their queues' names. `clock` tells Unix seconds.

    `appended` is called after every append, without the lock.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.appended: Callable[[], None] = lambda: None
        self.id = f"{next(_numbers)}"
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}
        _all[self.id] = self

    @property
    def access(self) -> str:
        """The access to these logs, for `opened`."""
        return f"{SCHEME}{self.id}"

    def _log(self, name: str) -> _Log:
        log = self._logs.get(name)
        if log is None:
            raise LogNotFound(f"there is no log {name!r}")
        return log

    # -------------------------------------------------------------- for the service

    def ensure(
        self,
        name: str,
        partition_count: int,
        owner_id: str | None = None,
        owner_created_at: float = 0.0,
    ) -> bool:
        """Make the log unless it exists; False if it belongs to a later queue of the name."""
        with self._lock:
            log = self._logs.get(name)
            if log is not None and owner_id is not None and log.owner_id != owner_id:
                if log.owner_created_at > owner_created_at:
                    return False
                log = None
            if log is None:
                incarnation = f"memory-{next(_numbers)}"
                log = _Log(partition_count, incarnation, owner_id, owner_created_at)
                self._logs[name] = log
            log.add_partitions()
            return True

    def partition_count(self, name: str) -> int:
        """The log's partition count. Raises LogNotFound."""
        with self._lock:
            return self._log(name).partition_count

    def set_partition_count(
        self,
        name: str,
        partition_count: int,
        revision: int | None = None,
        owner_id: str | None = None,
    ) -> bool:
        """Refuse appends routed with another count; False if the call is outdated."""
        with self._lock:
            log = self._log(name)
            if (revision is not None and revision < log.revision) or not log.may_touch(owner_id):
                return False
            log.partition_count = partition_count
            log.revision = max(log.revision, revision or 0)
            log.add_partitions()
            return True

    def discard(
        self, name: str, partitions: Collection[int], owner_id: str | None = None
    ) -> frozenset[int]:
        """Delete the messages of those partitions that are outside the count, and return them."""
        with self._lock:
            log = self._log(name)
            if not log.may_touch(owner_id):
                return frozenset()
            outside = frozenset(
                number
                for number in partitions
                if number >= log.partition_count and number in log.partitions
            )
            for number in outside:
                partition = log.partitions[number]
                partition.trim(partition.end)
                partition.discarded = partition.end
            return outside

    def trim(self, name: str, below: Mapping[int, int], owner_id: str | None = None) -> None:
        """Delete the messages below these positions."""
        with self._lock:
            log = self._log(name)
            if log.may_touch(owner_id):
                for number, position in below.items():
                    if number in log.partitions:
                        log.partitions[number].trim(position)

    def position_at(self, name: str, at: float) -> Mapping[int, str]:
        """For each partition the first position published at this time or later, else its end."""
        with self._lock:
            found = {}
            for number, partition in sorted(self._log(name).partitions.items()):
                late = (n for n, row in enumerate(partition.rows) if row.microseconds >= at * 1e6)
                found[number] = str(partition.first + next(late, len(partition.rows)))
            return found

    def drop(self, name: str, owner_id: str | None = None) -> None:
        """Delete the log with its messages, if it belongs to this queue."""
        with self._lock:
            log = self._logs.get(name)
            if log is not None and log.may_touch(owner_id):
                del self._logs[name]

    # -------------------------------------------------------------- for consumers and publishers

    def append(self, name: str, batch: AppendBatch) -> AppendResult:
        """See `Log.append`."""
        for message in batch.messages:
            message.size_bytes()
        count = len(batch.messages)
        inside = all(0 <= number < batch.partition_count for number in batch.partitions)
        if not inside or count != len(batch.partitions) or batch.first_sequence < 0:
            raise InvalidMessage(
                "the log refused the messages: different numbers of messages and partitions, or a "
                "partition or sequence out of range"
            )
        with self._lock:
            log = self._log(name)
            if batch.by_range or log.partition_count != batch.partition_count:
                raise StalePartitionCount(batch.partition_count, log.partition_count)
            following = log.next_sequences.get(batch.publisher, 0)
            known = min(max(following - batch.first_sequence, 0), count)
            if known < count:
                log.next_sequences[batch.publisher] = batch.first_sequence + count
            now = round(self.clock() * 1e6)
            routed = zip(batch.partitions, batch.messages, strict=True)
            for number, message in itertools.islice(routed, known, None):
                at = message.published_at
                row = Row(message, now if at is None else microseconds_of(at))
                log.partitions[number].rows.append(row)
        if known < count:
            self.appended()
        return AppendResult(count - known, known)

    def chunk(self, name: str, number: int, position: int, last: int, most: int) -> Chunk:
        """At most `most` rows of [position, last), as far as they are there."""
        with self._lock:
            partition = self._log(name).partitions.get(number) or _Partition()
            at = position - partition.first
            rows = partition.rows[at : min(at + most, last - partition.first)] if at >= 0 else []
            return Chunk(rows, partition.first, partition.discarded, partition.end)

    def bounds(self, name: str, partitions: Sequence[int] | None = None) -> Bounds:
        """Start and end of these partitions, or of all that the log ever had."""
        with self._lock:
            log = self._log(name)
            numbers = sorted(log.partitions) if partitions is None else partitions
            found = {number: log.partitions.get(number) or _Partition() for number in numbers}
            return Bounds(
                log.partition_count,
                log.incarnation,
                {number: str(partition.first) for number, partition in found.items()},
                {number: str(partition.end) for number, partition in found.items()},
            )

    def next_sequence(self, name: str, publisher: str) -> int:
        """See `Log.next_sequence`."""
        with self._lock:
            return self._log(name).next_sequences.get(publisher, 0)


def opened(access: str) -> MemoryLogs:
    """The logs behind an access. Raises LogUnavailable if they have gone with their service."""
    logs = _all.get(access.removeprefix(SCHEME))
    if logs is None:
        raise LogUnavailable("the service in memory that had this log has been closed")
    return logs
