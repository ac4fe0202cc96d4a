"""The built-in log: a Postgres schema (`counterpoise_log`, made by migrations/log).

Positions are decimal numbers, contiguous within a partition: an append raises
`partitions.next_position` under the row's lock and writes its messages in the same transaction.
Because they have no holes, `read` notices missing messages without a query. Only then it looks up
whether they were trimmed, discarded, or not appended yet.

Reading builds Arrow columns directly from the driver's cells. A range is read in chunks, one
statement each, so neither side holds more than a chunk and no transaction stays open while the
caller works.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from counterpoise.logs.builtin.admission import ByteAdmission
from counterpoise.logs.builtin.bounds import COLUMNS, COLUMNS_BEFORE, bounds_of
from counterpoise.logs.builtin.connection import (
    LogConnection,
    Row,
    has_stale_ranges,
    lacks_column,
    stale_partition_count,
)
from counterpoise.logs.builtin.groups import PackedRows
from counterpoise.logs.errors import (
    LogBehind,
    LogError,
    LogNotFound,
    PositionAhead,
    PositionTrimmed,
    StaleRanges,
)
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds
from counterpoise.logs.ranges import HashRange, Ranges

CHUNK_MESSAGES = 8192
# Of values, keys and headers. The usual chunk has half of it: larger ones do not stay in the
# processor's cache, and those of 8 MiB take three times as long for each message.
CHUNK_BYTES = 4 * 1024 * 1024
# How many messages to ask for while their sizes are unknown, and how many to pack together.
FIRST_MESSAGES = 1024
GROUP_MESSAGES = 128
SWEEP_MESSAGES = 10_000

_APPEND = """SELECT counterpoise_log.append(%b, %b, %b, %b,
    %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])"""

# A group of messages: their values one after the other, their other columns as arrays. So neither
# the server nor this process handles each cell by itself, nor an object for each time and size.
# Positions are named only where some are missing.
_PACKED = """SELECT min(position), CASE WHEN count(*) <= max(position) - min(position)
            THEN array_agg(position) END,
        array_send(array_agg(published_at)), array_send(array_agg(octet_length(value))),
        string_agg(value, ''),
        CASE WHEN count(key) > 0 THEN array_agg(key) END,
        CASE WHEN count(headers) > 0 THEN array_agg(headers::text) END"""

# Whether even so many of the largest messages of the partition fit (migrations/log, log_0008).
_FITS = """CASE WHEN (
        SELECT sized_from <= %(start)b AND %(end)b <= sized_to
            AND largest_bytes * (%(end)b::bigint - %(start)b)
                < least(%(value_bytes)b::bigint, %(bytes)b)
        FROM counterpoise_log.partitions
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = %(partition)b
    ) THEN %(end)b::bigint - 1"""

# A chunk, each row of it a group. `stop` finds the last position of the chunk. If it has to look at
# the sizes, the sum of all of them is usually small enough; running sums take longer than all the
# rest.
_READ = f"""WITH sized AS NOT MATERIALIZED (
    SELECT position, octet_length(value) AS value_bytes, octet_length(value)
        + coalesce(octet_length(key), 0) + coalesce(octet_length(headers::text), 0) AS bytes
    FROM counterpoise_log.messages
    WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
        AND partition = %(partition)b AND position >= %(start)b AND position < %(end)b
), stop AS MATERIALIZED (
    SELECT {_FITS} ELSE (SELECT CASE
        WHEN sum(value_bytes) < %(value_bytes)b AND sum(bytes) < %(bytes)b THEN max(position)
        ELSE (
            SELECT max(position) FROM (
                SELECT position, sum(value_bytes) OVER sofar - value_bytes AS values_before,
                    sum(bytes) OVER sofar - bytes AS before
                FROM sized WINDOW sofar AS (ORDER BY position ROWS UNBOUNDED PRECEDING)
            ) AS summed WHERE values_before < %(value_bytes)b AND before < %(bytes)b
        ) END FROM sized) END AS position
)
SELECT packed.*
FROM stop, generate_series(%(start)b::bigint, stop.position, {GROUP_MESSAGES}) AS first,
LATERAL (
    {_PACKED}
    FROM (
        SELECT position, published_at, value, key, headers FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = %(partition)b AND position >= first
            AND position < first + {GROUP_MESSAGES} AND position <= stop.position
        ORDER BY position
    ) AS message
) AS packed"""

# While the service is of the release before.
_READ_BEFORE = _READ.replace(_FITS, "CASE WHEN false THEN NULL")

# The first messages of several partitions: one group of each, as far as the bytes go.
_FIRST = f"""SELECT asked.partition, packed.*
FROM unnest(%(partitions)b::integer[], %(starts)b::bigint[], %(ends)b::bigint[])
    AS asked (partition, first, following),
LATERAL (
    {_PACKED}
    FROM (
        SELECT position, published_at, value, key, headers, sum(octet_length(value)
            + coalesce(octet_length(key), 0) + coalesce(octet_length(headers::text), 0))
            OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS bytes
        FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = asked.partition AND position >= asked.first
            AND position < asked.following
        ORDER BY position
    ) AS message WHERE bytes <= %(bytes)b
) AS packed"""

_APPEND_BY_RANGE = """SELECT counterpoise_log.append_by_range(%b, %b, %b,
    %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])"""

_RANGES = "SELECT first_hash, last_hash, partition FROM counterpoise_log.ranges(%b)"

# One statement, so one snapshot: ends, cuts, what is sealed and the count belong together.
_BOUNDS = f"""SELECT {COLUMNS}
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
    WHERE l.name = %b"""

# While the service is of the release before.
_BOUNDS_BEFORE = _BOUNDS.replace(COLUMNS, COLUMNS_BEFORE)

_PARTITION = """SELECT p.first_position, p.next_position, p.discarded_position
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = %b
    WHERE l.name = %b"""


class PostgresLog(NumberedLog):
    """The built-in log `name`, reached by a Postgres URL. See `counterpoise.logs.Log`."""

    kind = "the built-in log"
    too_large = TOO_LARGE["builtin"]

    def __init__(self, name: str, url: str, *, timeout_seconds: float = 30.0) -> None:
        """Nothing is connected yet. Raises LogError if the URL is not one of Postgres."""
        self.name = name
        self._connection = LogConnection(url, timeout_seconds)
        self._admission = ByteAdmission(self._connection, name)
        self._chunk_messages = FIRST_MESSAGES

    def __repr__(self) -> str:
        return f"PostgresLog({self.name!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        messages = batch.messages
        if not messages:
            return AppendResult(0, 0)
        for message in messages:
            message.size_bytes()
        keys = [message.key for message in messages]
        headers = [
            json.dumps(dict(message.headers), ensure_ascii=False) if message.headers else None
            for message in messages
        ]
        times = [message.published_at for message in messages]
        routed_by: list[Any] = [] if batch.by_range else [batch.partition_count]
        parameters = [
            self.name,
            *routed_by,
            batch.publisher,
            batch.first_sequence,
            list(batch.partitions),
            [message.value for message in messages],
            _unless_empty(keys),
            _unless_empty(headers),
            _unless_empty(times),
        ]
        statement = _APPEND_BY_RANGE if batch.by_range else _APPEND
        try:
            ((appended,),) = self._connection.query(statement, parameters, retry=False)
        except LogError as error:
            stale = stale_partition_count(error.__cause__, batch.partition_count)
            if stale is not None:
                raise stale from None
            if has_stale_ranges(error.__cause__):
                raise StaleRanges(str(error), self._ranges()) from None
            raise
        return AppendResult(appended, len(messages) - appended)

    def read(
        self,
        partition: int,
        start: str,
        end: str | None,
        *,
        max_messages: int,
        max_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        position = self.number(start)
        last = self._end_from(partition, position) if end is None else self.number(end)
        messages_left = max_messages
        bytes_left = CHUNK_BYTES if max_bytes is None else max_bytes
        missing_before = False
        while position < last and messages_left > 0 and bytes_left > 0:
            chunk = self._chunk(partition, position, last, messages_left, bytes_left)
            if chunk is not None:
                batch, value_bytes = chunk
                yield batch
                position += batch.num_rows
                messages_left -= batch.num_rows
                if max_bytes is not None:
                    bytes_left -= value_bytes
                missing_before = False
                continue
            resumed = self._after_gap(partition, position, last)
            # In the first round, the message may have been appended between the two statements.
            if resumed == position and missing_before:
                raise self.lacks(partition, position)
            missing_before = resumed == position
            position = resumed

    def first(
        self, ranges: Mapping[int, tuple[str, str]], *, max_messages: int, max_bytes: int
    ) -> Mapping[int, tuple[pa.RecordBatch, str]]:
        starts = {number: self.number(start) for number, (start, _) in ranges.items()}
        most = {number: begin + max_messages for number, begin in starts.items()}
        ends = [min(self.number(end), most[number]) for number, (_, end) in ranges.items()]
        given = {
            "log": self.name,
            "partitions": [*ranges],
            "starts": [*starts.values()],
            "ends": ends,
            "bytes": min(CHUNK_BYTES, max_bytes) // max(1, len(ranges)),
        }
        found = {}
        for number, *group in self._connection.query(_FIRST, given, retry=True):
            chunk = PackedRows(starts[number])
            chunk.add(*group)
            if chunk.sizes:
                following = str(chunk.start + len(chunk.sizes))
                found[number] = chunk.record_batch(number), following
        return found

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        rows = self._bound_rows([list(partitions), self.name])
        if not rows:
            raise LogNotFound(f"there is no log {self.name!r}")
        return bounds_of(partitions, rows)

    def trim(self, below: Mapping[int, str]) -> None:
        """Needs the rights of the service; a reader's credentials do not suffice."""
        positions = [self.number(position) for position in below.values()]
        self._connection.query(
            "SELECT counterpoise_log.trim(%b, %b::integer[], %b::bigint[])",
            [self.name, list(below), positions],
            retry=True,
        )
        while self._connection.query(
            "SELECT counterpoise_log.sweep(%b, %b)", [self.name, SWEEP_MESSAGES], retry=True
        )[0][0]:
            pass

    def next_sequence(self, publisher: str) -> int:
        ((sequence,),) = self._connection.query(
            "SELECT counterpoise_log.next_sequence(%b, %b)", [self.name, publisher], retry=True
        )
        return int(sequence)

    def close(self) -> None:
        self._connection.close()

    def _chunk(
        self, partition: int, start: int, end: int, messages: int, value_bytes: int
    ) -> tuple[pa.RecordBatch, int] | None:
        """Messages from `start` on, up to the first gap, and the bytes of their values.

        At most so many `messages`, of which none comes after so many `value_bytes`. None if there
        is no message at `start`.
        """
        messages = min(messages, CHUNK_MESSAGES, self._chunk_messages)
        given = {
            "log": self.name,
            "partition": partition,
            "start": start,
            "end": min(end, start + messages),
            "value_bytes": value_bytes,
            "bytes": CHUNK_BYTES,
        }
        groups = self._connection.query_sized(_READ, _READ_BEFORE, given)
        chunk = PackedRows(start)
        for group in groups:
            if not chunk.add(*group):
                break
        if not chunk.sizes:
            return None
        batch = chunk.record_batch(partition)
        size = max(1, batch.get_total_buffer_size())
        self._chunk_messages = 1 + CHUNK_BYTES // 2 * batch.num_rows // size
        return batch, sum(chunk.sizes)

    def _bound_rows(self, parameters: Sequence[object]) -> list[Row]:
        try:
            return self._connection.query(_BOUNDS, parameters, retry=True)
        except LogError as error:
            if not lacks_column(error.__cause__):
                raise
            return self._connection.query(_BOUNDS_BEFORE, parameters, retry=True)

    def _ranges(self) -> Ranges:
        rows = self._connection.query(_RANGES, [self.name], retry=True)
        if not rows:
            raise LogNotFound(f"there is no log {self.name!r} with hash ranges")
        return Ranges(HashRange(*row) for row in rows)

    def _admit(
        self,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        max_messages: int,
        max_bytes: int,
    ) -> Mapping[int, int]:
        return self._admission.admit(begins, backlogs, max_messages, max_bytes)

    def _partition(self, partition: int) -> tuple[int, int, int]:
        """First, next and discarded position of a partition, zeros if the log never had it."""
        rows = self._connection.query(_PARTITION, [partition, self.name], retry=True)
        if not rows:
            raise LogNotFound(f"there is no log {self.name!r}")
        first, following, discarded = rows[0]
        return first or 0, following or 0, discarded or 0

    def _end_from(self, partition: int, position: int) -> int:
        end = self._partition(partition)[1]
        if position > end:
            raise PositionAhead(partition, str(position), str(end))
        return end

    def _after_gap(self, partition: int, position: int, last: int) -> int:
        """Where to continue if there was no message at `position`, which is before `last`."""
        first, following, discarded = self._partition(partition)
        if position < discarded:
            return discarded
        if position < first:
            raise PositionTrimmed(partition, str(position), str(first))
        if position > following:
            raise PositionAhead(partition, str(position), str(following))
        if position == following:
            raise LogBehind(partition, str(following), str(last))
        return position


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return column if any(map(operator.is_not, column, repeat(None))) else None
