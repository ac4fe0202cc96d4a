"""The port of a log: what one promises, and the calls of consumers, publishers and the service.

Theory of positions
-------------------
A partition is a sequence of messages, and a *position* names a place between two of them: what has
been processed *up to*, that is, the message to be read next. A range is therefore [start, end),
the end of one range is the start of the next, and the end of a partition is the position the next
appended message will get.

Everything a consumer concludes from positions rests on these promises of a log:

1. **Positions are in the order of commits.** When a message becomes visible, no message with a
   lower position of its partition becomes visible later. A consumer that has read up to a
   position never has to look back. (The built-in log assigns positions under the lock of the
   partition's row, which is kept until the commit; a sequence would not do.)
2. **The end is never ahead.** Every position below an end that `bounds` returned can be read or
   has been trimmed; none is still in the making.
3. **An append is all or nothing and happens once.** Messages carry (publisher, sequence); what a
   log has already taken from that publisher it drops and counts as a duplicate. So an append whose
   outcome is unknown is simply repeated.
4. **An append routed with another partition count than the log's is refused, within the append.**
   A resize waits for the appends under way and is waited for by those that come. So once `bounds`
   says that a partition is outside the log's partition count, the end that the same call returned
   is final: nothing will ever be appended there under the old count (`Bounds.is_final`).
5. **Nothing is skipped silently.** Reading from a position that has been trimmed raises
   `PositionTrimmed`; from one the partition has not reached, `PositionAhead`; to one it has not
   reached, `LogBehind`, after what is there. What an administrator *discarded* (the contract,
   *Resize*) is the exception: it was meant to vanish.
6. **Position numbers are not used twice**, also not after a trim, a discard or a resize to and
   fro: a partition's positions only grow, as long as the log exists. A log dropped and made again
   under its name has another `incarnation`, and its positions begin anew.

Positions are strings. Only the log that made them can compare them; they may have holes.
All calls are bounded in time and raise `LogUnavailable` when the bound is reached. A log object
may be used by several threads; calls then wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from counterpoise.logs.errors import InvalidMessage

MESSAGE_SCHEMA: pa.Schema = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("published_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of what `Log.read` yields. `key` and `headers` may be null, the others never are."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The most that value, key and headers (all in UTF-8) of one message may have together."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is published. `published_at` None means the time at which the log appends it."""

    value: bytes
    key: str | None = None
    headers: Mapping[str, str] | None = None
    published_at: datetime | None = None

    def size_bytes(self) -> int:
        """What the message counts against limits; raises InvalidMessage if no log could hold it."""
        if not isinstance(self.value, bytes):
            raise InvalidMessage(f"value must be bytes, not {type(self.value).__name__}")
        size = len(self.value)
        if self.key is not None:
            size += _text_bytes("key", self.key)
        for name, text in (self.headers or {}).items():
            size += _text_bytes("name of a header", name) + _text_bytes(f"header {name!r}", text)
        if size > MAX_MESSAGE_BYTES:
            raise InvalidMessage(
                f"the message has {size} bytes, and {MAX_MESSAGE_BYTES} is the most a log holds"
            )
        if self.published_at is not None and self.published_at.utcoffset() is None:
            raise InvalidMessage("published_at must carry a time zone")
        return size


def _text_bytes(what: str, text: str) -> int:
    if not isinstance(text, str):
        raise InvalidMessage(f"the {what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidMessage(f"the {what} contains a NUL character, which a log cannot hold")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(f"the {what} is not valid Unicode (a lone surrogate)") from None


@dataclass(frozen=True, slots=True)
class AppendBatch:
    """Messages of one publisher, to be appended together or not at all.

    The i-th has the sequence `first_sequence + i` and goes to partition `partitions[i]`, which was
    chosen among `partition_count` partitions. Within a partition the order is kept.
    """

    publisher: str
    first_sequence: int
    partition_count: int
    partitions: Sequence[int]
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """How many messages of the batch are new in the log, and how many it had already."""

    appended: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where partitions start and end, and how many the log has: all seen at one instant.

    `ends` are the positions the next messages will get.
    """

    partition_count: int
    incarnation: str
    starts: Mapping[int, str] = field(repr=False)
    ends: Mapping[int, str] = field(repr=False)

    def is_final(self, partition: int) -> bool:
        """Whether nothing can be appended behind this partition's end any more (promise 4)."""
        return partition >= self.partition_count


class Log(Protocol):
    """A log of partitions. See the module's docstring for what it promises."""

    def append(self, batch: AppendBatch) -> AppendResult:
        """Append the batch in one transaction.

        Raises StalePartitionCount if the batch was routed with another count than the log's,
        InvalidMessage, LogNotFound, and LogUnavailable when the outcome is not known.
        """
        ...

    def read(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The messages of [start, end) in order, as record batches of MESSAGE_SCHEMA.

        `end` None means the end of the partition as it is found. At most `max_messages` come, and
        no more follow once `max_bytes` of values have come (at least one message always does).
        Otherwise the range comes whole or an error does: LogBehind where the partition ends before
        it (a log may wait for it first). Memory is bounded whatever the range. Raises
        PositionTrimmed, PositionAhead, InvalidPosition, LogNotFound, LogUnavailable.
        """
        ...

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        """Start and end positions of the partitions and the log's partition count, in one call.

        A partition that the log has never had starts and ends at the log's first position.
        Raises LogNotFound, LogUnavailable.
        """
        ...

    def limit(
        self,
        starts: Mapping[int, str],
        max_messages: int,
        bounds: Bounds | None = None,
        *,
        max_bytes: int | None = None,
    ) -> Mapping[int, str]:
        """Ends such that [start, end) over all partitions hold at most `max_messages`, fairly.

        No partition gets more than another that still has messages, but for the remainder, which
        goes to the longest backlogs. A start that lies below the partition's start counts from
        there. With `bounds` (not older than the starts) and without `max_bytes` nothing is asked of
        the log. `max_bytes` of values is kept as closely as the log can say; at least one message
        comes all the same, so that one of any size gets through.
        Raises PositionAhead, InvalidPosition, LogNotFound, LogUnavailable.
        """
        ...

    def backlog(self, positions: Mapping[int, str | None], bounds: Bounds) -> Mapping[int, int]:
        """How many messages lie between each position and the partition's end.

        At most so many where positions have holes. None, and what lies below the partition's start,
        counts from the start. Nothing is asked of the log. Raises PositionAhead, InvalidPosition.
        """
        ...

    def compare(self, a: str, b: str) -> int:
        """Negative, zero or positive as a is before, at or after b. Raises InvalidPosition."""
        ...

    def trim(self, below: Mapping[int, str]) -> None:
        """Delete what lies below these positions. Repeating or lowering one does nothing."""
        ...

    def next_sequence(self, publisher: str) -> int:
        """The last sequence the log has of this publisher, plus one; 0 if it has none.

        Waits for an append of the publisher that is still under way.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The log can be used again; it then connects anew."""
        ...


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The queue that a log was made for; `created_at` (Unix seconds) tells namesakes apart."""

    queue_id: str
    queue: str
    created_at: float


class ManagedLog(Log, Protocol):
    """A log outside the service as the service treats it: made, resized and dropped with its queue.

    All calls may be repeated. Raises LogUnavailable, LogError; LogNotFound where it says so. What
    names an `owner` changes nothing when the log is another queue's: it came too late.
    """

    def ensure(
        self, partition_count: int, owner: LogOwner, begins: Mapping[int, str] | None = None
    ) -> str:
        """Make the log unless it exists; its incarnation. The count of one that exists stays.

        `begins`: positions that consumers have reached. A partition that ends below one has lost
        messages; it goes on there, so that no position consumers know means another message, and
        what lies below can no longer be read. Raises
        LogOwned if it belongs to another queue, LogError if it cannot keep a log's promises.
        """
        ...

    def partition_count(self) -> int:
        """How many partitions the log has. Raises LogNotFound."""
        ...

    def set_partition_count(
        self, partition_count: int, revision: int, owner: LogOwner | None = None
    ) -> bool:
        """Refuse appends routed with another count from now on; False if that comes too late.

        `revision` is the queue's that set the count; lower ones than seen change nothing. Raises
        LogNotFound.
        """
        ...

    def trim(self, below: Mapping[int, str], owner: LogOwner | None = None) -> None:
        """As any log's."""
        ...

    def discard(self, partitions: Sequence[int], owner: LogOwner | None = None) -> frozenset[int]:
        """Delete what these hold and return which: those outside the count. Raises LogNotFound."""
        ...

    def position_at(self, time: float) -> Mapping[int, str]:
        """Of each partition the first position published at `time` (Unix seconds) or later.

        Nothing published since lies below it; the partition's end without such a message.
        """
        ...

    def drop(self, owner: LogOwner) -> None:
        """Delete the log with all it holds, if it is this queue's."""
        ...
