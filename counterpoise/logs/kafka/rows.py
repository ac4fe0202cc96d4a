"""Kafka's records as rows of a log, and back.

A record has bytes where a row has text, may lack a value, and may repeat a header's name. These
rules convert it without losing important data:

* A key or a header's value that is not UTF-8, or has a NUL, which no log accepts in a text (numbers
  of Java's serializers often have one), becomes the text `base64:` and its bytes in base64
  (`raw_bytes` decodes it). Different keys stay different, and the partition is Kafka's. That is no
  reason for the mark of `counterpoise.logs.rows`, which has the other rules.
* A record without a value (a tombstone of a compacted topic) has an empty value, and the header
  `counterpoise-tombstone` says `true`. To publish a tombstone, publish that header
  with an empty value.
* Of headers of the same name the last one counts, as in Kafka's own lookups; without a value it is
  the empty text. What this leaves out is in one header more, `counterpoise-record-headers`: all
  headers of a name that comes twice or has no value, as JSON, `[["name", "value" or null], …]`.
  So no header is lost when the row is published again, whatever kind of log it passes on its way;
  a record has them as they were (`record_headers`). Names that begin with `counterpoise-` are
  ours, and only their last one counts.
* Times are in milliseconds, and 1970 where the record has none.

The header `counterpoise-append` is ours (see `appender`); it never shows in a row.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import cast

from confluent_kafka import Message

from counterpoise.logs.port import OUR_HEADERS
from counterpoise.logs.rows import TOMBSTONE, Columns, Pairs, Rows, flagged, raw_bytes, text_of

APPEND = "counterpoise-append"
RECORD_HEADERS = "counterpoise-record-headers"

Header = tuple[str, bytes | None]


class RecordColumns:
    """Records of one partition, column by column: a record costs a call for each of its parts."""

    def __init__(self, records: Sequence[Message]) -> None:
        """At least one record."""
        # Half as long as by the names of the methods.
        of = type(records[0])
        self._offsets = [*map(of.offset, records)]
        self._stamps = [*map(of.timestamp, records)]
        self._values = [*map(of.value, records)]
        self._keys = [*map(of.key, records)]
        self._headers = _headers(of, records)

    def fitting(self, memory_bytes: int, value_bytes: int | None) -> int:
        """How many of the records there are before a limit is reached, and the one that reaches it.

        `memory_bytes` are those of values, keys and headers.
        """
        sizes = _sizes(self._values)
        count = len(sizes)
        if value_bytes is not None:
            count = min(count, bisect_left([*accumulate(sizes)], value_bytes) + 1)
        parts = [sizes, _sizes(self._keys)]
        if any(self._headers):
            parts.append([*map(_size, self._headers)])
        if sum(map(sum, parts)) > memory_bytes:
            memory = accumulate(map(sum, zip(*parts, strict=True)))
            count = min(count, bisect_left([*memory], memory_bytes) + 1)
        return count

    def first(self, count: int) -> RecordColumns:
        """So many of them."""
        some = copy(self)
        for name in ("_offsets", "_stamps", "_values", "_keys", "_headers"):
            setattr(some, name, getattr(self, name)[:count])
        return some

    @property
    def value_bytes(self) -> int:
        """Of all values together."""
        return sum(_sizes(self._values))

    @property
    def following(self) -> int:
        """The offset after the last one."""
        last: int = self._offsets[-1]
        return last + 1

    def rows(self, partition: int) -> Rows:
        """They as rows of a log."""
        values, headers = self._values, self._headers
        tombstones = None in values
        shown: Sequence[Pairs | None] = [None] * len(values)
        if tombstones or any(headers) or None in headers:
            shown = [*map(_shown, headers, [value is None for value in values])]
        return Rows(
            Columns(
                partition,
                self._offsets,
                # Kafka has no times before 1970, and -1 is none.
                [1000 * max(0, at) for _, at in self._stamps],
                self._keys,
                [value or b"" for value in values] if tombstones else values,
                shown,
            )
        )


def _sizes(column: Sequence[bytes | None]) -> list[int]:
    there = [one or b"" for one in column] if None in column else cast("Sequence[bytes]", column)
    return [*map(len, there)]


def _headers(of: type[Message], records: Sequence[Message]) -> list[Sequence[Header] | None]:
    try:
        return [headers or () for headers in map(of.headers, records)]
    except (UnicodeDecodeError, SystemError):
        return [headers_of(record) for record in records]


def _size(headers: Sequence[Header] | None) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers or ())


def headers_of(message: Message) -> Sequence[Header] | None:
    """A record's headers; None if a name is not UTF-8: then librdkafka's binding gives none."""
    try:
        return message.headers() or ()
    except (UnicodeDecodeError, SystemError):
        return None


def _shown(headers: Sequence[Header] | None, tombstone: bool) -> Pairs:
    own = [one for one in headers or () if one[0] != APPEND]
    shown = {name: "" if value is None else text_of(value) for name, value in own}
    if len(shown) < len(own) or any(value is None for _, value in own):
        shown |= _not_shown(own)
    if tombstone:
        shown[TOMBSTONE] = "true"
    return list(shown.items()) if headers is not None else flagged(shown.items(), "headers")


def _not_shown(own: Sequence[Header]) -> dict[str, str]:
    """The header with those that a text for each name does not show."""
    names = [name for name, _ in own]
    lacking = {name for name, value in own if value is None}
    pairs = [
        (name, None if value is None else text_of(value))
        for name, value in own
        if not name.startswith(OUR_HEADERS) and (name in lacking or names.count(name) > 1)
    ]
    return {RECORD_HEADERS: json.dumps(pairs, ensure_ascii=False)} if pairs else {}


def record_headers(headers: Mapping[str, str]) -> list[Header]:
    """A record's headers, in bytes, from those that a consumer is shown.

    A name comes several times, or without a value, if it did so in the record that was read, and
    the header that is shown was not changed since.
    """
    pairs = _pairs_of(headers.get(RECORD_HEADERS, ""))
    last = {name: "" if value is None else text_of(value) for name, value in pairs}
    same = {name for name, text in last.items() if headers.get(name) == text}
    left_out = {*same, APPEND, *([RECORD_HEADERS] if pairs else ())}
    return [
        *((name, raw_bytes(text)) for name, text in headers.items() if name not in left_out),
        *(one for one in pairs if one[0] in same),
    ]


def _pairs_of(text: str) -> list[Header]:
    """What `_not_shown` has written; nothing if a stranger has written another text."""
    if not text:
        return []
    try:
        return [
            (name, None if value is None else raw_bytes(value))
            for name, value in json.loads(text)
            if not name.startswith(OUR_HEADERS)
        ]
    except (AttributeError, RecursionError, TypeError, ValueError):
        return []
