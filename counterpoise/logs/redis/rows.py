"""Messages in the form of a Redis stream, and as Arrow record batches."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from counterpoise.logs.port import MESSAGE_SCHEMA

# An id, and fields and values in turn: t, v, then the optional ones (see `scripts`).
Entry = tuple[bytes, list[bytes]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = MESSAGE_SCHEMA.field("published_at").type
_HEADERS = MESSAGE_SCHEMA.field("headers").type
_TIME_AND_VALUE = 4


def microseconds(time: datetime | None) -> str:
    """A time as `t` has it, exactly; the empty string for the time of the append."""
    return "" if time is None else str((time - _EPOCH) // _MICROSECOND)


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


def record_batch(partition: int, position: int, entries: list[Entry]) -> pa.RecordBatch:
    """Consecutive entries from `position`, as a batch of MESSAGE_SCHEMA."""
    count = len(entries)
    keys: list[str | None] = [None] * count
    headers: list[list[tuple[str, str]] | None] = [None] * count
    times, values = [], []
    for place, (_, fields) in enumerate(entries):
        times.append(int(fields[1]))
        values.append(fields[3])
        for at in range(_TIME_AND_VALUE, len(fields), 2):
            if fields[at] == b"k":
                keys[place] = fields[at + 1].decode()
            elif fields[at] == b"h":
                headers[place] = list(json.loads(fields[at + 1]).items())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(range(position, position + count), pa.int64()).cast(pa.string()),
            pa.array(keys, pa.string()),
            pa.array(values, pa.binary()),
            pa.array(headers, _HEADERS),
            pa.array(times, pa.int64()).view(_TIME),
        ],
        schema=MESSAGE_SCHEMA,
    )
