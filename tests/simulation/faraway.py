"""The logs of the simulation, as far away from the replicas as the database is.

Each call is one transaction of the log. It takes time to get there and back, it fails while the log
is away, and the replica may die just before it or just after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from broker.core.errors import Unavailable
from broker.logs.ports import Bounds, LogOwner, Root, Sealing
from tests.world.log import Log, Logs
from tests.world.ranges import WorldRanges

if TYPE_CHECKING:
    from tests.simulation.service import Node

T = TypeVar("T")
REFUSED_SECONDS = 0.05


class Road:
    """The way of one replica to the logs."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def along(self, work: Callable[[], Awaitable[T]], *, changes: bool = False) -> T:
        """Carries out a call there. Raises Unavailable."""
        node = self._node
        await node.sleep(node.latency())
        fate = None
        if changes and node.next_log_call is not None:
            fate, node.next_log_call = node.next_log_call, None
            node.disturbed(0.0)
        if fate == "before":
            node.crash()
            await node.alive()
        if node.weather.log_away:
            await node.sleep(REFUSED_SECONDS)
            raise Unavailable("The log is away.")
        result = await work()
        if fate == "after":
            node.crash()
        await node.sleep(node.latency())
        return result


class FarRanges(WorldRanges):
    """Splits and merges, by way of the road."""

    def __init__(self, logs: Mapping[str, Log], road: Road) -> None:
        super().__init__(logs)
        self._road = road

    async def roots(self, log: str, *, latest: bool) -> Sequence[Root]:
        return await self._road.along(lambda: super(FarRanges, self).roots(log, latest=latest))

    async def split(
        self,
        log: str,
        partition: int,
        at: int | Literal["middle", "load"],
        owner: LogOwner,
        *,
        dry_run: bool = False,
    ) -> Sealing:
        real = partial(super().split, log, partition, at, owner, dry_run=dry_run)
        return await self._road.along(real, changes=not dry_run)

    async def merge(
        self, log: str, partition: int, other: int, owner: LogOwner, *, dry_run: bool = False
    ) -> Sealing:
        real = partial(super().merge, log, partition, other, owner, dry_run=dry_run)
        return await self._road.along(real, changes=not dry_run)


class FarLogs(Logs):
    """A replica's access to the logs, by way of the road."""

    def __init__(self, by_name: dict[str, Log], node: Node) -> None:
        super().__init__(by_name)
        self._road = Road(node)

    @property
    def ranges(self) -> FarRanges:
        return FarRanges(self.by_name, self._road)

    async def set_partition_count(
        self,
        log: str,
        partition_count: int,
        revision: int,
        owner: LogOwner,
        discard: Collection[int] = (),
    ) -> None:
        real = super().set_partition_count
        await self._road.along(
            lambda: real(log, partition_count, revision, owner, discard), changes=True
        )

    async def bounds(self, log: str, partitions: Sequence[int] | None = None) -> Bounds | None:
        real = super().bounds
        try:
            return await self._road.along(lambda: real(log, partitions))
        except Unavailable:
            return None

    async def ends(self, log: str, partitions: Sequence[int]) -> Mapping[int, str]:
        real = super().ends
        try:
            return await self._road.along(lambda: real(log, partitions))
        except Unavailable:
            return {}

    async def positions(self, log: str, where: object) -> Mapping[int, str]:
        real = super().positions
        return await self._road.along(lambda: real(log, where))
