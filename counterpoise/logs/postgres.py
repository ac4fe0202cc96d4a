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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from counterpoise.logs.admission import ByteAdmission
from counterpoise.logs.connection import LogConnection, Row, stale_partition_count
from counterpoise.logs.errors import (
    LogBehind,
    LogError,
    LogNotFound,
    PositionAhead,
    PositionTrimmed,
)
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds
from counterpoise.logs.rows import headers_of, record_batch

CHUNK_MESSAGES = 8192
CHUNK_BYTES = 8 * 1024 * 1024
SWEEP_MESSAGES = 10_000

_APPEND = """SELECT counterpoise_log.append(%b, %b, %b, %b,
    %b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[])"""

# `values_before` are the bytes of the values in the chunk before a message, `before` those of keys
# and headers too: they take memory as well. Headers are parsed here, where a strange one is shown.
_READ = """SELECT position, published_at, key, value, headers FROM (
    SELECT position, published_at, key, value, headers,
        sum(size) OVER sofar - size AS before,
        sum(octet_length(value)) OVER sofar - octet_length(value) AS values_before
    FROM (
        SELECT position, published_at, key, value, headers::text AS headers, octet_length(value)
            + coalesce(octet_length(key), 0) + coalesce(octet_length(headers::text), 0) AS size
        FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %b)
            AND partition = %b AND position >= %b AND position < %b
        ORDER BY position LIMIT %b
    ) AS message WINDOW sofar AS (ORDER BY position ROWS UNBOUNDED PRECEDING)
) AS chunk WHERE values_before < %b AND before < %b ORDER BY position"""

# One statement, so one snapshot: the ends and the partition count belong together.
_BOUNDS = """SELECT l.partition_count, l.incarnation::text, p.partition,
        p.first_position, p.next_position
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
    WHERE l.name = %b"""

_PARTITION = """SELECT p.first_position, p.next_position, p.discarded_position
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = %b
    WHERE l.name = %b"""

_EPOCH_2000_MICROSECONDS = 946_684_800_000_000


class PostgresLog(NumberedLog):
    """The built-in log `name`, reached by a Postgres URL. See `counterpoise.logs.Log`."""

    kind = "the built-in log"
    too_large = TOO_LARGE["builtin"]

    def __init__(self, name: str, url: str, *, timeout_seconds: float = 30.0) -> None:
        """Nothing is connected yet. Raises LogError if the URL is not one of Postgres."""
        self.name = name
        self._connection = LogConnection(url, timeout_seconds)
        self._admission = ByteAdmission(self._connection, name)

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
        parameters = [
            self.name,
            batch.partition_count,
            batch.publisher,
            batch.first_sequence,
            list(batch.partitions),
            [message.value for message in messages],
            _unless_empty(keys),
            _unless_empty(headers),
            _unless_empty(times),
        ]
        try:
            ((appended,),) = self._connection.query(_APPEND, parameters, retry=False)
        except LogError as error:
            stale = stale_partition_count(error.__cause__, batch.partition_count)
            if stale is not None:
                raise stale from None
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
            rows = self._connection.query(
                _READ,
                [
                    self.name,
                    partition,
                    position,
                    last,
                    min(messages_left, CHUNK_MESSAGES),
                    bytes_left,
                    CHUNK_BYTES,
                ],
                retry=True,
            )
            rows = _contiguous_from(position, rows)
            if rows:
                yield _record_batch(partition, rows)
                position += len(rows)
                messages_left -= len(rows)
                if max_bytes is not None:
                    bytes_left -= sum(len(row[3]) for row in rows)
                missing_before = False
                continue
            resumed = self._after_gap(partition, position, last)
            # In the first round, the message may have been appended between the two statements.
            if resumed == position and missing_before:
                raise self.lacks(partition, position)
            missing_before = resumed == position
            position = resumed

    def bounds(self, partitions: Sequence[int]) -> Bounds:
        rows = self._connection.query(_BOUNDS, [list(partitions), self.name], retry=True)
        if not rows:
            raise LogNotFound(f"there is no log {self.name!r}")
        starts = dict.fromkeys(partitions, "0")
        ends = dict.fromkeys(partitions, "0")
        for _, _, partition, first, following in rows:
            if partition is not None:
                starts[partition], ends[partition] = str(first), str(following)
        return Bounds(rows[0][0], rows[0][1], starts, ends)

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
    return column if any(cell is not None for cell in column) else None


def _contiguous_from(position: int, rows: list[Row]) -> list[Row]:
    """The rows up to the first gap, if the first row is at `position`."""
    if not rows or rows[0][0] != position:
        return []
    if rows[-1][0] - position + 1 == len(rows):
        return rows
    return [row for place, row in enumerate(rows) if row[0] == position + place]


def _record_batch(partition: int, rows: list[Row]) -> pa.RecordBatch:
    positions, times, keys, values, headers = zip(*rows, strict=True)
    return record_batch(
        partition,
        pa.array(positions, pa.int64()),
        [at + _EPOCH_2000_MICROSECONDS for at in times],
        pa.array(keys, pa.string()),
        values,
        [None if raw is None else headers_of(raw) for raw in headers],
    )
