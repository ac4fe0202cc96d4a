"""The bounds of the built-in log, from rows of its tables.

The service and the clients ask with statements of their own; what a row means is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterpoise.logs.port import Bounds, Successor
from counterpoise.logs.ranges import HashRange

_ALWAYS = """l.partition_count, CAST(l.incarnation AS text), p.partition,
    p.first_position, p.next_position"""
COLUMNS = f"""{_ALWAYS}, p.first_hash, p.last_hash, p.successors,
    l.resize, l.resized_from, p.cut"""
"""What a statement selects from `logs` (l) and its `partitions` (p, an outer join)."""

COLUMNS_BEFORE = f"{_ALWAYS}, NULL, NULL, NULL, 0, 0, NULL"
"""The same for tables of the release before, which have no ranges and no cuts."""


def bounds_of(partitions: Iterable[int], rows: Sequence[Sequence[Any]]) -> Bounds:
    """The bounds that rows of COLUMNS describe; at least one row, all of one statement.

    A partition without a row begins and ends at 0, and so does its cut.
    """
    starts = dict.fromkeys(partitions, "0")
    ends, cuts = dict(starts), dict(starts)
    keys: dict[int, str] = {}
    sealed: dict[int, tuple[Successor, ...]] = {}
    count, incarnation, *_, resize, resized_from, _ = rows[0]
    for _, _, partition, first, following, first_hash, last_hash, successors, _, _, cut in rows:
        if partition is None:
            continue
        starts[partition], ends[partition] = str(first), str(following)
        if resize:
            cuts[partition] = str(cut or 0)
        if first_hash is not None:
            keys[partition] = HashRange(first_hash, last_hash, partition).key
        if (after := successors_of(successors)) is not None:
            sealed[partition] = after
    return Bounds(
        count,
        incarnation,
        starts,
        ends,
        keys,
        sealed,
        resize,
        resized_from or 0,
        cuts if resize else {},
    )


def successors_of(column: Sequence[Mapping[str, Any]] | None) -> tuple[Successor, ...] | None:
    """What comes after a partition, as its row says; None of one that is not sealed."""
    if column is None:
        return None
    return tuple(Successor(one["partition"], one["key"], tuple(one["parents"])) for one in column)
