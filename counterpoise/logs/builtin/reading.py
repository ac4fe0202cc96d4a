"""Reads the messages of the built-in log, chunk by chunk.

A chunk is one statement, so neither side holds more than a chunk, and no transaction stays open
while the caller works. The rows of its answer are groups of messages, and the driver's buffers of
them become columns as they are (`PackedRows`).

Mostly a chunk has all positions in its range, and the server only counts them. If a group lacks
some, the chunk ends before it. The next one begins with it, and asks for its positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterpoise.logs.builtin.connection import LogConnection, sent_bigints, sent_integers
from counterpoise.logs.rows import Columns, Packed, Pairs, Rows, headers_of

CHUNK_MESSAGES = 8192
# Of values, keys and headers. The usual chunk has half of it: larger ones are no faster, and begin
# to cost fresh pages of memory on both sides.
CHUNK_BYTES = 8 * 1024 * 1024
# How many messages to ask for while their sizes are unknown, and how many to pack together.
FIRST_MESSAGES = 1024
GROUP_MESSAGES = 128

# A group of messages: their values, and their keys, one after the other, their times and sizes as
# arrays. So neither the server nor this process handles each cell, and there is no object for it.
_COLUMNS = """array_send(array_agg(published_at)),
        array_send(array_agg(octet_length(value))), string_agg(value, ''),
        CASE WHEN count(key) > 0 THEN array_send(array_agg(coalesce(octet_length(key), -1))) END,
        string_agg(key, ''),
        CASE WHEN count(headers) > 0 THEN array_agg(headers::text) END"""

# As bytes in the encoding of the connection, which is UTF-8.
_KEY = "textsend(key) AS key"

# Where it begins, and its positions if some are missing between them.
_SPARSE = f"""SELECT min(position), CASE WHEN count(*) <= max(position) - min(position)
            THEN array_agg(position) END,
        {_COLUMNS}"""

# Where it begins, if none of `first` .. `last` is missing. Only to count is cheaper than to look at
# the positions.
_WHOLE = f"""SELECT CASE WHEN count(*) > last - first THEN first END, NULL::bigint[],
        {_COLUMNS}"""

# Whether even so many of the largest messages of the partition fit (migrations/log/sql/tables.sql).
_FITS = """CASE WHEN (
        SELECT sized_from <= %(start)b AND %(end)b <= sized_to
            AND largest_bytes * (%(end)b::bigint - %(start)b)
                < least(%(value_bytes)b::bigint, %(bytes)b)
        FROM counterpoise_log.ends
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = %(partition)b
        ORDER BY next_position DESC LIMIT 1
    ) THEN %(end)b::bigint - 1"""
# The first messages of several partitions: one group of each, as far as the bytes go.
_FIRST = f"""SELECT asked.partition, packed.*
FROM unnest(%(partitions)b::integer[], %(starts)b::bigint[], %(ends)b::bigint[])
    AS asked (partition, first, following),
LATERAL (
    {_SPARSE}
    FROM (
        SELECT position, published_at, value, {_KEY}, headers, sum(octet_length(value)
            + coalesce(octet_length(key), 0) + coalesce(octet_length(headers::text), 0))
            OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS bytes
        FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = asked.partition AND position >= asked.first
            AND position < asked.following
        ORDER BY position
    ) AS message WHERE bytes <= %(bytes)b
) AS packed"""

_EPOCH_2000_MICROSECONDS = 946_684_800_000_000


def _read(group: str) -> str:
    """A chunk, each row of it a `group`. `stop` finds the last position of the chunk.

    If it has to look at the sizes, the sum of all of them is usually small enough; running sums
    take longer than all the rest.
    """
    return f"""WITH sized AS NOT MATERIALIZED (
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
LATERAL (SELECT least(first + {GROUP_MESSAGES} - 1, stop.position) AS last) AS group_end,
LATERAL (
    {group}
    FROM (
        SELECT position, published_at, value, {_KEY}, headers FROM counterpoise_log.messages
        WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = %(log)b)
            AND partition = %(partition)b AND position >= first AND position <= last
        ORDER BY position
    ) AS message
) AS packed"""


_READ = _read(_WHOLE)
_READ_SPARSE = _read(_SPARSE)


class ChunkReader:
    """Reads chunks of the log `name`. They grow and shrink with the sizes of its messages."""

    def __init__(self, connection: LogConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._chunk_messages = FIRST_MESSAGES

    def chunk(
        self, partition: int, start: int, end: int, messages: int, value_bytes: int | None
    ) -> tuple[Rows, int] | None:
        """Messages from `start` on, up to the first gap, and the bytes of their values.

        At most so many `messages`, of which none comes after so many `value_bytes`. None if there
        is no message at `start`. Raises LogUnavailable and other LogErrors.
        """
        messages = min(messages, CHUNK_MESSAGES, self._chunk_messages)
        given = {
            "log": self._name,
            "partition": partition,
            "start": start,
            "end": min(end, start + messages),
            "value_bytes": CHUNK_BYTES if value_bytes is None else value_bytes,
            "bytes": CHUNK_BYTES if value_bytes is None else min(CHUNK_BYTES, value_bytes),
        }
        chunk = PackedRows(start)
        chunk.add_all(self._connection.query(_READ, given, retry=True))
        if chunk.needs_positions and not chunk.sizes:
            chunk.add_all(self._connection.query(_READ_SPARSE, given, retry=True))
        if not chunk.sizes:
            return None
        rows = chunk.rows(partition)
        self._chunk_messages = 1 + CHUNK_BYTES // 2 * len(rows) // rows.nbytes
        return rows, chunk.value_bytes

    def first(
        self, ranges: Mapping[int, tuple[int, int]], max_messages: int, max_bytes: int
    ) -> dict[int, tuple[Rows, int]]:
        """The first messages of several ranges, and where each goes on: see `Log.first`."""
        given = {
            "log": self._name,
            "partitions": [*ranges],
            "starts": [start for start, _ in ranges.values()],
            "ends": [min(end, start + max_messages) for start, end in ranges.values()],
            "bytes": min(CHUNK_BYTES, max_bytes) // max(1, len(ranges)),
        }
        found = {}
        for partition, *group in self._connection.query(_FIRST, given, retry=True):
            chunk = PackedRows(ranges[partition][0])
            chunk.add(*group)
            if chunk.sizes:
                following = chunk.start + len(chunk.sizes)
                found[partition] = chunk.rows(partition), following
        return found


class PackedRows:
    """Messages from `start` on, up to the first gap, unpacked from groups of the built-in log."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.sizes = array("i")
        # Whether the next group has messages, but not all: then its positions are needed.
        self.needs_positions = False
        self._times = array("q")
        self._values: list[memoryview] = []
        self._key_sizes = array("i")
        self._keys: list[memoryview] = []
        self._headers: list[Pairs | None] = []

    @property
    def value_bytes(self) -> int:
        """The bytes of all values."""
        return sum(map(len, self._values))

    def add_all(self, groups: Iterable[Sequence[Any]]) -> None:
        """Add groups up to the first gap."""
        for group in groups:
            if not self.add(*group):
                return

    def add(
        self,
        first: int | None,
        positions: list[int] | None,
        sent_times: memoryview | None,
        sent_sizes: memoryview | None,
        values: memoryview,
        sent_key_sizes: memoryview | None,
        keys: memoryview | None,
        headers: list[str | None] | None,
    ) -> bool:
        """Add a group; returns whether the next group may follow.

        `first` is its first position, None if it lacks some and does not say which. Times are
        microseconds since 2000; these and the sizes are as Postgres sends arrays, None if there is
        no message. A message without a key has the size -1 of a key.
        """
        due = self.start + len(self.sizes)
        self.needs_positions = first is None and sent_times is not None
        if first != due or sent_times is None or sent_sizes is None:
            return False
        times, sizes = sent_bigints(sent_times), sent_integers(sent_sizes)
        count = len(times)
        if positions is not None:
            count = next(place for place, found in enumerate(positions) if found != due + place)
            sizes = sizes[:count]
        self.sizes += sizes
        self._times += times[:count]
        self._values.append(values if positions is None else values[: sum(sizes)])
        if sent_key_sizes is None or keys is None:
            self._key_sizes += array("i", [-1]) * count
        else:
            self._key_sizes += (key_sizes := sent_integers(sent_key_sizes)[:count])
            if positions is not None:
                keys = keys[: sum(size for size in key_sizes if size > 0)]
            self._keys.append(keys)
        self._headers += (
            [None] * count
            if headers is None
            else [None if raw is None else headers_of(raw) for raw in headers[:count]]
        )
        return positions is None

    def rows(self, partition: int) -> Rows:
        """The messages as rows of a log."""
        return Rows(
            Columns(
                partition,
                range(self.start, self.start + len(self.sizes)),
                self._times,
                Packed(self._key_sizes, b"".join(self._keys)) if self._keys else None,
                Packed(self.sizes, b"".join(self._values)),
                self._headers,
                since=_EPOCH_2000_MICROSECONDS,
            )
        )
