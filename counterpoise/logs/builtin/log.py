"""The built-in log: a Postgres schema (`counterpoise_log`, made by migrations/log).

Positions are decimal numbers, contiguous within a partition: an append raises
`partitions.next_position` under the row's lock and writes its messages in the same transaction.
Because they have no holes, `read` notices missing messages without a query. Only then it looks up
whether they were trimmed, discarded, or not appended yet.

A range is read in chunks (`counterpoise.logs.builtin.reading`).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from counterpoise.logs.builtin.admission import ByteAdmission
from counterpoise.logs.builtin.ages import ages_statement
from counterpoise.logs.builtin.bounds import COLUMNS, bounds_of
from counterpoise.logs.builtin.connection import (
    LogConnection,
    SentArray,
    bigint_array,
    bytea_array,
    has_stale_ranges,
    integer_array,
    stale_partition_count,
    text_array,
)
from counterpoise.logs.builtin.reading import ChunkReader
from counterpoise.logs.builtin.watching import PostgresWatching, wake
from counterpoise.logs.errors import (
    LogBehind,
    LogError,
    LogNotFound,
    PositionAhead,
    PositionTrimmed,
    StaleRouting,
)
from counterpoise.logs.numbered import TOO_LARGE, NumberedLog
from counterpoise.logs.port import AppendBatch, AppendResult, Bounds, Rest
from counterpoise.logs.ranges import HashRange, Ranges
from counterpoise.logs.rows import Rows

SWEEP_MESSAGES = 10_000

_MESSAGES = "%b::integer[], %b::bytea[], %b::text[], %b::text[], %b::timestamptz[]"

# By whether each message has its own sequence, and whether they are routed by hash ranges.
_APPEND = {
    (False, False): f"SELECT * FROM counterpoise_log.append(%b, %b, %b, %b, {_MESSAGES})",
    (False, True): f"SELECT * FROM counterpoise_log.append_by_range(%b, %b, %b, {_MESSAGES})",
    (True, False): f"""SELECT * FROM counterpoise_log.append_numbered(
        %b, %b, %b, %b::bigint[], {_MESSAGES})""",
    (True, True): f"""SELECT * FROM counterpoise_log.append_numbered_by_range(
        %b, %b, %b::bigint[], {_MESSAGES})""",
}

_RANGES = "SELECT first_hash, last_hash, partition FROM counterpoise_log.ranges(%b)"

# One statement, so one snapshot: ends, cuts, what is sealed and the count belong together.
_BOUNDS = f"""SELECT {COLUMNS}
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = ANY (%b::integer[])
    WHERE l.name = %b"""

_AGES = ages_statement(partitions="%b::integer[]", positions="%b::bigint[]", name="%b")

_PARTITION = """SELECT p.first_position, p.next_position, p.discarded_position
    FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
        ON p.log_id = l.log_id AND p.partition = %b
    WHERE l.name = %b"""


class PostgresLog(NumberedLog):
    """The built-in log `name`, reached by a Postgres URL. See `counterpoise.logs.Log`."""

    kind = "the built-in log"
    too_large = TOO_LARGE["builtin"]
    appends_in_parallel = True

    def __init__(self, name: str, url: str, *, timeout_seconds: float = 30.0) -> None:
        """Nothing is connected yet. Raises LogError if the URL is not one of Postgres."""
        self.name = name
        self._connection = LogConnection(url, timeout_seconds)
        self._admission = ByteAdmission(self._connection, name)
        self._reader = ChunkReader(self._connection, name)
        self._watching = PostgresWatching(self._connection, name, self.number)

    def __repr__(self) -> str:
        return f"PostgresLog({self.name!r})"

    def append(self, batch: AppendBatch) -> AppendResult:
        messages = batch.messages
        if not messages:
            return AppendResult(0, 0)
        for message in messages:
            message.size_bytes()
        batch.check_sequences()
        numbered = batch.sequences is not None
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
            batch.first_sequence if batch.sequences is None else bigint_array(batch.sequences),
            integer_array(batch.partitions),
            bytea_array([message.value for message in messages]),
            _texts(keys),
            _texts(headers),
            _unless_empty(times),
        ]
        statement = _APPEND[numbered, batch.by_range]
        try:
            ((appended, watched),) = self._connection.query(statement, parameters, retry=False)
        except LogError as error:
            stale = stale_partition_count(error.__cause__, batch.partition_count)
            if stale is not None:
                raise stale from None
            if has_stale_ranges(error.__cause__):
                raise StaleRouting(batch.partition_count, 0, self._ranges()) from None
            raise
        if appended < len(messages):
            # The answer to an attempt before was lost, and with it who waits.
            watched = [*{*batch.partitions}]
        if watched:
            wake(self._connection, self.name, watched)
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
        last = self._end_from(partition, position) if end is None else self.number(end)
        messages_left = max_messages
        bytes_left = max_bytes
        missing_before = False
        while position < last and messages_left > 0 and (bytes_left is None or bytes_left > 0):
            chunk = self._reader.chunk(partition, position, last, messages_left, bytes_left)
            if chunk is not None:
                rows, value_bytes = chunk
                yield rows
                position += len(rows)
                messages_left -= len(rows)
                if bytes_left is not None:
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
    ) -> Mapping[int, tuple[Rows, str]]:
        numbers = {
            partition: (self.number(start), self.number(end))
            for partition, (start, end) in ranges.items()
        }
        found = self._reader.first(numbers, max_messages, max_bytes)
        return {partition: (rows, str(end)) for partition, (rows, end) in found.items()}

    def bounds(self, partitions: Sequence[int], *, at_once: bool = False) -> Bounds:
        rows = self._connection.query(_BOUNDS, [list(partitions), self.name], retry=True)
        if not rows:
            raise LogNotFound(f"there is no log {self.name!r}")
        return bounds_of(partitions, rows)

    def watch(self, ends: Mapping[int, str]) -> Rest | None:
        return self._watching.watch({**ends})

    def ages(self, positions: Mapping[int, str]) -> Mapping[int, float]:
        numbers = [self.number(position) for position in positions.values()]
        parameters = [integer_array([*positions]), bigint_array(numbers), self.name]
        return dict(self._connection.query(_AGES, parameters, retry=True))

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


def _texts(column: list[str | None]) -> SentArray | None:
    return None if _unless_empty(column) is None else text_array(column)
