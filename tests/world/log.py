"""The logs of a world, and its implementation of the port `broker.logs.ports.Logs`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from broker.core.errors import BrokerError, Invalid
from broker.logs.peeking import Peek
from broker.logs.ports import Bounds, Holder, LogOwner, Positions, Purpose, Sealing
from broker.logs.positions import trim_floor
from broker.logs.publisher import Appended
from broker.logs.retention import Retention
from counterpoise.logs import Message
from counterpoise.logs.address import kind_of
from counterpoise.logs.ranges import Ranges
from tests.world.ranges import DynamicRanges, WorldRanges

Routing = int | Ranges
"""What a publisher routes with: the partition count, or the ranges."""


class Watch(Protocol):
    """Is told what happens to messages."""

    def published(self, partition: int, key: int | None = None) -> None:
        """One more message; `key`: the hash of its key, if it has one."""

    def resized(self, number: int, before: int, count: int, cuts: Mapping[int, int]) -> None:
        """The log's resize of this number, and the ends at that moment."""

    def sealed(self, ends: Mapping[int, int], children: Sequence[int]) -> None:
        """These partitions end for good, and those come after all of them."""

    def discarded(self, partition: int) -> None:
        """All messages of the partition were discarded."""

    def trimmed(self, partition: int, first: int) -> None:
        """Messages below `first` were removed."""


class Log:
    """The messages: the start and the end of each partition. Positions count from 0.

    Like the built-in log it knows its partition count, the revision that set it, and where its last
    resize has cut the partitions; or the hash ranges of its partitions.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch
        self.owner: str | None = None
        self.count = 0
        self.revision = 0
        self.ends: dict[int, int] = {}
        self.firsts: dict[int, int] = {}
        self.resizes = 0
        self.resized_from = 0
        self.cuts: dict[int, int] = {}
        self.ranges: DynamicRanges | None = None
        # The hashes of keys, by partition and position.
        self.keys: dict[tuple[int, int], int] = {}

    def append(self, partition: int, key: int | None = None) -> None:
        """Appends one message, routed with the partition count that the log knows."""
        if partition < self.count:
            if key is not None:
                self.keys[partition, self.ends.get(partition, 0)] = key
            self.ends[partition] = self.ends.get(partition, 0) + 1
            if self.watch is not None:
                self.watch.published(partition, key)

    @property
    def routing(self) -> Routing:
        """What publishers route with now."""
        return self.count if self.ranges is None else self.ranges.open

    def publish(self, hashes: Sequence[int], routing: Routing) -> bool:
        """Appends messages of these key hashes, all or none: False if they were not routed as the
        log routes now."""
        if isinstance(routing, int):
            numbers = [key_hash % routing for key_hash in hashes]
        else:
            numbers = [routing.of_hash(key_hash).partition for key_hash in hashes]
        if not self._accepts(hashes, numbers, routing):
            return False
        for number, key_hash in zip(numbers, hashes, strict=True):
            self.append(number, key_hash)
        return True

    def _accepts(self, hashes: Sequence[int], numbers: Sequence[int], routing: Routing) -> bool:
        if self.ranges is None:
            return routing == self.count
        return all(map(self.ranges.takes, numbers, hashes))

    def resize(self, count: int, revision: int) -> None:
        """Ignored if a newer revision is known."""
        if revision >= self.revision:
            if self.count not in (0, count):
                self._cut(count, dict(self.ends))
            self.count, self.revision = count, revision

    def _cut(self, count: int, ends: Mapping[int, int]) -> None:
        self.resizes, self.resized_from = self.resizes + 1, self.count
        self.cuts = dict(ends)
        if self.watch is not None:
            self.watch.resized(self.resizes, self.count, count, self.cuts)

    def seal(self, numbers: Sequence[int], at: int | None = None) -> Sealing:
        """Splits one partition or merges two. Raises PartitionEnded, Invalid."""
        if self.ranges is None:
            raise Invalid("There are no ranges.")
        new = numbers[0] not in self.ranges.sealed
        if len(numbers) == 1:
            successors = self.ranges.split(numbers[0], at)
        else:
            successors = self.ranges.merge(*numbers)
        self.count = len(self.ranges.of)
        ends = {number: self.ends.get(number, 0) for number in sorted(numbers)}
        if new and self.watch is not None:
            self.watch.sealed(ends, [one.partition for one in successors])
        return Sealing({number: str(end) for number, end in ends.items()}, successors)

    def bounds(self) -> Bounds:
        """Of all partitions that it ever had."""
        numbers = range(max(self.count, self.resized_from, *(n + 1 for n in self.ends), 0))

        def of(values: Mapping[int, int]) -> Mapping[int, str]:
            return {number: str(values.get(number, 0)) for number in numbers}

        return Bounds(
            self.count,
            "log",
            of(self.firsts),
            of(self.ends),
            keys={} if self.ranges is None else self.ranges.keys,
            sealed={} if self.ranges is None else dict(self.ranges.sealed),
            resize=self.resizes,
            resized_from=self.resized_from,
            cuts=of(self.cuts) if self.resizes else {},
        )

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
        # The offsets of consumer groups, and why they take none at present.
        self.groups: dict[str, dict[int, str]] = {}
        self.refusal: str | None = None

    def the(self, name: str) -> Log:
        """The log of this name, created if needed."""
        return self.by_name.setdefault(name, Log())

    def takes_cuts(self, log: str) -> bool:
        """As the built-in log does."""
        return kind_of(log) == "builtin"

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

    @property
    def ranges(self) -> WorldRanges:
        """Those of dynamic logs."""
        return WorldRanges(self.by_name)

    async def ensure(
        self,
        log: str,
        partition_count: int,
        owner: LogOwner,
        keys: Mapping[int, str] | None = None,
    ) -> None:
        self.told.append(("ensure", log, partition_count, owner))
        known = self.the(log)
        if known.owner not in (None, owner.queue_id):
            known = self.by_name[log] = Log(known.watch)
        known.owner, known.count = owner.queue_id, partition_count
        if keys:
            known.ranges = DynamicRanges(keys.values())

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
        if log in self.by_name and self.by_name[log].owner in (None, owner.queue_id):
            del self.by_name[log]

    async def partition_count(self, log: str) -> int:
        """How many partitions a topic has."""
        if self.error is not None:
            raise self.error
        return self.topics[log] if log in self.topics else self.the(log).count

    def clusters(self, logs: Sequence[str]) -> Mapping[object, Sequence[str]]:
        """By all of the address but the topic."""
        found: dict[object, list[str]] = {}
        for log in logs:
            found.setdefault(log.rpartition("/")[0], []).append(log)
        return found

    async def partition_counts(self, logs: Sequence[str]) -> Mapping[str, int]:
        self.told.append(("partition_counts", *logs))
        if self.error is not None:
            raise self.error
        return {log: self.topics[log] for log in logs if log in self.topics}

    async def bounds(self, log: str, partitions: Sequence[int] | None = None) -> Bounds | None:
        """Those of all partitions, whichever are named."""
        return None if self.error is not None else self.the(log).bounds()

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Any]:
        """The log does not say how many messages are between two positions."""
        return {}

    async def ages(self, log: str, positions: Mapping[int, str]) -> Mapping[int, float]:
        """Nor when they were published."""
        return {}

    async def store_offsets(self, log: str, group: str, positions: Mapping[int, str]) -> str | None:
        self.told.append(("store_offsets", log, group, dict(positions)))
        if self.refusal is None:
            self.groups.setdefault(group, {}).update(positions)
        return self.refusal

    async def peek(
        self, log: str, partition: int, position: str | None, limit: int, max_bytes: int
    ) -> Peek:
        """Nobody looks at its messages."""
        raise Invalid("the log shows no messages")

    async def append(
        self,
        log: str,
        message: Message,
        id: str | None,
        partition_count: int,
        partition: int | None = None,
    ) -> Appended:
        """Nobody publishes a message here through the service."""
        raise Invalid("the log takes no messages")

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
        keys: Mapping[int, str] | None = None,
        retention: Retention | None = None,
    ) -> Mapping[int, str]:
        """All that may go is to go: no retention hides a trim that comes too early."""
        told = list(committed)
        self.told.append(("maintain", log, partition_count, told))
        known = self.the(log)
        if keys is None and known.count != partition_count:
            known.resize(partition_count, revision)
        floor = trim_floor(
            {number: None if at is None else int(at) for number, at in positions.items()}
            for positions in told
        )
        return {
            number: str(first)
            for number, first in floor.items()
            if first > known.firsts.get(number, 0)
        }

    async def trim(self, log: str, below: Mapping[int, str], owner: LogOwner) -> None:
        for number, first in below.items():
            self.the(log).trim(number, int(first))

    async def positions(self, log: str, where: object) -> Mapping[int, str]:
        if self.error is not None:
            raise self.error
        known = self.the(log)
        ends = known.firsts if where == "earliest" else known.ends
        numbers = range(max(known.ends, default=0) + 1)
        return {number: str(ends.get(number, 0)) for number in numbers}
