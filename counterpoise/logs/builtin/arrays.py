"""Arrays as Postgres sends them in binary, read without an object for each element."""

from __future__ import annotations

import sys
from array import array

# Of an array: dimensions, whether there are nulls, type, length, first index.
_HEAD_BYTES = 20


def sent_integers(sent: bytes | memoryview) -> array[int]:
    """The elements of an `integer[]` of one dimension and without nulls, as `array_send` of
    Postgres writes it: a head, and for each element the number of its bytes (4), and these; all
    numbers are big-endian.
    """
    return _native(_words(sent)[1::2])


def sent_bigints(sent: bytes | memoryview) -> array[int]:
    """As `sent_integers`, of a `bigint[]`, or of a `timestamptz[]`: microseconds since 2000."""
    words = _words(sent)
    halves = array("i", bytes(8 * (len(words) // 3)))
    halves[0::2], halves[1::2] = words[1::3], words[2::3]
    return _native(array("q", halves.tobytes()))


def _words(sent: bytes | memoryview) -> array[int]:
    words = array("i")
    words.frombytes(memoryview(sent)[_HEAD_BYTES:])
    return words


def _native(numbers: array[int]) -> array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
