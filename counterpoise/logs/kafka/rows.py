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
  the empty text.
* Times are in milliseconds, and 1970 where the record has none.

The header `counterpoise-append` is ours (see `appender`); it never shows in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from counterpoise.logs.columns import integers
from counterpoise.logs.rows import Pairs, flagged, text_of, texts
from counterpoise.logs.rows import record_batch as rows_of

TOMBSTONE = "counterpoise-tombstone"
APPEND = "counterpoise-append"

Header = tuple[str, bytes | None]


def record_batch(partition: int, messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages of one partition as a batch of MESSAGE_SCHEMA."""
    values = [message.value() for message in messages]
    return rows_of(
        partition,
        integers(message.offset() for message in messages),
        _microseconds(messages),
        texts([message.key() for message in messages]),
        [value or b"" for value in values],
        [_shown(message, value is None) for message, value in zip(messages, values, strict=True)],
    )


def headers_of(message: Message) -> Sequence[Header] | None:
    """A record's headers; None if a name is not UTF-8: then librdkafka's binding gives none."""
    try:
        return message.headers() or ()
    except (UnicodeDecodeError, SystemError):
        return None


def memory_bytes(message: Message) -> int:
    """What a record takes: key, value and headers."""
    headers = headers_of(message)
    size = len(message.value() or b"") + len(message.key() or b"")
    return size + sum(len(name) + len(value or b"") for name, value in headers or ())


def _shown(message: Message, tombstone: bool) -> Pairs:
    headers = headers_of(message)
    shown = {
        name: "" if value is None else text_of(value)
        for name, value in headers or ()
        if name != APPEND
    }
    if tombstone:
        shown[TOMBSTONE] = "true"
    return list(shown.items()) if headers is not None else flagged(shown.items(), "headers")


def _microseconds(messages: Sequence[Message]) -> list[int]:
    stamps: list[Any] = [message.timestamp() for message in messages]
    return [0 if kind == TIMESTAMP_NOT_AVAILABLE else 1000 * at for kind, at in stamps]
