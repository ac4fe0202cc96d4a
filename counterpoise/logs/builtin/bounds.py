"""The bounds of the built-in log, from rows of its tables.

The service and the clients ask with statements of their own; what a row means is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterpoise.logs.port import Bounds, Successor
from counterpoise.logs.ranges import HashRange

COLUMNS = """l.partition_count, CAST(l.incarnation AS text), p.partition,
    p.first_position, p.next_position, p.first_hash, p.last_hash, p.successors,
    l.resize, l.resized_from, p.cut"""
"""What a statement selects from `logs` (l) and its `partitions` (p, an outer join)."""


def bounds_of(partitions: Iterable[int], rows: Sequence[Sequence[Any]]) -> Bounds:
    """The bounds that rows of COLUMNS describe; at least one row, all of one statement."""
    reading = ReadBounds(partitions)
    reading.add(rows)
    return reading.bounds()


class ReadBounds:
    """The bounds that rows of COLUMNS describe, added some at a time; all of one statement.

    A partition without a row begins and ends at 0, and so does its cut.
    """

    def __init__(self, partitions: Iterable[int] = ()) -> None:
        self._starts = dict.fromkeys(partitions, "0")
        self._ends, self._cuts = dict(self._starts), dict(self._starts)
        self._keys: dict[int, str] = {}
        self._sealed: dict[int, tuple[Successor, ...]] = {}
        self._head: Sequence[Any] = ()

    @property
    def found(self) -> bool:
        """Whether there was a row: the log is known."""
        return bool(self._head)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """The next rows, at least one."""
        self._head = rows[0]
        for _, _, partition, first, following, low, high, successors, resize, _, cut in rows:
            if partition is None:
                continue
            self._starts[partition], self._ends[partition] = str(first), str(following)
            if resize:
                self._cuts[partition] = str(cut or 0)
            if low is not None:
                self._keys[partition] = HashRange(low, high, partition).key
            if (after := successors_of(successors)) is not None:
                self._sealed[partition] = after

    def bounds(self) -> Bounds:
        """The bounds, after the last row."""
        count, incarnation, *_, resize, resized_from, _ = self._head
        return Bounds(
            count,
            incarnation,
            self._starts,
            self._ends,
            self._keys,
            self._sealed,
            resize,
            resized_from or 0,
            self._cuts if resize else {},
        )


def successors_of(column: Sequence[Mapping[str, Any]] | None) -> tuple[Successor, ...] | None:
    """What comes after a partition, as its row says; None of one that is not sealed."""
    if column is None:
        return None
    return tuple(Successor(one["partition"], one["key"], tuple(one["parents"])) for one in column)
