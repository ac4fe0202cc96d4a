"""The logs of a world, and its implementation of the port `broker.logs.ports.Logs`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from broker.core.errors import BrokerError
from broker.logs.ports import Holder, LogOwner, Positions, Purpose
from broker.logs.trimming import trim_floor


class Watch(Protocol):
    """Is told what happens to messages."""

    def published(self, partition: int) -> None:
        """One more message."""

    def discarded(self, partition: int) -> None:
        """All messages of the partition were discarded."""

    def trimmed(self, partition: int, first: int) -> None:
        """Messages below `first` were removed."""


class Log:
    """The messages: the start and the end of each partition. Positions count from 0.

    Like the built-in log it knows its partition count and the revision that set it.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.count = 0
        self.revision = 0
        self.ends: dict[int, int] = {}
        self.firsts: dict[int, int] = {}

    def append(self, partition: int) -> None:
        """Appends one message, routed with the partition count that the log knows."""
        if partition < self.count:
            self.ends[partition] = self.ends.get(partition, 0) + 1
            if self.watch is not None:
                self.watch.published(partition)

    def resize(self, count: int, revision: int) -> None:
        """Ignored if a newer revision is known."""
        if revision >= self.revision:
            self.count, self.revision = count, revision

    def discard(self, partition: int) -> None:
        """Ignored if the partition was added again."""
        if partition >= self.count:
            self.firsts[partition] = self.ends.get(partition, 0)
            if self.watch is not None:
                self.watch.discarded(partition)

    def trim(self, partition: int, first: int) -> None:
        if first > self.firsts.get(partition, 0):
            self.firsts[partition] = first
            if self.watch is not None:
                self.watch.trimmed(partition, first)


class Logs:
    """A replica's access to the logs. `told`: the calls that it got, in order.

    `error`: raised by calls. `topics`: the partition counts of logs that the service does not
    manage.
    """

    def __init__(self, by_name: dict[str, Log] | None = None) -> None:
        self.by_name = {} if by_name is None else by_name
        self.told: list[tuple[Any, ...]] = []
        self.error: BrokerError | None = None
        self.topics: dict[str, int] = {}

    def the(self, name: str) -> Log:
        """The log of this name, created if needed."""
        return self.by_name.setdefault(name, Log())

    async def access(
        self, log: str, purpose: Purpose, holder: Holder, *, refused: bool = False
    ) -> None:
        """No credentials are needed here."""
        if self.error is not None:
            raise self.error

    async def holders(self) -> frozenset[str]:
        """No credentials were given."""
        return frozenset()

    async def keys_in_use(self) -> frozenset[str]:
        """As above."""
        return frozenset()

    async def revoke(self, holders: Collection[str] = (), keys: Collection[str] = ()) -> None:
        self.told.append(("revoke", frozenset(holders), frozenset(keys)))

    async def ensure(self, log: str, partition_count: int, owner: LogOwner) -> None:
        self.told.append(("ensure", log, partition_count, owner))
        self.the(log).count = partition_count

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        self.told.append(("set_partition_count", log, partition_count, sorted(discard)))
        self.the(log).resize(partition_count, revision)
        for number in discard:
            self.the(log).discard(number)

    async def drop(self, log: str, owner: LogOwner) -> None:
        self.told.append(("drop", log))
        self.by_name.pop(log, None)

    async def partition_count(self, log: str) -> int:
        """How many partitions a topic has."""
        if self.error is not None:
            raise self.error
        return self.topics[log] if log in self.topics else self.the(log).count

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Any]:
        """The log does not say how many messages are between two positions."""
        return {}

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        """The ends of these partitions; partitions that never had a message are left out."""
        ends = self.the(log).ends
        return {number: str(ends[number]) for number in partitions if number in ends}

    async def maintain(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        committed: Sequence[Positions],
    ) -> None:
        told = list(committed)
        self.told.append(("maintain", log, partition_count, told))
        known = self.the(log)
        if known.count != partition_count:
            known.resize(partition_count, revision)
        floor = trim_floor(
            {number: None if at is None else int(at) for number, at in positions.items()}
            for positions in told
        )
        for number, first in floor.items():
            known.trim(number, first)

    async def positions(self, log: str, where: object) -> Mapping[int, str]:
        if self.error is not None:
            raise self.error
        known = self.the(log)
        ends = known.firsts if where == "earliest" else known.ends
        numbers = range(max(known.ends, default=0) + 1)
        return {number: str(ends.get(number, 0)) for number in numbers}
