"""Built-in logs that a queue reads side by side (the contract, *Aligned logs*).

They are the logs of other queues, which own them: here they are only read. `groups` has the numbers
of the partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from broker.logs.peeking import Peek
from broker.logs.ports import Bounds, Holder, LogAccess, LogKind, LogOwner, Purpose
from counterpoise.logs import AppendBatch, AppendResult, LogError
from counterpoise.logs.address import parse_log
from counterpoise.logs.groups import joined, joined_bounds, parted, place

NOT_OWNED = "aligned logs belong to their own queues"


class AlignedLogs:
    """All aligned logs; see `broker.logs.ports.LogKind`. Nothing of them is made or deleted."""

    def __init__(self, builtin: LogKind) -> None:
        self._builtin = builtin

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """One access for each log, separated by blanks; they end together."""
        found = [
            await self._builtin.access(part, purpose, holder, refused=refused)
            for part in parse_log(log).parts
        ]
        given = [one for one in found if one is not None]
        if len(given) < len(found):
            return None
        url = " ".join(one.url for one in given)
        return LogAccess(url, min(one.expires_at for one in given))

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
    ) -> bool:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)

    async def partition_count(self, log: str) -> int:
        """See `LogKind`."""
        counts = [await self._builtin.partition_count(part) for part in parse_log(log).parts]
        return len(counts) * max(counts)

    async def set_partition_count(
        self, log: str, partition_count: int, revision: int, owner: LogOwner
    ) -> bool:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner
    ) -> frozenset[int]:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """See `LogKind`."""
        parts = parse_log(log).parts
        some = None if partitions is None else parted(dict.fromkeys(partitions), len(parts))
        return joined_bounds(
            [
                await self._builtin.bounds(
                    part, None if some is None else [*some[which]], seconds=seconds
                )
                for which, part in enumerate(parts)
            ]
        )

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """See `LogKind`."""
        parts = parse_log(log).parts
        return joined([await self._builtin.position_at(part, time) for part in parts])

    async def ages(
        self, log: str, positions: Mapping[int, str], *, seconds: float
    ) -> Mapping[int, float]:
        """See `LogKind`; so many seconds for each of the logs."""
        parts = parse_log(log).parts
        some = parted(positions, len(parts))
        return joined(
            [
                await self._builtin.ages(part, some[which], seconds=seconds)
                for which, part in enumerate(parts)
            ]
        )

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """See `LogKind`."""
        parts = parse_log(log).parts
        which, number = place(partition, len(parts))
        return await self._builtin.peek(parts[which], number, position, limit, max_bytes)

    async def append(self, log: str, batch: AppendBatch) -> AppendResult:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)

    async def drop(self, log: str, owner: LogOwner) -> None:
        """See `LogKind`."""
        raise LogError(NOT_OWNED)
