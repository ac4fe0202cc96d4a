"""The dynamic built-in logs, for the calls: errors become answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, Protocol

from broker.core.errors import Invalid, PartitionEnded, Unavailable
from broker.logs.ports import LogDatabaseUnavailable, LogOwner, PartitionSealed, Root, Sealing
from counterpoise.logs import LogError
from counterpoise.logs.ranges import HashRange

DATABASE_AWAY = "The service cannot reach the database of the built-in log right now; try again."


class HashRanges(Protocol):
    """See `broker.logs.builtin.ranges.HashRanges`."""

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]: ...

    async def split(
        self, log: str, partition: int, at: int | None, owner: LogOwner, *, anywhere: bool = False
    ) -> Sealing: ...

    async def merge(self, log: str, partition: int, other: int, owner: LogOwner) -> Sealing: ...

    async def sample(
        self, log: str, partition: int, owner: LogOwner
    ) -> tuple[HashRange, Mapping[int, int]]: ...


class DynamicLogs:
    """Implements `broker.logs.ports.RangeLogs`."""

    def __init__(self, ranges: HashRanges) -> None:
        self._ranges = ranges

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        """See `RangeLogs`."""
        with _answered():
            return await self._ranges.roots(log, latest=latest)

    async def split(
        self, log: str, partition: int, at: int | Literal["middle", "load"], owner: LogOwner
    ) -> Sealing:
        """See `RangeLogs`. A load that cannot be halved is split in the middle of the range."""
        with _answered():
            if isinstance(at, int):
                return await self._ranges.split(log, partition, at, owner)
            middle = None
            if at == "load":
                middle = halves(*await self._ranges.sample(log, partition, owner))
            return await self._ranges.split(log, partition, middle, owner, anywhere=True)

    async def merge(self, log: str, partition: int, other: int, owner: LogOwner) -> Sealing:
        """See `RangeLogs`."""
        with _answered():
            return await self._ranges.merge(log, partition, other, owner)


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except LogDatabaseUnavailable:
        raise Unavailable(DATABASE_AWAY) from None
    except PartitionSealed as sealed:
        raise PartitionEnded(
            sealed.partition, [child.partition for child in sealed.successors]
        ) from None
    except LogError as error:
        raise Invalid(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def halves(whole: HashRange, sampled: Mapping[int, int]) -> int | None:
    """The hash with which the second of two ranges begins that share the sampled load best.

    `sampled`: how often each hash occurs. None if one of the ranges would have no load; a split
    elsewhere then helps no more than one in the middle. Of equal ones the lowest.
    """
    hashes = sorted(key_hash for key_hash in sampled if key_hash in whole)
    total, before = sum(sampled[key_hash] for key_hash in hashes), 0
    best: tuple[int, int] | None = None
    for left, right in pairwise(hashes):
        before += sampled[left]
        uneven = abs(total - 2 * before)
        if best is None or uneven < best[0]:
            best = uneven, (left + right + 1) // 2
    return None if best is None else best[1]
