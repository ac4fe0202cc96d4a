"""Partials: what is known of a group of rows, mergeable with what is known of others. Pure.

A partial is a value that JSON can hold, with four laws, for any division of the rows into parts:

- merging the partials of the parts gives the partial of all rows, so neither the micro-batches nor
  the partitions nor their owners make a difference;
- the order of merging makes no difference (for sums of floats: but for the last digits);
- a part without rows has no partial;
- it stays small, however many rows it stands for: at most a row of each partition.

Rows of one partition come in the order of their positions. A *mark* says where a row was: its event
time, its partition and its position. Positions of two partitions cannot be compared. So `First` and
`Last` go by position within a partition, and between partitions by the event time of the row.
"""

from __future__ import annotations

import base64
import decimal
import hashlib
import heapq
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

Mark = tuple[int, int, int]
"""(event time in microseconds, partition, position)"""


class Aggregate(ABC):
    """How the rows of a group become one value. `column`: what it is computed from."""

    column: str | None

    @abstractmethod
    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> Any:
        """That of at least one row: the column's value of each row, and its mark."""

    @abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """That of the rows of both."""

    def value(self, partial: Any) -> Any:
        """The result that it stands for."""
        return partial


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of rows whose column is not null."""

    column: str | None = None

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> int:
        return len(values) if self.column is None else len(_known(values))

    def merge(self, one: int, other: int) -> int:
        return one + other


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum; null without a value. Whole numbers and decimals are exact, however large.

    Floats add up to infinity or NaN as in IEEE 754.
    """

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> Any:
        return _sum(_known(values))

    def merge(self, one: Any, other: Any) -> Any:
        return _sum(_known((one, other)))


@dataclass(frozen=True)
class Min(Aggregate):
    """The least value; null without a value. NaN is not one."""

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> Any:
        return min(_numbers(values), default=None)

    def merge(self, one: Any, other: Any) -> Any:
        return min(_known((one, other)), default=None)


@dataclass(frozen=True)
class Max(Aggregate):
    """The greatest value; null without a value. NaN is not one."""

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> Any:
        return max(_numbers(values), default=None)

    def merge(self, one: Any, other: Any) -> Any:
        return max(_known((one, other)), default=None)


@dataclass(frozen=True)
class Avg(Aggregate):
    """The mean; null without a value. That of decimals has up to 38 digits."""

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> list[Any]:
        known = _known(values)
        return [len(known), _sum(known)]

    def merge(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [one[0] + other[0], _sum(_known((one[1], other[1])))]

    def value(self, partial: list[Any]) -> Any:
        count, total = partial
        with decimal.localcontext(prec=_MEAN_DIGITS):
            return total / count if count else None


@dataclass(frozen=True)
class First(Aggregate):
    """The value of the first row, which may be null."""

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> list[Any]:
        return [[*marks[0], values[0]]]

    def merge(self, one: list[Any], other: list[Any]) -> list[Any]:
        return _of_each_partition(min, one, other)

    def value(self, partial: list[Any]) -> Any:
        return min(partial, key=_time_and_partition)[-1]


@dataclass(frozen=True)
class Last(Aggregate):
    """The value of the last row, which may be null."""

    column: str

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> list[Any]:
        return [[*marks[-1], values[-1]]]

    def merge(self, one: list[Any], other: list[Any]) -> list[Any]:
        return _of_each_partition(max, one, other)

    def value(self, partial: list[Any]) -> Any:
        return max(partial, key=_time_and_partition)[-1]


@dataclass(frozen=True)
class ApproxDistinct(Aggregate):
    """About the number of different values that are not null.

    Exact below `size`, then with a relative standard error of 1 / sqrt(size - 2), 3 % for 1,024:
    the `size` smallest hashes are kept (Bar-Yossef et al., 2002).
    """

    column: str
    size: int = 1024

    def partial(self, values: Sequence[Any], marks: Sequence[Mark]) -> list[int]:
        return self._smallest({_hash(value) for value in set(_known(values))})

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return self._smallest({*one, *other})

    def value(self, partial: list[int]) -> int:
        if len(partial) < self.size:
            return len(partial)
        return round((self.size - 1) * _HASHES / (partial[-1] + 1))

    def _smallest(self, hashes: set[int]) -> list[int]:
        return heapq.nsmallest(self.size, hashes)


Values = Mapping[str, Aggregate]
"""By the column of the result."""


def partial_of(values: Values, columns: Mapping[str, Sequence[Any]], marks: Sequence[Mark]) -> Any:
    """The partials of some rows by name; each column has a value for each mark."""
    return {
        name: one.partial(marks if one.column is None else columns[one.column], marks)
        for name, one in values.items()
    }


def merged(values: Values, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The partials of the rows of both. A value that one of them lacks (new) is the other's."""
    return {
        name: aggregate.merge(one[name], other[name])
        if name in one and name in other
        else one.get(name, other.get(name))
        for name, aggregate in values.items()
    }


def results_of(values: Values, partial: Mapping[str, Any]) -> dict[str, Any]:
    """The results by name."""
    return {
        name: None if name not in partial else one.value(partial[name])
        for name, one in values.items()
    }


_HASHES = 1 << 64
_EXACT_DIGITS = 100
"""More than the 38 digits of a decimal and those of any number of rows."""
_MEAN_DIGITS = 38


def _hash(value: Any) -> int:
    text = value if isinstance(value, bytes) else str(value).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Without null, and without NaN, which is not equal to itself."""
    return [value for value in values if value is not None and value == value]


def _sum(values: Sequence[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], float):
        try:
            return math.fsum(values)
        except (OverflowError, ValueError):
            return sum(values)  # as in IEEE 754: beyond the largest number, or inf with -inf
    with decimal.localcontext(prec=_EXACT_DIGITS):
        return sum(values)


def _of_each_partition(
    choose: Callable[..., Any], one: list[Any], other: list[Any]
) -> list[list[Any]]:
    """Of each partition the row that is chosen by position, as mark and value.

    All are kept: a late row can come before or after one of its own partition alone.
    """
    found: dict[int, list[Any]] = {}
    for row in (*one, *other):
        known = found.setdefault(row[1], row)
        found[row[1]] = choose(known, row, key=itemgetter(2))
    return [found[partition] for partition in sorted(found)]


_time_and_partition = itemgetter(0, 1)


# ------------------------------------------------------------------ as text

_TAG = "@"
_MOST_BYTES = 1000


def to_text(document: Any) -> str:
    """Partials, or the columns of a group, as text; equal ones have equal texts.

    Raises TypeError for a value that is no number, text, bytes, time or date.
    """
    return json.dumps(_mapped(document), default=_tagged, separators=(",", ":"), ensure_ascii=False)


def from_text(text: str) -> Any:
    """What `to_text` was given."""
    return json.loads(text, object_hook=_untagged)


def indexed(text: str) -> str:
    """The text, or the hash of one that is too long for an index of PostgreSQL."""
    data = text.encode()
    return text if len(data) <= _MOST_BYTES else hashlib.sha256(data).hexdigest()


def _mapped(value: Any) -> Any:
    """Maps that JSON cannot hold, or that look like a tagged value, as tagged values; 0.0 for
    -0.0.
    """
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list | tuple):
        return [_mapped(one) for one in value]
    if not isinstance(value, dict):
        return value
    if _TAG in value or not all(isinstance(key, str) for key in value):
        return {_TAG: "map", "is": [[_mapped(key), _mapped(one)] for key, one in value.items()]}
    return {key: _mapped(one) for key, one in value.items()}


def _tagged(value: Any) -> dict[str, str]:
    match value:
        case datetime():
            # Applications may have several time zones.
            one = value if value.tzinfo is None else value.astimezone(UTC)
            return {_TAG: "time", "is": one.isoformat()}
        case date():
            return {_TAG: "date", "is": value.isoformat()}
        case Decimal():
            return {_TAG: "decimal", "is": str(value)}
        case bytes():
            return {_TAG: "bytes", "is": base64.b64encode(value).decode()}
    raise TypeError(f"a {type(value).__name__} cannot be aggregated")


def _untagged(found: dict[str, Any]) -> Any:
    match found.get(_TAG):
        case "map":
            return {tuple(k) if isinstance(k, list) else k: one for k, one in found["is"]}
        case "time":
            return datetime.fromisoformat(found["is"])
        case "date":
            return date.fromisoformat(found["is"])
        case "decimal":
            return Decimal(found["is"])
        case "bytes":
            return base64.b64decode(found["is"])
    return found
