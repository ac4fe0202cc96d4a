"""Ends of partitions, and what comes after them, as flows report them: compared with the log.

A finished partition is never read again, and the upkeep of a dynamic log deletes what is left of
it. So a wrong `finished` would lose messages, and an invented child would take the number of a
partition that the log begins later. The log knows both, so no consumer's word is taken for it:

- A partition is finished only if no message can be appended to it any more (`Bounds.is_final`: it
  is sealed, or outside the log's count), and the reported position is its end. Such an end never
  changes. So it does not matter that the log is asked before the queue decides.
- What comes after a partition with a hash range is what the log has sealed it with. A finished one
  takes all of it along, so no flow can leave a child out.

The built-in log is where its consumers are, too: while it does not answer, the call is refused. A
log outside that does not answer refuses nothing, because consumers may reach it where the service
cannot. Nor does a log of a kind that the service does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from broker.core import commands as c
from broker.core.commands import NewChild, Outcome
from broker.core.errors import Unavailable
from broker.core.queue import Queue
from broker.logs.ports import Bounds, Logs
from broker.logs.positions import number_of
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.store.ports import Positions, Store
from counterpoise.logs import Successor
from counterpoise.logs.address import kind_of

# Where every partition with a hash range begins.
FIRST = "0"
NO_ANSWER = (
    "The log does not say where its partitions end right now; nothing was changed, try again."
)
Item = TypeVar("Item", c.ReleaseItem, c.ChildrenItem)


class LogEnds:
    """What the logs say of items that finish partitions, or that name children."""

    def __init__(self, store: Store, logs: Logs) -> None:
        self._store = store
        self._logs = logs

    async def of_releases(
        self, coordinator: Coordinator, items: Sequence[c.ReleaseItem]
    ) -> Sequence[c.ReleaseItem]:
        """The items, with what the log says of the finished ones. Raises Unavailable."""
        found = await self._ask(coordinator, [item for item in items if item.finished])
        if found is None:
            return items

        def checked(item: c.ReleaseItem) -> c.ReleaseItem:
            if not item.finished:
                return item
            if not found.is_ended(item):
                return item._replace(against=Outcome.NOT_ENDED)
            return item._replace(children=found.children(item.partition))

        return [*map(checked, items)]

    async def of_reports(
        self, coordinator: Coordinator, items: Sequence[c.ChildrenItem]
    ) -> Sequence[c.ChildrenItem]:
        """The same of reports, and of their children. Raises Unavailable."""
        told = [item for item in items if item.finished or item.children]
        found = await self._ask(coordinator, told)
        if found is None or not found.is_dynamic:
            return items

        def checked(item: c.ChildrenItem) -> c.ChildrenItem:
            if item.finished and not found.is_ended(item):
                return item._replace(against=Outcome.NOT_ENDED)
            following = {one.key: one for one in found.children(item.partition)}
            children = [_as_in(following, child) for child in item.children]
            if None in children:
                return item._replace(against=Outcome.CONFLICTING_CHILD)
            reported = {child.key: child for child in children if child is not None}
            known = following | reported if item.finished else reported
            return item._replace(children=tuple(known.values()))

        return [*map(checked, items)]

    async def _ask(self, coordinator: Coordinator, items: Sequence[Item]) -> _Ends | None:
        """What the log says of the partitions of these items; None: nothing."""
        if not items:
            return None

        def extract(queue: Queue) -> tuple[str, bool]:
            return queue.settings.log, queue.lineage is not None

        log, is_dynamic = await coordinator.read(extract)
        kind = kind_of(log)
        if kind is None:
            return None
        bounds = await self._logs.bounds(log, [item.partition for item in items])
        if bounds is None:
            if kind in ("builtin", "aligned"):
                raise Unavailable(NO_ANSWER)
            return None
        silent = [item.partition for item in items if item.finished and item.position is None]
        stored: Positions = {}
        if silent:
            with store_available():
                stored = await self._store.positions(coordinator.queue_id, silent)
        return _Ends(log, is_dynamic, bounds, stored)


class _Ends:
    """What a log says. `stored`: the committed positions of those that are reported without one."""

    def __init__(self, log: str, is_dynamic: bool, bounds: Bounds, stored: Positions) -> None:
        self.is_dynamic = is_dynamic
        self._log = log
        self._bounds = bounds
        self._stored = stored

    def is_ended(self, item: c.ReleaseItem | c.ChildrenItem) -> bool:
        """Whether no message is left in the partition after the item's position, nor will be."""
        number = item.partition
        if not self._bounds.is_final(number):
            return False
        start = int(self._bounds.starts.get(number, FIRST))
        position = item.position
        if position is None:
            position = self._stored[number].position if number in self._stored else None
        at = start if position is None else number_of(self._log, position)
        return at is not None and max(at, start) >= int(self._bounds.ends.get(number, FIRST))

    def children(self, number: int) -> tuple[NewChild, ...]:
        """What the log has sealed the partition with; nothing if it has not."""
        return tuple(map(child_of, self._bounds.sealed.get(number, ())))


def child_of(one: Successor) -> NewChild:
    """What comes after a partition, as the log says it, as a report of it."""
    return NewChild(one.key, one.parents, one.partition)


def _as_in(following: dict[str, NewChild], child: NewChild) -> NewChild | None:
    """The child with the number that the log gives it; None if the log says otherwise. What the log
    begins begins at its first message.
    """
    known = following.get(child.key)
    if known is None or {*known.parents} != {*child.parents}:
        return None
    if child.partition not in (None, known.partition) or child.position not in (None, FIRST):
        return None
    return child._replace(partition=known.partition)
