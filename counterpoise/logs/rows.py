"""The rows of every log as record batches that each consumer can show and publish again.

A publisher refuses what a consumer could not take (`Message.size_bytes`), and each log's append
does so as far as the log can tell. But a log also holds rows of other programs, and of versions
that refused less. One such row must not stop the consumers of its partition: it would stop every
one, outside their handling of poison messages. So **reading never raises for what a row holds**.
What cannot be shown as it is, is shown like this:

| in the row | shown |
|---|---|
| a time outside `SHOWN_FROM` .. `SHOWN_TO` | the nearer of the two |
| a time that is not a number | 1970 |
| a text that is not UTF-8 or has a NUL | `base64:` and its bytes in base64 (see `raw_bytes`) |
| a header's value that is not a text | its JSON |
| headers that are not an object in JSON | one header, `counterpoise-raw-headers`, with all of it |
| no value | an empty one |

The header `counterpoise-unreadable` names the columns of a row for which this was done, but for
keys in base64. A handler that must not take such messages raises, and its consumer's poison policy
decides. They can be published again, as dead letters for instance.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs.columns import (
    MESSAGE_SCHEMA,
    binaries,
    integers,
    mappings,
    repeated,
    strings,
)
from counterpoise.logs.port import SHOWN_FROM, SHOWN_TO

UNREADABLE = "counterpoise-unreadable"
RAW_HEADERS = "counterpoise-raw-headers"

Pairs = list[tuple[str, str]]

_BASE64 = "base64:"
_HEADERS = MESSAGE_SCHEMA.field("headers").type
_TIME = MESSAGE_SCHEMA.field("published_at").type
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EMPTY = binaries([b""])[0]


def microseconds_of(time: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (time - _EPOCH) // _MICROSECOND


_FIRST, _LAST = microseconds_of(SHOWN_FROM), microseconds_of(SHOWN_TO)


def record_batch(
    partition: int,
    positions: pa.Array,
    times: pa.Array | Sequence[int | None],
    keys: pa.Array,
    values: pa.BinaryArray | Sequence[bytes | None],
    headers: Sequence[Pairs | None],
) -> pa.RecordBatch:
    """A batch of MESSAGE_SCHEMA.

    `positions` are numbers, `times` microseconds since 1970 (None: not a time), a value that is
    None is missing.
    """
    # What is strange shows in whole columns; only then single rows are looked at.
    time_column, strange = _shown_times(times)
    value_column = values if isinstance(values, pa.Array) else binaries(values)
    shown = list(headers)
    for place in strange:
        shown[place] = flagged(shown[place] or [], "published_at")
    if value_column.null_count:
        for place in (place for place, value in enumerate(values) if value is None):
            shown[place] = flagged(shown[place] or [], "value")
        value_column = value_column.fill_null(_EMPTY)
    count = len(shown)
    return pa.RecordBatch.from_arrays(
        [
            repeated(partition, count, pa.int32()),
            positions.cast(pa.string()),
            keys,
            value_column,
            mappings(_HEADERS, [one or None for one in shown])
            if any(shown)
            else pa.nulls(count, _HEADERS),
            time_column.view(_TIME),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _shown_times(times: pa.Array | Sequence[int | None]) -> tuple[pa.Array, list[int]]:
    """The column of times that can be shown, and the places where it differs from `times`."""
    column = times if isinstance(times, pa.Array) else _numbers(times)
    if column is not None and not column.null_count:
        found = pc.min_max(column)
        if not len(column) or (found["min"].as_py() >= _FIRST and found["max"].as_py() <= _LAST):
            return column, []
    given = times.to_pylist() if isinstance(times, pa.Array) else times
    shown = [0 if at is None else min(max(at, _FIRST), _LAST) for at in given]
    strange = [place for place, at in enumerate(given) if at != shown[place]]
    return integers(shown), strange


def _numbers(times: Sequence[int | None]) -> pa.Array | None:
    """None if there is one that is None or beyond 64 bits."""
    if None in times:
        return None
    try:
        return integers(at or 0 for at in times)
    except OverflowError:
        return None


def flagged(headers: Iterable[tuple[str, str]], column: str) -> Pairs:
    """The headers, and that this column of their row is not shown as it is."""
    shown = dict(headers)
    columns = {*shown.get(UNREADABLE, "").split(","), column} - {""}
    return list({**shown, UNREADABLE: ",".join(sorted(columns))}.items())


def headers_of(raw: str | bytes) -> Pairs:
    """The headers of a row that has them as a JSON object of texts."""
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        found = _decoded(text)
        if isinstance(found, dict):
            if not {*map(type, found.values())} <= {str}:
                return flagged(_texts_of(found), "headers")
            # Only what is escaped may be a NUL or half a character.
            return list(found.items()) if "\\u" not in text else _texts_of(found)
    except (ValueError, RecursionError):
        pass  # not JSON, or nested deeper than Python reads
    return flagged([(RAW_HEADERS, text_of(_bytes_of(raw)))], "headers")


class _Number(str):
    """A number of JSON as it is written: Python does not read numbers of any length."""

    __slots__ = ()


# Made once: `json.loads` makes a decoder in each call with arguments of its own.
_decoded = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number).decode


def _texts_of(found: dict[str, Any]) -> Pairs:
    return [
        (
            text_of(_bytes_of(name)),
            text_of(_bytes_of(value if isinstance(value, str) else json.dumps(value))),
        )
        for name, value in found.items()
    ]


def _bytes_of(raw: str | bytes) -> bytes:
    return raw if isinstance(raw, bytes) else raw.encode(errors="surrogatepass")


def texts(raw: Sequence[bytes | None]) -> pa.Array:
    """A column of texts, by `text_of`."""
    column = binaries(raw)
    if not pc.any(pc.match_substring(column, "\0")).as_py():
        try:
            # Arrow checks that they are UTF-8, all at once.
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    return strings([None if one is None else text_of(one) for one in raw])


def text_of(raw: bytes) -> str:
    """Bytes as text: decoded if they are UTF-8 without a NUL, else in base64 with a mark."""
    if b"\0" not in raw:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    return _BASE64 + base64.b64encode(raw).decode()


def raw_bytes(text: str) -> bytes:
    """The bytes that `text_of` made the text of."""
    if text.startswith(_BASE64):
        try:
            raw = base64.b64decode(text.removeprefix(_BASE64), validate=True)
        except binascii.Error:
            return text.encode()
        # Not the form that `text_of` makes, so it is text that begins like this by chance.
        if text_of(raw) == text:
            return raw
    return text.encode()
