"""A log in Redis Streams: `redis://host:port/DB/NAME`.

A partition is a stream, and positions are decimal numbers without holes, which a script assigns
inside Redis (`scripts`, where the keys and the form of a message are described too). Redis holds no
data of consumers: no consumer groups, no cursors.

The promises hold as long as Redis keeps its data. A Redis that evicts keys would lose messages
silently, so `ensure` refuses it. A Redis that restarts without its data has no log any more
(`LogNotFound`) until the service makes it anew: with another incarnation, and beginning at the
positions that consumers had reached, so that a known position never means another message. Reading
lost messages raises PositionTrimmed. docs/logs.md describes the configuration.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from counterpoise.logs.address import parse_log
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
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Rest
from counterpoise.logs.redis import scripts
from counterpoise.logs.redis.connection import (
    LEAST_LIMIT_BYTES,
    ConnectionCut,
    RedisConnection,
    Script,
)
from counterpoise.logs.redis.watching import RedisWatching
from counterpoise.logs.rows import Columns, Rows, headers_of, microseconds_of

# An id, and fields and values in turn: t, v, then the optional ones (see `scripts`).
Entry = tuple[bytes, list[bytes]]

_META = ("partition_count", "incarnation", "revision")
_TIME = re.compile(rb"-?[0-9]{1,30}")

CHUNK_MESSAGES = 4096
CHUNK_BYTES = 8 * 1024 * 1024
# After an answer that a server has cut, so much less is asked for; then more by this share.
LEAST_BYTES = 4 * 1024
FEWER, GROWTH = 4, 16
# Of a call with more Redis 6 closes the connection, less the digest, the keys and what counts them.
MOST_ARGUMENTS = 1024 * 1024 - 100_000
# Partitions of which the bounds are an answer that no server has a reason to cut.
FEW_PARTITIONS = 1000
# Redis copies a whole message to see its time, and serves no other client meanwhile.
AGES_BYTES = 64 * 1024 * 1024
# A retry after this time would be appended a second time.
PUBLISHER_SECONDS = 30 * 24 * 3600

_APPEND = Script(scripts.APPEND)
_NEXT_SEQUENCE = Script(scripts.NEXT_SEQUENCE)
_AGES = Script(scripts.AGES)
_PLAN = Script(scripts.PLAN)
_WEIGH = Script(scripts.WEIGH)
_FIT = Script(scripts.FIT)
_PART = Script(scripts.PART)


def microseconds(time: datetime | None) -> str:
    """A time as `t` has it, exactly; the empty string for the time of the append."""
    return "" if time is None else str(microseconds_of(time))


def position_of(entry: Entry) -> int:
    """The position of a message: the first part of its id."""
    return int(entry[0].partition(b"-")[0])


def contiguous_from(position: int, entries: list[Entry]) -> list[Entry]:
    """The entries up to the first gap, if the first entry is at `position`."""
    if not entries or position_of(entries[0]) != position:
        return []
    if position_of(entries[-1]) - position + 1 == len(entries):
        return entries
    count = next(n for n, entry in enumerate(entries) if position_of(entry) != position + n)
    return entries[:count]


def rows_of(partition: int, position: int, entries: list[Entry]) -> Rows:
    """Consecutive entries from `position`."""
    rows = [_fields(fields) for _, fields in entries]
    headers = (row.get(b"h") for row in rows)
    return Rows(
        Columns(
            partition,
            range(position, position + len(entries)),
            [_time(row.get(b"t")) for row in rows],
            [row.get(b"k") for row in rows],
            [row.get(b"v") for row in rows],
            [None if raw is None else headers_of(raw) for raw in headers],
        )
    )


def value_bytes(entry: Entry) -> int:
    """The bytes of a message's value."""
    return len(_fields(entry[1]).get(b"v", b""))


def _fields(fields: list[bytes]) -> dict[bytes, bytes]:
    """The fields of an entry by name; of a name that is there twice the first."""
    return dict(zip(fields[-2::-2], fields[::-2], strict=True))


def _time(text: bytes | None) -> int | None:
    # More digits are no time of this world, and Python may refuse to read them.
    if text is None or not _TIME.fullmatch(text):
        return None
    return int(text)


class _Chunk(NamedTuple):
    """A partition's state, the end of the next chunk to read, and its first message."""

    following: int
    first: int
    discarded: int
    end: int
    there: int


class RedisLog(NumberedLog):
    """See `counterpoise.logs.Log`. Thread-safe; threads do not wait for others."""

    kind = "a log in Redis"
    too_large = TOO_LARGE["redis"]
    # Redis works on one call at a time.
    appends_in_parallel = False

    def __init__(self, log: str, access: str | None = None, *, timeout_seconds: float = 30.0):
        """`log` is the queue's, `access` a URL with credentials. Raises LogError for bad ones."""
        address = parse_log(log)
        self.name = address.name
        self._log = log
        self._redis = RedisConnection(address, access, timeout_seconds)
        self._prefix = f"counterpoise:{{{address.name}}}:".encode()
        self._meta = self._prefix + b"meta"
        self._partitions = self._prefix + b"partitions"
        self._watching = RedisWatching(self._redis, self._stream)
        # A server closes the connection at an answer beyond its `client-output-buffer-limit`.
        self._chunk_bytes = CHUNK_BYTES

    def __repr__(self) -> str:
        return f"RedisLog({self._log!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        messages = batch.messages
        if not messages:
            return AppendResult(0, 0)
        batch.check_sequences()
        partitions = sorted(set(batch.partitions))
        place = {partition: number for number, partition in enumerate(partitions, 1)}
        arguments: list[Any] = [
            batch.partition_count,
            batch.first_sequence if batch.sequences is None else "",
            PUBLISHER_SECONDS,
            len(partitions),
            *partitions,
            *(batch.sequences or ()),
        ]
        for partition, message in zip(batch.partitions, messages, strict=True):
            message.size_bytes()
            headers = message.headers
            arguments += (
                place[partition],
                microseconds(message.published_at),
                message.value,
                "" if message.key is None else f"={message.key}",
                json.dumps(dict(headers), ensure_ascii=False) if headers else "",
            )
        if len(arguments) > MOST_ARGUMENTS:
            raise InvalidMessage(f"{len(messages)} messages are too many for one append to Redis")
        keys = [self._meta, self._partitions, self._publisher(batch.publisher)]
        try:
            answer = self._redis.script(
                _APPEND, [*keys, *map(self._stream, partitions)], *arguments, retry=False
            )
        except ConnectionCut:
            encoded = (one.encode() if isinstance(one, str) else one for one in arguments)
            largest = max(len(one) for one in encoded if isinstance(one, bytes))
            if largest > LEAST_LIMIT_BYTES:
                self._redis.announce(largest)
            raise
        if answer[0] == b"stale":
            raise StaleRouting(batch.partition_count, int(answer[1]))
        if answer[0] == b"range":
            raise InvalidMessage("the log refused the messages: a partition is out of range")
        if answer[0] == b"time":
            raise InvalidMessage("the log refused the messages: one has a time that is none")
        appended = int(self._there(answer)[1])
        return AppendResult(appended, len(messages) - appended)

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
        last = None if end is None else self.number(end)
        messages_left, at_once = max_messages, CHUNK_MESSAGES
        bytes_left = CHUNK_BYTES if max_bytes is None else max_bytes
        missing_before = False
        while messages_left > 0 and bytes_left > 0 and (last is None or position < last):
            chunk = self._plan(
                partition,
                position,
                last,
                min(messages_left, at_once, CHUNK_MESSAGES),
                min(bytes_left, self._chunk_bytes, CHUNK_BYTES),
            )
            if position > chunk.following:
                raise PositionAhead(partition, str(position), str(chunk.following))
            if last is None:
                last = chunk.following
            if position < chunk.discarded:
                position = chunk.discarded
                continue
            if position >= last:
                return
            if position == chunk.following:
                raise LogBehind(partition, str(position), str(last))
            if position < chunk.there:
                # Trimmed, or lost by the server.
                raise PositionTrimmed(partition, str(position), str(chunk.there))
            try:
                found = self._entries(partition, position, chunk.end)
            except ConnectionCut:
                if chunk.end - position == 1:
                    raise
                # If the server is away, the next call says so.
                at_once = max(1, (chunk.end - position) // FEWER)
                self._chunk_bytes = max(LEAST_BYTES, self._chunk_bytes // FEWER)
                continue
            at_once *= FEWER
            entries = contiguous_from(position, found)
            if entries:
                yield rows_of(partition, position, entries)
                position += len(entries)
                messages_left -= len(entries)
                if max_bytes is not None:
                    bytes_left -= sum(map(value_bytes, entries))
            elif missing_before:
                raise self.lacks(partition, position)
            # It may have been trimmed between the two calls; the next round sees that.
            missing_before = not entries

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        wanted = list(partitions)
        (count, incarnation, _), states = self._states(wanted)
        if count is None or incarnation is None:
            raise self._not_found()
        starts = dict.fromkeys(wanted, "0")
        ends = dict.fromkeys(wanted, "0")
        for partition, state in zip(wanted, states, strict=True):
            if state is not None:
                ends[partition], starts[partition] = state.decode().split(" ")[:2]
        return Bounds(int(count), incarnation.decode(), starts, ends)

    def first(
        self, ranges: Mapping[int, tuple[str, str]], *, max_messages: int, max_bytes: int
    ) -> Mapping[int, tuple[Rows, str]]:
        """What the call of a reader that waited has brought."""
        found, taken = {}, self._watching.taken()
        for partition, (start, end) in ranges.items():
            position = self.number(start)
            entries = taken.get(self._stream(partition), [])[:max_messages]
            entries = contiguous_from(position, entries)
            size = sum(len(part) for _, fields in entries for part in fields)
            if entries and position + len(entries) <= self.number(end) and size <= max_bytes:
                found[partition] = (
                    rows_of(partition, position, entries),
                    str(position + len(entries)),
                )
        return found

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        return self._watching.watch({one: self.number(end) for one, end in ends.items()})

    def glance(self, ends: Mapping[int, str]) -> Rest | None:
        return self._watching.glance({one: self.number(end) for one, end in ends.items()})

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        numbers = [self.number(position) for position in positions.values()]
        keys = [*map(self._stream, positions)]
        present, *found = self._redis.script(_AGES, keys, AGES_BYTES, *numbers, retry=True)
        # A consumer may lack the right to the server's clock.
        now = int(time.time() * 1e6) if present is None else int(present)
        times = {number: _time(at) for number, at in zip(positions, found, strict=True)}
        return {number: max(0, now - at) / 1e6 for number, at in times.items() if at is not None}

    def next_sequence(self, publisher: str) -> int:
        """See `Log.next_sequence`; but a call that is still on its way is not waited for.

        If it arrives later, its sequences are taken, and their next user gets an error.
        """
        keys = [self._meta, self._publisher(publisher)]
        return int(self._there(self._redis.script(_NEXT_SEQUENCE, keys, retry=True))[1]) + 1

    def close(self) -> None:
        self._watching.close()
        self._redis.close()

    # ------------------------------------------------------------------ details

    def _plan(
        self, partition: int, start: int, end: int | None, max_messages: int, max_bytes: int
    ) -> _Chunk:
        keys = [self._meta, self._partitions, self._stream(partition)]
        last = "" if end is None else end
        answer = self._redis.script(
            _PLAN, keys, partition, start, last, max_messages, max_bytes, retry=True
        )
        return _Chunk(*map(int, self._there(answer)[1:]))

    def _states(self, partitions: Sequence[int]) -> tuple[list[bytes | None], list[bytes | None]]:
        """Count, incarnation and revision of the log, and the states of partitions, at one time."""

        def ask(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=True)
            pipeline.execute_command("HMGET", self._meta, *_META)
            if partitions:
                pipeline.execute_command("HMGET", self._partitions, *partitions)
            return list(pipeline.execute())

        try:
            meta, *states = self._redis.call(ask, retry=True)
        except ConnectionCut:
            if len(partitions) <= FEW_PARTITIONS:
                raise
        else:
            return meta, states[0] if states else []
        middle = len(partitions) // 2
        before, first = self._states(partitions[:middle])
        meta, second = self._states(partitions[middle:])
        # A partition that was outside of the count all the time had no append between the two.
        if meta != before:
            raise LogUnavailable(f"{self._log} was resized while it was asked; ask again")
        return meta, [*first, *second]

    def _entries(self, partition: int, start: int, end: int) -> list[Entry]:
        """The messages of a range; one alone that the server cuts is read in parts."""
        try:
            found = self._whole(partition, start, end)
        except ConnectionCut:
            if end - start > 1:
                raise
            self._redis.call(lambda client: client.ping(), retry=False)
            return self._in_parts(partition, start)
        self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes + self._chunk_bytes // GROWTH)
        return found

    def _in_parts(self, partition: int, position: int) -> list[Entry]:
        key, parts, size = self._stream(partition), list[bytes](), 1
        while (done := sum(map(len, parts))) < size:
            asked = (position, done + 1, done + self._chunk_bytes)
            try:
                answer = self._redis.script(_PART, [key], *asked, retry=True)
            except ConnectionCut as cut:
                if self._chunk_bytes <= LEAST_BYTES:
                    cut.add_note(
                        f"it has cut an answer of about {LEAST_BYTES} bytes; if its log names "
                        "client-output-buffer-limit, raise that"
                    )
                    raise
                self._chunk_bytes = max(LEAST_BYTES, self._chunk_bytes // FEWER)
                continue
            if not answer:
                return []
            found_id, sizes, part = answer
            size = sum(sizes)
            parts.append(part)
        whole, fields, at = b"".join(parts), list[bytes](), 0
        for length in sizes:
            fields.append(whole[at : at + length])
            at += length
        return [(found_id, fields)]

    def _whole(self, partition: int, start: int, end: int) -> list[Entry]:
        key = self._stream(partition)
        found: list[Entry] = self._redis.call(
            lambda client: client.execute_command("XRANGE", key, f"{start}-0", f"({end}-0"),
            retry=True,
        )
        return found

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        """Every partition gets as many messages as fit in its share of the bytes.

        The rest goes to the partitions that used the least of their shares, one message to each,
        until nothing is left. So at least one message is read, a message of any size gets its turn,
        and `max_bytes` is exceeded by less than one message.
        """
        counts = fair_shares(backlogs, max_messages)
        partitions = [partition for partition, count in counts.items() if count]
        if not partitions:
            return counts
        keys = [self._partitions, *map(self._stream, partitions)]
        ranges = [[p, begins[p], begins[p] + counts[p]] for p in partitions]
        weighed = self._redis.script(_WEIGH, keys, *(x for one in ranges for x in one), retry=True)
        # Messages that were trimmed meanwhile are not read.
        sizes = {p: max(0, int(size)) for p, size in zip(partitions, weighed, strict=True)}
        if sum(sizes.values()) <= max_bytes:
            return counts
        shares = fair_shares(sizes, max(1, max_bytes))
        asked = [part for one in ranges for part in (*one, shares[one[0]])]
        fitting = self._redis.script(_FIT, keys, *asked, retry=True)
        within = dict(counts)
        left, unused, follow = max_bytes, {}, {}
        for partition, (end, size, next_size) in zip(partitions, fitting, strict=True):
            within[partition] = int(end) - begins[partition]
            left -= int(size)
            unused[partition] = shares[partition] - int(size)
            follow[partition] = int(next_size)
        waiting = [p for p in partitions if within[p] < counts[p]]
        for partition in sorted(waiting, key=lambda p: (-unused[p], -backlogs[p], p)):
            if left <= 0:
                break
            within[partition] += 1
            left -= follow[partition]
        return within

    def _stream(self, partition: int) -> bytes:
        return self._prefix + b"stream:%d" % partition

    def _publisher(self, publisher: str) -> bytes:
        return self._prefix + b"publisher:" + publisher.encode()

    def _not_found(self) -> LogNotFound:
        return LogNotFound(
            f"there is no log {self._log}: its queue is gone, or the Redis has lost its data, and "
            "then the service makes the log anew within a minute"
        )

    def _there(self, answer: Any) -> Any:
        if answer[0] == b"missing":
            raise self._not_found()
        return answer
