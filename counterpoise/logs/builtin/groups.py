"""Groups of messages, as the built-in log sends them, and the record batches that they make."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from counterpoise.logs.builtin.arrays import sent_bigints, sent_integers
from counterpoise.logs.columns import counting, integers, packed, scalar
from counterpoise.logs.rows import Pairs, headers_of, record_batch

_EPOCH_2000_MICROSECONDS = 946_684_800_000_000
_EPOCH_2000 = scalar(_EPOCH_2000_MICROSECONDS, pa.int64())


class PackedRows:
    """Messages from `start` on, up to the first gap, unpacked from groups of the built-in log."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.sizes = array("i")
        # Whether the next group has messages, but not all: then its positions are needed.
        self.needs_positions = False
        self._times = array("q")
        self._values: list[memoryview] = []
        self._key_sizes = array("i")
        self._keys: list[memoryview] = []
        self._headers: list[Pairs | None] = []

    @property
    def value_bytes(self) -> int:
        """The bytes of all values."""
        return sum(map(len, self._values))

    def add_all(self, groups: Iterable[Sequence[Any]]) -> None:
        """Add groups up to the first gap."""
        for group in groups:
            if not self.add(*group):
                return

    def add(
        self,
        first: int | None,
        positions: list[int] | None,
        sent_times: memoryview | None,
        sent_sizes: memoryview | None,
        values: memoryview,
        sent_key_sizes: memoryview | None,
        keys: memoryview | None,
        headers: list[str | None] | None,
    ) -> bool:
        """Add a group; returns whether the next group may follow.

        `first` is its first position, None if it lacks some and does not say which. Times are
        microseconds since 2000; these and the sizes are as Postgres sends arrays, None if there is
        no message. A message without a key has the size -1 of a key.
        """
        due = self.start + len(self.sizes)
        self.needs_positions = first is None and sent_times is not None
        if first != due or sent_times is None or sent_sizes is None:
            return False
        times, sizes = sent_bigints(sent_times), sent_integers(sent_sizes)
        count = len(times)
        if positions is not None:
            count = next(place for place, found in enumerate(positions) if found != due + place)
            sizes = sizes[:count]
        self.sizes += sizes
        self._times += times[:count]
        self._values.append(values if positions is None else values[: sum(sizes)])
        if sent_key_sizes is None or keys is None:
            self._key_sizes += array("i", [-1]) * count
        else:
            self._key_sizes += (key_sizes := sent_integers(sent_key_sizes)[:count])
            if positions is not None:
                keys = keys[: sum(size for size in key_sizes if size > 0)]
            self._keys.append(keys)
        self._headers += (
            [None] * count
            if headers is None
            else [None if raw is None else headers_of(raw) for raw in headers[:count]]
        )
        return positions is None

    def record_batch(self, partition: int) -> pa.RecordBatch:
        """The messages as a batch of MESSAGE_SCHEMA."""
        count = len(self.sizes)
        return record_batch(
            partition,
            counting(self.start, count),
            _since_1970(self._times),
            packed(self._key_sizes, b"".join(self._keys), pa.string())
            if self._keys
            else pa.nulls(count, pa.string()),
            packed(self.sizes, b"".join(self._values)),
            self._headers,
        )


def _since_1970(times: Sequence[int]) -> pa.Array | list[int]:
    """Microseconds since 1970, of such since 2000."""
    try:
        return pc.add_checked(integers(times), _EPOCH_2000)
    except pa.ArrowInvalid:  # a year that 64 bits do not reach from 1970
        return [at + _EPOCH_2000_MICROSECONDS for at in times]
