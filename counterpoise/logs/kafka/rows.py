"""Kafka's records as rows of a log, and back.

A record has bytes where a row has text, may lack a value, and may repeat a header's name. These
rules convert it without losing important data:

* A key or a header's value that is not UTF-8, or has a NUL, which no log accepts in a text (numbers
  of Java's serializers often have one), becomes the text `base64:` and its bytes in base64
  (`raw_bytes` decodes it). Different keys stay different, and the partition is Kafka's.
* A record without a value (a tombstone of a compacted topic) has an empty value, and the header
  `counterpoise-tombstone` says `true`. To publish a tombstone, publish that header
  with an empty value.
* Of headers of the same name the last one counts, as in Kafka's own lookups; without a value it is
  the empty text.
* Times are in milliseconds, and 1970 where the record has none.

The header `counterpoise-append` is ours (see `appender`); it never shows in a row.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from counterpoise.logs.port import MESSAGE_SCHEMA

TOMBSTONE = "counterpoise-tombstone"
APPEND = "counterpoise-append"
_BASE64 = "base64:"
_HEADERS = MESSAGE_SCHEMA.field("headers").type
_TIME = MESSAGE_SCHEMA.field("published_at").type

Header = tuple[str, bytes | None]


def text_of(raw: bytes) -> str:
    """Bytes as text: decoded if they are UTF-8 without a NUL, else in base64 with a mark."""
    if b"\0" not in raw:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    return _BASE64 + base64.b64encode(raw).decode()


def raw_bytes(text: str) -> bytes:
    """The bytes of a key or header's value in Kafka: the inverse of `text_of`."""
    if text.startswith(_BASE64):
        try:
            raw = base64.b64decode(text.removeprefix(_BASE64), validate=True)
        except binascii.Error:
            return text.encode()
        # Not the form that `text_of` makes, so it is text that begins like this by chance.
        if text_of(raw) == text:
            return raw
    return text.encode()


def record_batch(partition: int, messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages of one partition as a batch of MESSAGE_SCHEMA."""
    count = len(messages)
    values = [message.value() for message in messages]
    keys = [message.key() for message in messages]
    headers = [
        _shown(message.headers(), value is None)
        for message, value in zip(messages, values, strict=True)
    ]
    if any(headers):
        header_column = pa.array([one or None for one in headers], _HEADERS)
    else:
        header_column = pa.nulls(count, _HEADERS)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array([message.offset() for message in messages], pa.int64()).cast(pa.string()),
            _texts(keys),
            pa.array([value or b"" for value in values], pa.binary()),
            header_column,
            pa.array(_microseconds(messages), pa.int64()).view(_TIME),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _texts(keys: list[bytes | None]) -> pa.Array:
    raw = pa.array(keys, pa.binary())
    if not pc.any(pc.match_substring(raw, "\0")).as_py():
        try:
            # Arrow checks that they are UTF-8, all at once.
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    return pa.array([None if key is None else text_of(key) for key in keys], pa.string())


def _shown(headers: Iterable[Header] | None, tombstone: bool) -> list[tuple[str, str]]:
    if headers is None and not tombstone:
        return []
    shown = {
        name: "" if value is None else text_of(value)
        for name, value in headers or ()
        if name != APPEND
    }
    if tombstone:
        shown[TOMBSTONE] = "true"
    return list(shown.items())


def _microseconds(messages: Sequence[Message]) -> list[int]:
    stamps: list[Any] = [message.timestamp() for message in messages]
    return [0 if kind == TIMESTAMP_NOT_AVAILABLE else 1000 * at for kind, at in stamps]
