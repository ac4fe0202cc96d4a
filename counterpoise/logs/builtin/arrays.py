"""Arrays in the binary form of Postgres, read and written without a call for each element.

An array of one dimension has a head and, for each element, the number of its bytes (-1: null) and
these. All numbers are big-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

# Dimensions, whether there are nulls, type, length, first index.
_HEAD = struct.Struct("!iiIii")
_HEAD_BYTES, _EMPTY_BYTES = _HEAD.size, 12

_INTEGER, _BYTEA, _TEXT = 23, 17, 25


@dataclass(frozen=True, slots=True)
class SentArray:
    """An array in its binary form, as a parameter of a statement that names its type."""

    data: bytes


class SentArrayDumper(Dumper):
    """Sends a SentArray as it is."""

    format = Format.BINARY

    def dump(self, obj: SentArray) -> Buffer:
        return obj.data


def integer_array(values: Sequence[int]) -> SentArray:
    """An `integer[]` to send. Raises OverflowError for a number beyond 32 bits."""
    words = array("i", [4]) * (2 * len(values))
    words[1::2] = array("i", values)
    return SentArray(_head(_INTEGER, len(values)) + _swapped(words).tobytes())


def bytea_array(values: Sequence[bytes]) -> SentArray:
    """A `bytea[]` to send."""
    return _of_sizes(_BYTEA, map(len, values), values, has_nulls=False)


def text_array(values: Sequence[str | None]) -> SentArray:
    """A `text[]` to send over a connection whose encoding is UTF-8."""
    there = [b"" if value is None else value.encode() for value in values]
    has_nulls = None in values
    sizes: Iterable[int] = map(len, there)
    if has_nulls:
        sizes = (-1 if value is None else size for value, size in zip(values, sizes, strict=True))
    return _of_sizes(_TEXT, sizes, there, has_nulls)


def _head(kind: int, count: int, has_nulls: bool = False) -> bytes:
    head = _HEAD.pack(1, has_nulls, kind, count, 1)
    # An array without elements has no dimension either.
    return head if count else _HEAD.pack(0, 0, kind, 0, 0)[:_EMPTY_BYTES]


def _of_sizes(
    kind: int, sizes: Iterable[int], values: Sequence[bytes], has_nulls: bool
) -> SentArray:
    sent = _swapped(array("i", sizes)).tobytes()
    parts = [b""] * (2 * len(values))
    parts[0::2] = [sent[place : place + 4] for place in range(0, len(sent), 4)]
    parts[1::2] = values
    return SentArray(b"".join([_head(kind, len(values), has_nulls), *parts]))


def sent_integers(sent: bytes | memoryview) -> array[int]:
    """The elements of an `integer[]` without nulls, as `array_send` writes it."""
    return _swapped(_words(sent)[1::2])


def sent_bigints(sent: bytes | memoryview) -> array[int]:
    """As `sent_integers`, of a `bigint[]`, or of a `timestamptz[]`: microseconds since 2000."""
    words = _words(sent)
    halves = array("i", bytes(8 * (len(words) // 3)))
    halves[0::2], halves[1::2] = words[1::3], words[2::3]
    return _swapped(array("q", halves.tobytes()))


def _words(sent: bytes | memoryview) -> array[int]:
    words = array("i")
    words.frombytes(memoryview(sent)[_HEAD_BYTES:])
    return words


def _swapped(numbers: array[int]) -> array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
