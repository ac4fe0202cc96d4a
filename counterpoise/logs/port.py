"""The port of a log: its promises, and the calls of consumers and publishers.

Theory of positions
-------------------
A partition is a sequence of messages, and a *position* names the message to be read next: all
messages before it are processed. A range is therefore [start, end), the end of one range is the
start of the next, and the end of a partition is the position of the next message to be appended.

Consumers rely on these promises of a log:

1. **Positions are in the order of commits.** When a message becomes visible, no message with a
   lower position of its partition becomes visible later. A consumer that has read up to a
   position never has to look back. (The built-in log assigns positions under the lock of the
   partition's row, which is held until the commit; a database sequence would break this promise.)
2. **The end is never ahead.** Every position below an end that `bounds` returned can be read or
   has been trimmed; no message below it is still being written.
3. **An append is all or nothing and happens once.** Messages carry (publisher, sequence); the log
   drops sequences that it already has from that publisher and counts them as duplicates. So an
   append with an unknown outcome is simply repeated. A log keeps one number for each publisher, the
   newest sequence, whatever partitions its messages went to. So a repetition is found also if it is
   routed to other partitions, after a resize or a split.
4. **An append routed with another partition count than the log's is refused, within the append.**
   A resize waits for running appends, and later appends wait for the resize. So once `bounds`
   says that a partition is outside the log's partition count, the end that the same call returned
   is final: no message will ever be appended there under the old count (`Bounds.is_final`).
5. **No message is skipped silently.** Reading from a trimmed position raises `PositionTrimmed`;
   from a position that the partition has not reached, `PositionAhead`; up to such a position,
   `LogBehind`, after the existing messages. The exception are messages that an administrator
   *discarded* (the contract, *Resize*): they were meant to vanish.
6. **Positions are not used twice**, not even after a trim, a discard or a resize up and down:
   a partition's positions only grow, as long as the log exists. A log that is dropped and made
   again under its name has another `incarnation`, and its positions begin anew.
7. **A sealed partition is final.** Within a split or merge a dynamic log seals partitions and
   begins those that come after them. Nothing is appended to a sealed partition any more: an append
   with the ranges before is refused as in promise 4. `bounds` returns the end of the partition
   together with what comes after it. Logs without hash ranges have no such partitions.
8. **A resize leaves its cuts.** Within a resize the log notes the end of each partition, its *cut*.
   A message that was routed with the count before lies below the cut of its partition, a message
   that is routed with the count after lies at the cut or past it. `bounds` returns the number of
   the last resize and its cuts together with the ends. So no reader can know of a message past a
   cut without knowing the cut. Logs without cuts (Redis, Kafka) say that they were never resized,
   and the queues that read them have no ordered resizes.

A reader that has read all there is does not ask again and again: it *watches* the ends (`watch`),
and the log wakes it. A wake-up promises nothing: it may be late, and may come without a message.
What a reader may rely on is the time after which the log wants to be asked again. So a lost wake-up
costs seconds, and no message.

Positions are strings. Only the log that made them can compare them; they may have holes.
All calls are bounded in time and raise `LogUnavailable` when the bound is reached. Several threads
may use a log object; their calls then wait for each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import gt
from typing import TYPE_CHECKING, NamedTuple, Protocol

from counterpoise.logs.errors import InvalidMessage
from counterpoise.logs.rows import SHOWN_FROM, SHOWN_TO, Rows

if TYPE_CHECKING:
    import pyarrow as pa

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest sum of the bytes of value, key and headers (all in UTF-8) of one message."""

OUR_HEADERS = "counterpoise-"
ASIDE_HEADERS = ("counterpoise-dead-letter-", "counterpoise-retry-")
OUR_HEADERS_BYTES = 64 * 1024
"""So many bytes of headers with the first name may come on top, and so many of the others. So a
message of any size can be put aside, as a dead letter or to be tried again, whatever headers its
publisher has given it: what is put aside gets the others anew."""


class Message(NamedTuple):
    """A message to publish. `published_at` None means the time at which the log appends it."""

    value: bytes
    key: str | None = None
    headers: Mapping[str, str] | None = None
    published_at: datetime | None = None

    def size_bytes(self) -> int:
        """The message's size for limits; raises InvalidMessage if no log can hold it."""
        if not isinstance(self.value, bytes):
            raise InvalidMessage(f"value must be bytes, not {type(self.value).__name__}")
        size, ours, aside = len(self.value), 0, 0
        if self.key is not None:
            size += _text_bytes("key", self.key)
        headers: object = self.headers
        if headers is not None:
            if not isinstance(headers, Mapping):
                raise InvalidMessage(f"headers must be a mapping, not {type(headers).__name__}")
            for name, text in headers.items():
                both = _text_bytes("name of a header", name) + _text_bytes(f"header {name!r}", text)
                size += both
                if name.startswith(ASIDE_HEADERS):
                    aside += both
                elif name.startswith(OUR_HEADERS):
                    ours += both
        on_top = min(ours, OUR_HEADERS_BYTES) + min(aside, OUR_HEADERS_BYTES)
        if size - on_top > MAX_MESSAGE_BYTES:
            raise InvalidMessage(
                f"the message has {size} bytes, and {MAX_MESSAGE_BYTES} is the most a log holds"
            )
        if self.published_at is not None:
            _check_time(self.published_at)
        return size


def _check_time(at: datetime) -> None:
    if not isinstance(at, datetime):
        raise InvalidMessage(f"published_at must be a datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidMessage("published_at must carry a time zone")
    if not SHOWN_FROM <= at <= SHOWN_TO:
        raise InvalidMessage(
            f"published_at is {at}, which a consumer in another time zone may not be able to show; "
            f"it must be between {SHOWN_FROM} and {SHOWN_TO}"
        )


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
    """Messages of one publisher, to be appended together or not at all, in their order within a
    partition.

    The i-th has the sequence `first_sequence + i` and goes to partition `partitions[i]`, chosen
    among `partition_count` partitions, or with `by_range` by the ranges of a dynamic log.

    With `sequences` the i-th has `sequences[i]` instead, of which the first is `first_sequence`.
    They may have holes, and never fall. Messages with the same sequence have to be in the same
    batch: the log then has all of them or none, in whatever order they are repeated.

    `elsewhere`: another process may have appended them. A log that has to look for the messages of
    other processes does so.
    """

    publisher: str
    first_sequence: int
    partition_count: int
    partitions: Sequence[int]
    messages: Sequence[Message]
    by_range: bool = False
    sequences: Sequence[int] | None = None
    elsewhere: bool = False

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message."""
        if self.sequences is None:
            return self.first_sequence + len(self.messages) - 1
        return self.sequences[-1]

    def known(self, newest: int) -> int:
        """How many of the first messages a log has whose newest sequence is this; -1: none."""
        if self.sequences is None:
            return min(max(newest + 1 - self.first_sequence, 0), len(self.messages))
        return bisect_right(self.sequences, newest)

    def check_sequences(self) -> None:
        """Raises InvalidMessage if they are not as described."""
        sequences = self.sequences
        if self.first_sequence < 0:
            raise InvalidMessage("a sequence is at least 0")
        if sequences is None:
            return
        if len(sequences) != len(self.messages) or sequences[0] != self.first_sequence:
            raise InvalidMessage("each message has one sequence, and the first is first_sequence")
        if any(map(gt, sequences, sequences[1:])):
            raise InvalidMessage("the sequences of a batch never fall")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The numbers of new messages in the log and of messages that it had already."""

    appended: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Successor:
    """A partition that comes after sealed ones: its number, key, and the keys of its parents."""

    partition: int
    key: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Starts and ends of partitions, and the log's partition count, all at one instant.

    `ends`: the positions of the next messages to be appended. Of a dynamic log the count is that of
    all partitions it ever had; `keys` has their keys and `sealed` what comes after the sealed ones
    (promise 7). `resize`: the number of the log's last resize, which was from `resized_from`
    partitions (0 and 0: none, or the log takes no cuts). `cuts`: the ends at that moment (promise
    8). `unanswered`: partitions of which nothing is known yet, if nobody waited for them; in Kafka
    they have no leader.
    """

    partition_count: int
    incarnation: str
    starts: Mapping[int, str] = field(repr=False)
    ends: Mapping[int, str] = field(repr=False)
    keys: Mapping[int, str] = field(default_factory=dict, repr=False)
    sealed: Mapping[int, tuple[Successor, ...]] = field(default_factory=dict, repr=False)
    resize: int = 0
    resized_from: int = 0
    cuts: Mapping[int, str] = field(default_factory=dict, repr=False)
    unanswered: frozenset[int] = frozenset()

    def is_final(self, partition: int) -> bool:
        """Whether no message can be appended at this partition's end any more (promises 4, 7)."""
        if partition in self.keys:
            return partition in self.sealed
        return partition >= self.partition_count


@dataclass(frozen=True, slots=True)
class Rest:
    """How long a reader may wait that has read up to the ends: until one of the `descriptors` (of
    sockets) is readable, and no longer than `seconds`. Then it calls `watch` again. 0: there may be
    something to read, and only in the partitions `moved` if the log knows that: with an end up to
    which there are messages, or None if the log is to be asked for it.
    """

    seconds: float
    descriptors: tuple[int, ...] = ()
    moved: Mapping[int, str | None] | None = None


class Log(Protocol):
    """A log of partitions. The module's docstring lists its promises."""

    @property
    def appends_in_parallel(self) -> bool:
        """Whether appends to different partitions over several connections run at the same time."""
        ...

    def append(self, batch: AppendBatch) -> AppendResult:
        """Append the batch in one transaction.

        Raises StaleRouting if the batch was not routed with the log's partition count or, in a
        dynamic log, with its ranges; InvalidMessage, LogNotFound, and LogUnavailable when the
        outcome is not known.
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
        """As `rows`, as record batches of MESSAGE_SCHEMA. Raises LogError without pyarrow, too."""
        ...

    def rows(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[Rows]:
        """The messages of [start, end) in order, some at a time and at least one.

        `end` None: the current end of the partition. At most `max_messages` are returned, and none
        after `max_bytes` of values, but at least one. No part has more than `max_bytes` of values,
        keys and headers before its last message. Whatever a row holds, it is returned
        (`counterpoise.logs.rows`). Otherwise the read returns the complete range or raises:
        LogBehind if the partition ends before the range (a log may wait for it first). Memory is
        bounded for any range. Raises PositionTrimmed, PositionAhead, InvalidPosition, LogNotFound,
        LogUnavailable.
        """
        ...

    def first(
        self,
        ranges: Mapping[int, tuple[str, str]],
        *,
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, tuple[Rows, str]]:
        """The first messages of several ranges [start, end) in one call, as far as the log can.

        Of each partition some as from `rows`, at most `max_messages`, and the position after it. In
        all at most `max_bytes` of values, keys and headers. Any partition may be missing; `rows`
        says whether its range cannot be read. Raises InvalidPosition, LogUnavailable.
        """
        ...

    def begin(self, ranges: Mapping[int, tuple[str, str]]) -> None:
        """These ranges [start, end) are read next, one after another: where the first messages of a
        partition take a while, the log fetches those of all of them now.

        Raises InvalidPosition, LogError if the access is not valid.
        """
        ...

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        """Start and end positions of the partitions and the log's partition count, in one call.

        A partition that the log never had starts and ends at the log's first position.
        `at_once`: those that are asked for first and do not answer soon are not waited for
        (`Bounds.unanswered`). For one reader at a time.
        Raises LogNotFound, LogUnavailable.
        """
        ...

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        """For a reader that waits for messages at these ends of partitions, as `bounds` returned
        them; at least one. None: this log cannot wake it now, so it has to ask now and then.

        Call it again after each rest, with the same ends, until it returns 0 seconds. For one
        reader at a time. Raises InvalidPosition, LogNotFound, LogUnavailable.
        """
        ...

    def glance(self, ends: Mapping[int, str]) -> Rest | None:
        """As `watch`, for a reader that does not rest now, and may rest at other ends next."""
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

        Partitions that still have messages get equal numbers; the remainder goes to the longest
        backlogs. A start below the partition's start counts from there. With `bounds` (not older
        than the starts) and without `max_bytes` the log is not asked. `max_bytes` of values holds
        as closely as the log knows sizes; at least one message is planned. Raises PositionAhead,
        InvalidPosition, LogNotFound, LogUnavailable.
        """
        ...

    def backlog(self, positions: Mapping[int, str | None], bounds: Bounds) -> Mapping[int, int]:
        """How many messages lie between each position and the partition's end.

        An upper limit if positions have holes. None and positions below the partition's start
        count from the start. The log is not asked. Raises PositionAhead, InvalidPosition.
        """
        ...

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        """How many seconds ago the message at each of these positions was published; at least 0.

        By the clock of the log's server; for Kafka by this machine's. Left out are partitions that
        have no message there, or one without a time, and those that the log does not reach within
        the time and the bytes of one call. Raises InvalidPosition, LogNotFound, LogUnavailable.
        """
        ...

    def first_since(self, partition: int, start: str, end: str, at: datetime) -> str:
        """The position in [start, end] where the messages published at `at` or later begin; `end`
        if none.

        As if times rose with positions: where publishers give messages times of their own, others
        may lie on either side. Makes some calls. Raises PositionTrimmed, InvalidPosition,
        LogNotFound, LogUnavailable.
        """
        ...

    def compare(self, a: str, b: str) -> int:
        """Negative, zero or positive as a is before, at or after b. Raises InvalidPosition."""
        ...

    def next_sequence(self, publisher: str) -> int:
        """The last sequence the log has of this publisher, plus one; 0 if it has none.

        Waits for a running append of the publisher.
        """
        ...

    def close(self) -> None:
        """Close the connections. The log can be used again; it then connects anew."""
        ...
