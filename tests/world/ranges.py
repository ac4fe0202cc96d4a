"""The hash ranges of a world's dynamic log, and its implementation of `RangeLogs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from broker.core.errors import Invalid, PartitionEnded
from broker.logs.ports import LogOwner, Root, Sealing
from counterpoise.logs.port import Successor
from counterpoise.logs.ranges import HashRange, Ranges, parse_range

if TYPE_CHECKING:
    from tests.world.log import Log


class DynamicRanges:
    """Which partition has which hashes. Each call is one transaction of the log."""

    def __init__(self, keys: Iterable[str]) -> None:
        found = (parse_range(key) for key in keys)
        self.of: dict[int, HashRange] = {one.partition: one for one in found if one is not None}
        self.sealed: dict[int, tuple[Successor, ...]] = {}

    @property
    def open(self) -> Ranges:
        """Those that are not sealed: a publisher routes by them."""
        return Ranges(one for number, one in self.of.items() if number not in self.sealed)

    @property
    def keys(self) -> Mapping[int, str]:
        return {number: one.key for number, one in self.of.items()}

    def takes(self, partition: int, key_hash: int) -> bool:
        """Whether the partition takes a message of this hash now."""
        return partition not in self.sealed and key_hash in self.of[partition]

    def split(self, partition: int, at: int | None) -> tuple[Successor, ...]:
        """Raises PartitionEnded, Invalid."""
        whole = self._known(partition)
        known = self.sealed.get(partition)
        if known is not None:
            second = parse_range(known[-1].key)
            if len(known) == 2 and second is not None and at in (None, second.first):
                return known
            raise PartitionEnded(partition, [one.partition for one in known])
        middle = (whole.first + whole.last + 1) // 2 if at is None else at
        if not whole.first < middle <= whole.last:
            raise Invalid("Each part needs a hash.")
        return self._replace([whole], [(whole.first, middle - 1), (middle, whole.last)])

    def merge(self, partition: int, other: int) -> tuple[Successor, ...]:
        """Raises PartitionEnded, Invalid."""
        low, high = sorted((self._known(partition), self._known(other)))
        for number in (low.partition, high.partition):
            known = self.sealed.get(number)
            if known is None:
                continue
            if {*known[0].parents} == {low.key, high.key}:
                return known
            raise PartitionEnded(number, [one.partition for one in known])
        if low.last + 1 != high.first:
            raise Invalid("The ranges do not lie side by side.")
        return self._replace([low, high], [(low.first, high.last)])

    def _known(self, partition: int) -> HashRange:
        if partition not in self.of:
            raise Invalid(f"There is no partition {partition}.")
        return self.of[partition]

    def _replace(
        self, parents: Sequence[HashRange], ranges: Sequence[tuple[int, int]]
    ) -> tuple[Successor, ...]:
        first = max(self.of) + 1
        new = [HashRange(*edges, number) for number, edges in enumerate(ranges, first)]
        keys = tuple(sorted(parent.key for parent in parents))
        successors = tuple(Successor(one.partition, one.key, keys) for one in new)
        self.of.update({one.partition: one for one in new})
        self.sealed.update(dict.fromkeys((parent.partition for parent in parents), successors))
        return successors


class WorldRanges:
    """A replica's splits and merges, see `RangeLogs`."""

    def __init__(self, logs: Mapping[str, Log]) -> None:
        self._logs = logs

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        assert not latest, "nobody in this world begins at an end of ranges"
        ranges = self._logs[log].ranges
        return [Root(one.partition, one.key, None) for one in ranges.open.all] if ranges else []

    async def split(
        self,
        log: str,
        partition: int,
        at: int | Literal["middle", "load"],
        owner: LogOwner,
        *,
        dry_run: bool = False,
    ) -> Sealing:
        assert not dry_run, "nobody in this world asks for previews of its logs"
        return self._logs[log].seal([partition], None if isinstance(at, str) else at)

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing:
        assert not dry_run, "nobody in this world asks for previews of its logs"
        return self._logs[log].seal([partition, other])
