"""The messages that a read of a log has brought, which each consumer can show and publish again.

A log gives them as it has them, column by column (`Columns`). A consumer takes of these `Rows` what
it wants: Python's own values (`Rows.columns`), or a batch of Arrow
(`counterpoise.logs.record_batch`), which alone needs pyarrow. Both show the same.

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
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple, cast

UNREADABLE = "counterpoise-unreadable"
TOMBSTONE = "counterpoise-tombstone"
"""With the value `true`: the message has no value, and the empty one stands for it. In a compacted
topic of Kafka such a message deletes its key."""
RAW_HEADERS = "counterpoise-raw-headers"

Pairs = list[tuple[str, str]]

# What a message takes in memory besides its value, key and headers, about.
ROW_BYTES = 32

_BASE64 = "base64:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds_of(time: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (time - _EPOCH) // _MICROSECOND


SHOWN_FROM = datetime(1, 1, 2, tzinfo=UTC)
SHOWN_TO = datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC)
"""The times that a `datetime` of any time zone can show."""

FIRST_SHOWN, LAST_SHOWN = microseconds_of(SHOWN_FROM), microseconds_of(SHOWN_TO)


class Packed:
    """Byte strings that lie one behind the other in `data`, of these sizes; -1: there is none."""

    def __init__(self, sizes: array[int], data: bytes) -> None:
        self.sizes = sizes
        self.data = data

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def _ends(self) -> array[int]:
        sizes = map(max, self.sizes, repeat(0)) if self._lacks else self.sizes
        return array("q", accumulate(sizes, initial=0))

    @cached_property
    def _lacks(self) -> bool:
        return -1 in self.sizes

    @cached_property
    def _text(self) -> str | None:
        return self.data.decode("ascii") if self.data.isascii() else None

    def size_bytes(self, begin: int, stop: int) -> int:
        """The bytes of all from `begin` to `stop`."""
        whole = begin == 0 and stop == len(self.sizes)
        return len(self.data) if whole else self._ends[stop] - self._ends[begin]

    def values(self, begin: int, stop: int) -> list[bytes | None]:
        """Those from `begin` to `stop`."""
        data = self.data
        return self._there([data[a:b] for a, b in self._places(begin, stop)], begin)

    def texts(self, begin: int, stop: int) -> list[str | None]:
        """Those from `begin` to `stop`, which are UTF-8."""
        text, data = self._text, self.data
        if text is not None:
            return self._there([text[a:b] for a, b in self._places(begin, stop)], begin)
        return self._there([data[a:b].decode() for a, b in self._places(begin, stop)], begin)

    def _places(self, begin: int, stop: int) -> Iterator[tuple[int, int]]:
        return pairwise(self._ends[begin : stop + 1])

    def _there(self, found: list[Any], begin: int) -> list[Any]:
        if not self._lacks:
            return found
        sizes = self.sizes[begin : begin + len(found)]
        return [None if size < 0 else one for one, size in zip(found, sizes, strict=True)]


@dataclass(frozen=True)
class Columns:
    """Messages of one partition in order, column by column, each as long as `positions`.

    `times` are microseconds since 1970, or since a time that is `since` microseconds later; None:
    not a time. A value that is None is missing. Packed keys are texts, others become texts by
    `text_of`; `keys` None: no message has one.
    """

    partition: int
    positions: Sequence[int]
    times: Sequence[int | None]
    keys: Packed | Sequence[bytes | None] | None
    values: Packed | Sequence[bytes | None]
    headers: Sequence[Pairs | None]
    since: int = 0
    # What `counterpoise.logs.record_batch` has made of all of them.
    made: list[Any] = field(default_factory=list, compare=False, repr=False)


class Shown(NamedTuple):
    """Messages in order, as they are shown, column by column."""

    positions: list[str]
    keys: list[str | None]
    values: list[bytes]
    headers: Sequence[Pairs | None]
    published_at: list[datetime]


class Rows:
    """Messages of one partition in order: some of the `columns`, which parts of them share."""

    __slots__ = ("_begin", "_columns", "_stop")

    def __init__(self, columns: Columns, begin: int = 0, stop: int | None = None) -> None:
        """Those from `begin` to `stop`; None: to the last one."""
        self._columns = columns
        self._begin = begin
        self._stop = len(columns.positions) if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._begin

    def __repr__(self) -> str:
        return f"<{len(self)} messages of partition {self.partition}>"

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._columns.partition

    def position(self, place: int) -> str:
        """The position of one of them; -1: of the last one."""
        return str(self._columns.positions[range(self._begin, self._stop)[place]])

    def slice(self, begin: int, stop: int | None = None) -> Rows:
        """Some of them, without copying any."""
        places = range(self._begin, self._stop)[begin:stop]
        return Rows(self._columns, places.start, places.stop)

    def of_partition(self, partition: int) -> Rows:
        """The same under another number of the partition."""
        return Rows(replace(self._columns, partition=partition, made=[]), self._begin, self._stop)

    @property
    def nbytes(self) -> int:
        """What they take in memory, about: of values, keys and headers exactly."""
        columns, begin, stop = self._columns, self._begin, self._stop
        headers = columns.headers[begin:stop]
        size = sum(len(a) + len(b) for one in headers if one for a, b in one)
        for column in (columns.keys, columns.values):
            if isinstance(column, Packed):
                size += column.size_bytes(begin, stop)
            elif column is not None:
                size += sum(map(len, filter(None, column[begin:stop])))
        return size + ROW_BYTES * (stop - begin)

    @property
    def part(self) -> tuple[Columns, int, int]:
        """The columns, and from where to where they are."""
        return self._columns, self._begin, self._stop

    def columns(self) -> Shown:
        """They as Python's values."""
        columns, begin, stop = self._columns, self._begin, self._stop
        times, strange = shown_times(columns.times[begin:stop], columns.since)
        headers: Sequence[Pairs | None] = columns.headers[begin:stop]
        values: list[Any] = (
            columns.values.values(begin, stop)
            if isinstance(columns.values, Packed)
            else list(columns.values[begin:stop])
        )
        keys: list[str | None]
        if columns.keys is None:
            keys = [None] * (stop - begin)
        elif isinstance(columns.keys, Packed):
            keys = columns.keys.texts(begin, stop)
        else:
            keys = [None if one is None else text_of(one) for one in columns.keys[begin:stop]]
        missing = []
        if None in values:
            missing = [place for place, value in enumerate(values) if value is None]
            values = [value or b"" for value in values]
        if strange or missing:
            headers = flagged_rows(headers, strange, missing)
        positions = [*map(str, columns.positions[begin:stop])]
        return Shown(positions, keys, values, headers, times)

    def to_pylist(self) -> list[dict[str, Any]]:
        """They as `pyarrow.RecordBatch.to_pylist` gives them: a dictionary for each, with the names
        of MESSAGE_SCHEMA; headers are pairs, or None.
        """
        return [
            {
                "partition": self.partition,
                "position": position,
                "key": key,
                "value": value,
                "headers": headers or None,
                "published_at": at,
            }
            for position, key, value, headers, at in zip(*self.columns(), strict=True)
        ]


def shown_times(times: Sequence[int | None], since: int) -> tuple[list[datetime], list[int]]:
    """The times as they are shown, and the places where they are others.

    The same for Arrow: `counterpoise.logs.record_batch`.
    """
    if times and (isinstance(times, array) or None not in times):
        numbers = cast("Sequence[int]", times)
        if min(numbers) + since >= FIRST_SHOWN and max(numbers) + since <= LAST_SHOWN:
            begin = _EPOCH + timedelta(0, 0, since)
            return [begin + timedelta(0, 0, at) for at in numbers], []
    shown, strange = nearest_shown(times, since)
    return [_EPOCH + timedelta(0, 0, at) for at in shown], strange


def nearest_shown(times: Sequence[int | None], since: int) -> tuple[list[int], list[int]]:
    """For each time the nearest that can be shown, in microseconds since 1970, and the places where
    it is another.
    """
    given = [None if at is None else at + since for at in times]
    shown = [0 if at is None else min(max(at, FIRST_SHOWN), LAST_SHOWN) for at in given]
    return shown, [place for place, at in enumerate(given) if at != shown[place]]


def flagged_rows(
    headers: Sequence[Pairs | None], times: Iterable[int], values: Iterable[int]
) -> list[Pairs | None]:
    """The headers of all rows; those at these places say that the time, or the value, is not shown
    as it is.
    """
    shown = list(headers)
    for column, places in (("published_at", times), ("value", values)):
        for place in places:
            shown[place] = flagged(shown[place] or [], column)
    return shown


def flagged(headers: Iterable[tuple[str, str]], column: str) -> Pairs:
    """The headers, and that this column of their row is not shown as it is."""
    shown = dict(headers)
    columns = {*shown.get(UNREADABLE, "").split(","), column} - {""}
    return list({**shown, UNREADABLE: ",".join(sorted(columns))}.items())


def is_tombstone(value: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a message that is shown like this has no value."""
    return not value and headers.get(TOMBSTONE) == "true"


def tombstone(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of a message without a value, to be appended with an empty one."""
    return {**(headers or {}), TOMBSTONE: "true"}


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
