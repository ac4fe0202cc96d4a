"""The kind of log in memory, in the place of the built-in one; see `broker.logs.ports.LogKind`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from broker.logs.peeking import Peek, peek_at
from broker.logs.ports import Bounds, Holder, LogAccess, LogOwner, Purpose, Root, Sealing
from broker.logs.retention import Young
from counterpoise.logs import AppendBatch, AppendResult, LogError
from counterpoise.logs.address import parse_log
from counterpoise.logs.memory import MemoryLog, MemoryLogs
from counterpoise.logs.ranges import HashRange

# The access is no credential and does not end.
ACCESS_SECONDS = 10 * 365 * 86400.0


NO_RANGES = "the log in memory has no hash ranges"


class NoRanges:
    """What the log in memory answers about hash ranges: LogError."""

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        raise LogError(NO_RANGES)

    async def split(
        self,
        log: str,
        partition: int,
        at: int | None,
        owner: LogOwner,
        *,
        anywhere: bool = False,
        dry_run: bool = False,
    ) -> Sealing:
        raise LogError(NO_RANGES)

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing:
        raise LogError(NO_RANGES)

    async def sample(
        self, log: str, partition: int, owner: LogOwner
    ) -> tuple[HashRange, Mapping[int, int]]:
        raise LogError(NO_RANGES)


class MemoryLogKind:
    """The logs of `logs` for the event loop. Nothing waits, and nobody needs credentials."""

    takes_cuts = False

    def __init__(self, logs: MemoryLogs) -> None:
        self._logs = logs
        self.ranges = NoRanges()

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> LogAccess | None:
        """Good in this process only."""
        return LogAccess(self._logs.access, self._logs.clock() + ACCESS_SECONDS)

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        committed: Sequence[Mapping[int, str]] = (),
        keys: Mapping[int, str] | None = None,
    ) -> bool:
        """See `LogKind`. The log loses nothing, so it ignores `committed`. It has no hash ranges:
        `keys` raises LogError.
        """
        if keys is not None:
            raise LogError(NO_RANGES)
        return self._logs.ensure(_name(log), partition_count, owner.queue_id, owner.created_at)

    async def partition_count(self, log: str) -> int:
        """See `LogKind`."""
        return self._logs.partition_count(_name(log))

    async def set_partition_count(
        self, log: str, partition_count: int, revision: int, owner: LogOwner
    ) -> bool:
        """See `LogKind`."""
        return self._logs.set_partition_count(_name(log), partition_count, revision, owner.queue_id)

    async def discard(
        self, log: str, partitions: Collection[int], owner: LogOwner
    ) -> frozenset[int]:
        """See `LogKind`."""
        return self._logs.discard(_name(log), partitions, owner.queue_id)

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        """See `LogKind`."""
        positions = {number: int(position) for number, position in below.items()}
        self._logs.trim(_name(log), positions, owner.queue_id)

    async def bounds(
        self, log: str, partitions: Sequence[int] | None = None, *, seconds: float | None = None
    ) -> Bounds:
        """See `LogKind`."""
        return self._logs.bounds(_name(log), partitions)

    async def position_at(self, log: str, time: float) -> Mapping[int, str]:
        """See `LogKind`."""
        return self._logs.position_at(_name(log), time)

    async def ages(
        self, log: str, positions: Mapping[int, str], *, seconds: float
    ) -> Mapping[int, float]:
        """See `LogKind`."""
        numbers = {number: int(position) for number, position in positions.items()}
        return self._logs.ages(_name(log), numbers)

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """See `LogKind`."""
        opened = MemoryLog(self._logs, _name(log))
        return peek_at(opened, partition, position, limit, max_bytes)

    async def append(self, log: str, batch: AppendBatch) -> AppendResult:
        """See `LogKind`."""
        return MemoryLog(self._logs, _name(log)).append(batch)

    async def young(
        self, log: str, below: Mapping[int, int], seconds: float
    ) -> Mapping[int, Young]:
        """See `BuiltinLogs`."""
        found = self._logs.young(_name(log), below, seconds)
        return {number: Young(*one) for number, one in found.items()}

    async def drop(self, log: str, owner: LogOwner) -> None:
        """See `LogKind`."""
        self._logs.drop(_name(log), owner.queue_id)

    # What the built-in log has besides: there are no clients and no rests of dropped logs.

    async def holders(self) -> frozenset[str]:
        """No credentials were given."""
        return frozenset()

    async def keys_in_use(self) -> frozenset[str]:
        """As above."""
        return frozenset()

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        """As above."""

    async def watch(self) -> None:
        """As above."""

    async def drop_expired_credentials(self) -> None:
        """As above."""

    async def sweep_dropped(self) -> int:
        """Dropping leaves nothing."""
        return 0

    async def forget_publishers(self, idle_seconds: float) -> int:
        """They end with the process."""
        return 0

    async def sweep_watches(self) -> int:
        """Nothing waits."""
        return 0


def _name(log: str) -> str:
    return parse_log(log).name
