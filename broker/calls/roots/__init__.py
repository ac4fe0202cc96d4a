"""The first partitions of a dynamic queue (the contract, *Lineage*)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker.calls.views import QueueSpec, QueueView
from broker.core import records as r
from broker.core.errors import Invalid
from broker.logs.names import builtin_name
from broker.logs.ports import RangeLogs, Root
from counterpoise.logs.address import kind_of
from counterpoise.logs.ranges import equal_ranges


@dataclass(frozen=True, slots=True)
class Roots:
    """The first partitions; none of a fixed queue. `begins`: positions, other than the start."""

    partitions: tuple[r.Child, ...] = ()
    begins: Mapping[int, str] = field(default_factory=dict)

    @property
    def keys(self) -> dict[int, str]:
        """The keys by number."""
        return {one.partition: one.key for one in self.partitions}


async def roots_of(spec: QueueSpec, log: str, owner: QueueView | None, ranges: RangeLogs) -> Roots:
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
    if spec.partitions is not None:
        raise Invalid(
            "The built-in log gives its partitions their keys; leave partitions out, and send "
            "partition_count for more than one.",
            [("partitions", "are made by the log")],
        )
    if owner is None:
        equal = equal_ranges(spec.partition_count or 1)
        return Roots(_children(Root(one.partition, one.key, None) for one in equal))
    if spec.partition_count is not None:
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


def _first_partitions(spec: QueueSpec, log: str) -> tuple[r.Child, ...]:
    """The roots of the queue; none for a fixed one.

    Raises Invalid for what does not fit together, and for a log that has fixed partitions.
    """
    if spec.partitioning != "dynamic":
        if spec.partitions is not None:
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
    if spec.partition_count is not None:
        raise Invalid(
            "The partitions of a dynamic queue are given by their keys; leave partition_count out.",
            [("partition_count", "is not for a dynamic queue")],
        )
    if not spec.partitions:
        raise Invalid(
            "Give the first partitions of the queue, each with a key.",
            [("partitions", "is required")],
        )
    again = [key for key, times in Counter(spec.partitions).items() if times > 1]
    if again:
        key = min(again)
        raise Invalid(
            f"The key {key!r} is given more than once; a key names one partition.",
            [("partitions", f"names {key!r} more than once")],
        )
    return tuple(r.Child(number, key, ()) for number, key in enumerate(spec.partitions))
