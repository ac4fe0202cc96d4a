"""Messages in the form of a Redis stream, and as Arrow record batches."""

from __future__ import annotations

import re
from datetime import datetime

import pyarrow as pa

from counterpoise.logs.columns import integers
from counterpoise.logs.rows import headers_of, microseconds_of, texts
from counterpoise.logs.rows import record_batch as rows_of

# An id, and fields and values in turn: t, v, then the optional ones (see `scripts`).
Entry = tuple[bytes, list[bytes]]

_TIME = re.compile(rb"-?[0-9]{1,30}")


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


def record_batch(partition: int, position: int, entries: list[Entry]) -> pa.RecordBatch:
    """Consecutive entries from `position`, as a batch of MESSAGE_SCHEMA."""
    rows = [_fields(fields) for _, fields in entries]
    headers = (row.get(b"h") for row in rows)
    return rows_of(
        partition,
        integers(range(position, position + len(entries))),
        [_time(row.get(b"t")) for row in rows],
        texts([row.get(b"k") for row in rows]),
        [row.get(b"v") for row in rows],
        [None if raw is None else headers_of(raw) for raw in headers],
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
