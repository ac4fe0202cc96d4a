"""The graph of a dynamic queue: its first partitions, and what administrators see of it and add to
it (the contract, *Lineage*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import structlog
from msgspec import UNSET, structs, to_builtins

from broker.calls.access import QueueAccess, act_of
from broker.calls.ends import child_of
from broker.calls.monitoring import number_of
from broker.calls.previews import PreviewCalls
from broker.calls.readers import LogReaders, alone, log_owner
from broker.calls.rendering import (
    children_of,
    on_a_page,
    partition_view,
    queue_view,
    waits_for,
)
from broker.core import commands as c
from broker.core import records as r
from broker.core.access import Caller
from broker.core.errors import ChildrenRefused, Invalid, QueueNotFound
from broker.core.lineage import MOST_KEYS, lineage_of, room
from broker.core.model import MOST_PARTITIONS
from broker.core.queue import Queue
from broker.logs.names import builtin_name
from broker.logs.ports import LogOwner, Logs, RangeLogs, Root, Sealing
from broker.replica.transaction import Submission
from broker.store.ports import Act
from counterpoise import wire
from counterpoise.logs import Successor
from counterpoise.logs.address import kind_of
from counterpoise.logs.ranges import equal_ranges

_log = structlog.get_logger()
At: TypeAlias = Literal["middle", "load"]
"""Where a range is split: in its middle, or in the middle of its observed load."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The first partitions; none of a fixed queue. `begins`: positions, other than the start."""

    partitions: tuple[r.Child, ...] = ()
    begins: Mapping[int, str] = field(default_factory=dict)

    @property
    def keys(self) -> dict[int, str]:
        """The keys by number."""
        return {one.partition: one.key for one in self.partitions}


async def roots_of(
    spec: wire.QueueCreate, log: str, owner: wire.Queue | None, ranges: RangeLogs
) -> Roots:
    """The roots of a new queue on this log, which `owner` has, None: the queue itself, or nobody.

    A dynamic queue with a built-in log of its own has `partition_count` equal hash ranges; one that
    reads another's begins with partitions of that log. Other logs' partitions are given by key.
    Raises Invalid for what does not fit together, and for a log that has fixed partitions;
    Unavailable.
    """
    dynamic = spec.partitioning == "dynamic"
    if owner is not None and owner.partitioning != spec.partitioning:
        raise Invalid(
            f"The log of the queue {owner.name!r} has {owner.partitioning} partitions; create a "
            f'queue that reads it with "partitioning": "{owner.partitioning}".',
            [("partitioning", f"is {owner.partitioning!r} for this log")],
        )
    if not dynamic or builtin_name(log) is None:
        return Roots(_first_partitions(spec, log))
    if spec.partitions is not UNSET:
        raise Invalid(
            "The built-in log gives its partitions their keys; leave partitions out, and send "
            "partition_count for more than one.",
            [("partitions", "are made by the log")],
        )
    if owner is None:
        equal = equal_ranges(spec.partition_count or 1)
        return Roots(_children(Root(one.partition, one.key, None) for one in equal))
    if spec.partition_count is not UNSET:
        raise Invalid(
            f"A queue that reads the log of the queue {owner.name!r} begins with its partitions; "
            "leave partition_count out.",
            [("partition_count", "is that of the log")],
        )
    found = await ranges.roots(log, latest=spec.start == "latest")
    begins = {root.partition: root.position for root in found if root.position is not None}
    return Roots(_children(found), begins)


def _children(roots: Iterable[Root]) -> tuple[r.Child, ...]:
    return tuple(r.Child(root.partition, root.key, ()) for root in roots)


def _first_partitions(spec: wire.QueueCreate, log: str) -> tuple[r.Child, ...]:
    """The roots of the queue; none for a fixed one.

    Raises Invalid for what does not fit together, and for a log that has fixed partitions.
    """
    if spec.partitioning != "dynamic":
        if spec.partitions is not UNSET:
            raise Invalid(
                'Only a dynamic queue has partitions with keys; send "partitioning": "dynamic" '
                "too, or partition_count instead.",
                [("partitions", 'needs "partitioning": "dynamic"')],
            )
        return ()
    if kind_of(log) is not None:
        raise Invalid(
            "This log has a fixed number of partitions; a dynamic queue needs a log whose "
            "partitions begin and end.",
            [("log", "has fixed partitions")],
        )
    if spec.partition_count is not UNSET:
        raise Invalid(
            "The partitions of a dynamic queue are given by their keys; leave partition_count out.",
            [("partition_count", "is not for a dynamic queue")],
        )
    if not spec.partitions:
        raise Invalid(
            "Give the first partitions of the queue, each with a key.",
            [("partitions", "is required")],
        )
    keys = [root.key for root in spec.partitions]
    again = [key for key, times in Counter(keys).items() if times > 1]
    if again:
        key = min(again)
        raise Invalid(
            f"The key {key!r} is given more than once; a key names one partition.",
            [("partitions", f"names {key!r} more than once")],
        )
    return tuple(r.Child(number, key, ()) for number, key in enumerate(keys))


class LineageCalls:
    """The graphs of dynamic queues."""

    def __init__(
        self, queues: QueueAccess, logs: Logs, readers: LogReaders, previews: PreviewCalls
    ) -> None:
        self._queues = queues
        self._logs = logs
        self._readers = readers
        self._previews = previews

    async def graph(self, name: str, limit: int, cursor: str | None) -> wire.Lineage:
        """The partitions that exist, by number, at most PAGE_BYTES of them; the cursor is the last
        number of the previous page.

        Raises QueueNotFound; Invalid for a fixed queue.
        """
        after = -1 if cursor is None else number_of(cursor)
        return await self._queues.read(name, partial(_page, limit, after))

    async def add_children(
        self, name: str, children: Sequence[c.NewChild], caller: Caller | None = None
    ) -> str:
        """Records partitions that an administrator made in the log. All of them or none.

        Answers the outcome: `ok`, also for what is known; `unknown_parent`, if the queue does not
        know a parent yet (the owner of that parent's parent will report it); `conflicting_child`
        or `too_many_partitions`. Raises QueueNotFound; Invalid for a fixed queue.
        """
        outcome = await self._add(name, children, act_of(caller, "add_children", name))
        return outcome.value

    async def _add(self, name: str, children: Sequence[c.NewChild], act: Act | None) -> c.Outcome:
        command = c.AddChildren(tuple(children))
        outcome: c.Outcome = await self._queues.submit(name, lambda: Submission(command, act=act))
        return outcome

    async def split(
        self,
        name: str,
        partition: int,
        at: int | At,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.Sealed | wire.Preview:
        """Splits a partition of a dynamic queue in its built-in log.

        Repeating it is harmless. `dry_run`: the log makes the split and takes it back, and the
        queue says what would come of it. Raises QueueNotFound, Invalid, PartitionEnded,
        Unavailable, and ChildrenRefused, before or after the log was changed: its detail says
        which.
        """
        log, owner = await self._own_log(name, partition, begins=2)
        sealing = await self._logs.ranges.split(log, partition, at, owner, dry_run=dry_run)
        if dry_run:
            return await self._preview(name, sealing)
        return await self._sealed(name, log, sealing, act_of(caller, "split_partition", name))

    async def merge(
        self,
        name: str,
        partition: int,
        other: int,
        caller: Caller | None = None,
        *,
        dry_run: bool = False,
    ) -> wire.Sealed | wire.Preview:
        """Merges two partitions with adjacent ranges; otherwise as `split`."""
        log, owner = await self._own_log(name, partition, begins=1)
        sealing = await self._logs.ranges.merge(log, partition, other, owner, dry_run=dry_run)
        if dry_run:
            return await self._preview(name, sealing)
        return await self._sealed(name, log, sealing, act_of(caller, "merge_partitions", name))

    async def _preview(self, name: str, sealing: Sealing) -> wire.Preview:
        """What the queue would do with what the log would seal and begin."""
        children = tuple(map(child_of, sealing.successors))
        preview, outcome = await self._previews.with_answer(name, c.AddChildren(children))
        if outcome is not c.Outcome.OK:
            raise ChildrenRefused(
                f"Nothing was changed: the queue {name!r} does not record what the log would "
                f"begin: {outcome}. After an earlier split or merge that was cut short, the call "
                "itself mends that."
            )
        return (
            structs.replace(preview, retiring=tuple(sorted(sealing.ends)))
            if preview.added
            else preview
        )

    async def _own_log(self, name: str, partition: int, begins: int) -> tuple[str, LogOwner]:
        """The log that this dynamic queue owns, and the queue as its owner, if it has room for so
        many partitions after this one, or knows them already."""

        def extract(queue: Queue) -> tuple[wire.Queue, int]:
            if queue.lineage is None:
                return queue_view(queue), 0
            node = queue.lineage.nodes.get(partition)
            known = 0 if node is None else len(node.children)
            return queue_view(queue), room(queue.lineage) + known

        queue, left = await self._queues.read(name, extract)
        source = builtin_name(queue.log)
        if queue.partitioning != "dynamic" or source is None:
            raise Invalid(
                "The service splits and merges partitions of dynamic queues with the built-in log; "
                "of a fixed queue, change partition_count."
            )
        if source != name:
            raise Invalid(
                f"This queue reads the log of {source!r}; split and merge the partitions of that "
                "queue."
            )
        if left < begins:
            raise ChildrenRefused(
                f"Nothing was changed: the queue {name!r} has all the partitions that it can have "
                f"({MOST_PARTITIONS} at a time, {MOST_KEYS} in its life)."
            )
        return queue.log, log_owner(queue)

    async def _sealed(self, name: str, log: str, sealing: Sealing, act: Act | None) -> wire.Sealed:
        """Records at all readers of the log what came, so that it is seen at once.

        Raises ChildrenRefused if the queue itself did not record it. Where another reader does not
        know a parent yet, the owner of the parent reports it, as it would if the service had died
        before this.
        """
        children = tuple(map(child_of, sealing.successors))
        view = wire.Sealed(
            tuple(wire.SealedPartition(*one) for one in sorted(sealing.ends.items())),
            tuple(
                wire.BegunPartition(one.partition, one.key, one.parents)
                for one in sealing.successors
            ),
        )
        if act is not None:
            act = replace(act, after=to_builtins(view))
        outcome = await self._add(name, children, act)
        if outcome is c.Outcome.UNKNOWN_PARENT:
            # The service died after an earlier split, and no owner has come to its end yet.
            await self._catch_up(name, log)
            outcome = await self._add(name, children, None)
        for follower in await self._readers.followers(name, log):
            # A queue that was deleted meanwhile follows no other.
            with alone(follower.name), suppress(QueueNotFound):
                await self._add(follower.name, children, None)
        if outcome is not c.Outcome.OK:
            _log.error("a queue does not record its log's partitions", queue=name, outcome=outcome)
            raise ChildrenRefused(
                f"The log has {' and '.join(one.key for one in children)} now, but the queue "
                f"{name!r} did not record that: {outcome}. No message is lost: they wait in the "
                "log. Repeat the call. If that does not help, the queue knows another partition "
                "with one of these keys or numbers (GET …/lineage), which a consumer has reported "
                "to an older release; a new queue that reads this log has those of the log."
            )
        return view

    async def _catch_up(self, name: str, log: str) -> None:
        """Records what the log has begun and the queue does not know, as far as it knows the
        parents."""
        bounds = await self._logs.bounds(log)
        begun = {} if bounds is None else {one[0].partition: one for one in bounds.sealed.values()}

        def extract(queue: Queue) -> list[Sequence[Successor]]:
            known = lineage_of(queue).numbers
            # A partition's number is above those of its parents.
            return [one for _, one in sorted(begun.items()) if any(s.key not in known for s in one)]

        for successors in await self._queues.read(name, extract):
            await self._add(name, [*map(child_of, successors)], None)


def _page(limit: int, after: int, queue: Queue) -> wire.Lineage:
    lineage = lineage_of(queue)
    numbers, more = on_a_page(queue, after, limit)
    nodes = []
    for number in numbers:
        node, seen = lineage.nodes[number], partition_view(queue, queue.partitions[number], {})
        nodes.append(
            wire.LineageNode(
                number,
                node.key,
                seen.state,
                seen.owner,
                node.parents,
                children_of(queue, node),
                waits_for(lineage, node),
            )
        )
    cursor = str(numbers[-1]) if more else None
    removed = len(lineage.numbers) - len(lineage.nodes)
    return wire.Lineage(tuple(nodes), cursor, queue.name, queue.revision, removed)
