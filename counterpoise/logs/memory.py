"""The log in memory: the promises of `counterpoise.logs.port`, in one process, for tests.

`MemoryLogs` holds all logs of one service, and is what the service administers. Every method is one
transaction under one lock, so the promises about instants (2, 3 and 4) hold by construction.
Nothing waits. `MemoryLog` is how consumers and publishers of the same process reach one of the
logs. They find it by an access `memory://ID`, which is good in this process as long as the
`MemoryLogs` exists. `counterpoise.testing` puts both together.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from counterpoise.logs.errors import (
    InvalidMessage,
    LogBehind,
    LogNotFound,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    StaleRouting,
)
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog, fair_shares
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Message, Rest
from counterpoise.logs.rows import Columns, Rows, microseconds_of

SCHEME = "memory://"
CHUNK_MESSAGES = 8192
CHUNK_BYTES = 8 * 1024 * 1024
# Of a reader that is woken by each append.
REST_SECONDS = 60.0

_numbers = itertools.count(1)
_all: WeakValueDictionary[str, MemoryLogs] = WeakValueDictionary()


class _Row(NamedTuple):
    """A message in the log, and when it was published (microseconds since 1970)."""

    message: Message
    microseconds: int


@dataclass(slots=True)
class _Partition:
    """The messages from `first` on; those below `discarded` vanished without an error."""

    first: int = 0
    discarded: int = 0
    rows: list[_Row] = field(default_factory=list)

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


class _Chunk(NamedTuple):
    """What a read found from a position on: rows, and the partition's positions at that instant."""

    rows: Sequence[_Row]
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
        # Of readers that wait, with the name of their log.
        self._bells: dict[socket.socket, str] = {}
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
        self._ring(name)
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

    def young(
        self, name: str, below: Mapping[int, int], seconds: float
    ) -> Mapping[int, tuple[int, float]]:
        """Where the messages below these positions begin that were published in the last `seconds`,
        and their mean size in bytes. A partition without one is left out.
        """
        since = (self.clock() - seconds) * 1e6
        found = {}
        with self._lock:
            partitions = self._log(name).partitions
            for number, end in below.items():
                partition = partitions[number]
                rows = partition.rows[: max(0, end - partition.first)]
                late = next((n for n, row in enumerate(rows) if row.microseconds >= since), None)
                if late is not None:
                    mean = sum(row.message.size_bytes() for row in rows[late:]) / (len(rows) - late)
                    found[number] = (partition.first + late, mean)
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
        if not inside or count != len(batch.partitions):
            raise InvalidMessage(
                "the log refused the messages: different numbers of messages and partitions, or a "
                "partition out of range"
            )
        batch.check_sequences()
        with self._lock:
            log = self._log(name)
            if batch.by_range or log.partition_count != batch.partition_count:
                raise StaleRouting(batch.partition_count, log.partition_count)
            known = batch.known(log.next_sequences.get(batch.publisher, 0) - 1)
            if known < count:
                log.next_sequences[batch.publisher] = batch.last_sequence + 1
            now = round(self.clock() * 1e6)
            routed = zip(batch.partitions, batch.messages, strict=True)
            for number, message in itertools.islice(routed, known, None):
                at = message.published_at
                row = _Row(message, now if at is None else microseconds_of(at))
                log.partitions[number].rows.append(row)
        if known < count:
            self._ring(name)
            self.appended()
        return AppendResult(count - known, known)

    def watch(self, name: str, ends: Mapping[int, int], bell: socket.socket) -> bool:
        """Ring the bell at each change of the log, if these are its ends."""
        with self._lock:
            partitions = self._log(name).partitions
            if any((partitions.get(one) or _Partition()).end != at for one, at in ends.items()):
                return False
            self._bells[bell] = name
            return True

    def forget(self, bell: socket.socket) -> None:
        """Ring it no more."""
        with self._lock:
            self._bells.pop(bell, None)

    def _ring(self, name: str) -> None:
        with self._lock:
            for bell, watched in self._bells.items():
                if watched == name:
                    with suppress(OSError):  # it has been rung often enough, or its reader is gone
                        bell.send(b"\0")

    def chunk(self, name: str, number: int, position: int, last: int, most: int) -> _Chunk:
        """At most `most` rows of [position, last), as far as they are there."""
        with self._lock:
            partition = self._log(name).partitions.get(number) or _Partition()
            at = position - partition.first
            rows = partition.rows[at : min(at + most, last - partition.first)] if at >= 0 else []
            return _Chunk(rows, partition.first, partition.discarded, partition.end)

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

    def ages(self, name: str, positions: Mapping[int, int]) -> Mapping[int, float]:
        """See `Log.ages`."""
        now, ages = self.clock(), dict[int, float]()
        for number, at in positions.items():
            for row in self.chunk(name, number, at, at + 1, 1).rows:
                ages[number] = max(0.0, now - row.microseconds / 1e6)
        return ages

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


class MemoryLog(NumberedLog):
    """The log `name` among `logs`. See `counterpoise.logs.Log`; positions have no holes."""

    kind = "the log in memory"
    too_large = TOO_LARGE["builtin"]
    appends_in_parallel = False

    def __init__(self, logs: MemoryLogs, name: str) -> None:
        self.name = name
        self._logs = logs
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def __repr__(self) -> str:
        return f"MemoryLog({self.name!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        if not batch.messages:
            return AppendResult(0, 0)
        return self._logs.append(self.name, batch)

    def rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[Rows]:
        position = self.number(start)
        if end is None:
            last = self._logs.chunk(self.name, partition, 0, 0, 0).end
            if position > last:
                raise PositionAhead(partition, str(position), str(last))
        else:
            last = self.number(end)
        messages_left = max_messages
        bytes_left = CHUNK_BYTES if max_bytes is None else max_bytes
        while position < last and messages_left > 0 and bytes_left > 0:
            most = min(messages_left, CHUNK_MESSAGES)
            found = self._logs.chunk(self.name, partition, position, last, most)
            rows = _first_bytes(found.rows, bytes_left)
            if not rows:
                position = _after_gap(partition, position, last, found)
                continue
            yield _rows(partition, position, rows)
            position += len(rows)
            messages_left -= len(rows)
            if max_bytes is not None:
                bytes_left -= sum(len(row.message.value) for row in rows)

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        return self._logs.bounds(self.name, partitions)

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        numbers = {number: self.number(position) for number, position in positions.items()}
        return self._logs.ages(self.name, numbers)

    def next_sequence(self, publisher: str) -> int:
        return self._logs.next_sequence(self.name, publisher)

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        numbers = {number: self.number(end) for number, end in ends.items()}
        if self._bell is None:
            self._bell = socket.socketpair()
            for one in self._bell:
                one.setblocking(False)
        heard, bell = self._bell
        with suppress(BlockingIOError):
            heard.recv(4096)
        waits = self._logs.watch(self.name, numbers, bell)
        return Rest(REST_SECONDS if waits else 0.0, (heard.fileno(),))

    def close(self) -> None:
        bell, self._bell = self._bell, None
        for one in bell or ():
            self._logs.forget(one)
            one.close()

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        shares = fair_shares(backlogs, max_messages)
        # In the order of the bytes that lie before each message in its own partition, see
        # `counterpoise.logs.builtin.admission`.
        waiting: list[tuple[int, int, int, int]] = []
        for number, share in shares.items():
            begin, before = begins[number], 0
            found = self._logs.chunk(self.name, number, begin, begin + share, share)
            for row in found.rows:
                size = len(row.message.value)
                waiting.append((before, -backlogs[number], number, size))
                before += size
        admitted, so_far = dict.fromkeys(backlogs, 0), 0
        for _, _, number, size in sorted(waiting, key=lambda one: one[:3]):
            if so_far >= max(1, max_bytes):
                break
            admitted[number] += 1
            so_far += size
        return admitted


def _first_bytes(rows: Sequence[_Row], values_bytes: int) -> Sequence[_Row]:
    """The rows before which there are fewer bytes than that, and than a chunk's."""
    values = memory = 0
    for count, (message, _) in enumerate(rows):
        if values >= values_bytes or memory >= min(CHUNK_BYTES, values_bytes):
            return rows[:count]
        values += len(message.value)
        memory += message.size_bytes()
    return rows


def _after_gap(partition: int, position: int, last: int, found: _Chunk) -> int:
    """Where to continue if there is no message at `position`, which is before `last`."""
    if position < found.discarded:
        return found.discarded
    if position < found.first:
        raise PositionTrimmed(partition, str(position), str(found.first))
    if position > found.end:
        raise PositionAhead(partition, str(position), str(found.end))
    raise LogBehind(partition, str(found.end), str(last))


def _rows(partition: int, position: int, rows: Sequence[_Row]) -> Rows:
    messages = [row.message for row in rows]
    return Rows(
        Columns(
            partition,
            range(position, position + len(rows)),
            [row.microseconds for row in rows],
            [None if message.key is None else message.key.encode() for message in messages],
            [message.value for message in messages],
            [list(message.headers.items()) if message.headers else None for message in messages],
        )
    )
