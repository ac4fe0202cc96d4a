"""Hash ranges: the partitions of the built-in log of a dynamic queue.

The hash of a key is the CRC-32 of its UTF-8 bytes, 0 .. HASHES - 1. Each partition has a range of
hashes, first and last included, for its whole life. A *split* seals one partition and begins two
that share its range; a *merge* seals two neighbours and begins one with both their ranges. A sealed
partition takes no message any more. So at every moment the ranges of the unsealed partitions cover
each hash exactly once, and the messages of a key are in one chain of partitions: its order is the
order of the chain, and within each partition the order of positions.

The key of a partition is `LO-HI.N`: its first and last hash as eight hexadecimal digits, and its
number. A range that comes back after a merge has another number, therefore another key. Numbers
grow: a partition's number is above those of its parents.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from counterpoise.keys import hash_of

HASHES = 2**32
"""How many hashes there are."""

_KEY = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})\.(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """The hashes `first` to `last`, both included, of partition `partition`."""

    first: int
    last: int
    partition: int

    @property
    def key(self) -> str:
        """The partition's key in its queue."""
        return f"{self.first:08x}-{self.last:08x}.{self.partition}"

    def __contains__(self, key_hash: int) -> bool:
        return self.first <= key_hash <= self.last


def parse_range(key: str) -> HashRange | None:
    """The range of a partition's key; None if the key is not one of a hash range."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    first, last, partition = int(found[1], 16), int(found[2], 16), int(found[3])
    return HashRange(first, last, partition) if first <= last else None


def equal_ranges(count: int) -> list[HashRange]:
    """The ranges of partitions 0 .. count - 1 that share all hashes equally.

    Raises ValueError unless 1 <= count <= HASHES.
    """
    if not 1 <= count <= HASHES:
        raise ValueError(f"there are 1 to {HASHES} equal ranges, not {count}")
    edges = [HASHES * number // count for number in range(count + 1)]
    return [HashRange(edges[n], edges[n + 1] - 1, n) for n in range(count)]


class Ranges:
    """The ranges of all unsealed partitions of a log: who takes a key now."""

    def __init__(self, ranges: Iterable[HashRange]) -> None:
        """Raises ValueError unless the ranges cover every hash exactly once."""
        self._ranges = sorted(ranges)
        following = 0
        for one in self._ranges:
            if one.first != following or one.last < one.first:
                raise ValueError(f"the ranges do not cover hash {following:08x} exactly once")
            following = one.last + 1
        if following != HASHES:
            raise ValueError(f"the ranges do not cover hash {following:08x} exactly once")
        self._firsts = [one.first for one in self._ranges]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges))

    def __repr__(self) -> str:
        return f"Ranges({len(self._ranges)} partitions)"

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def all(self) -> Sequence[HashRange]:
        """The ranges in the order of hashes."""
        return self._ranges

    def of_hash(self, key_hash: int) -> HashRange:
        """The range that a hash is in."""
        return self._ranges[bisect_right(self._firsts, key_hash) - 1]

    def partition_of(self, key: str) -> int:
        """The partition of all messages with this key. Raises ValueError for lone surrogates."""
        return self.of_hash(hash_of(key)).partition

    def nth(self, number: int) -> int:
        """A partition for the `number`-th message without a key: they take turns."""
        return self._ranges[number % len(self._ranges)].partition
