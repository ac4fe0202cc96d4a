"""What a call of a flow names, refused before it reaches the queue: partitions and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import TypeAlias

from broker.calls.bound_flows import BoundFlow
from broker.core.commands import ChildrenItem, CommitItem, NewChild, ReleaseItem
from broker.core.errors import Invalid
from broker.core.queue import Queue
from broker.logs.positions import Positioned, Reach, refuse_invalid
from broker.pieces import made

Item: TypeAlias = CommitItem | ReleaseItem | ChildrenItem


def refuse_repetitions(numbers: Sequence[int]) -> None:
    """Raises Invalid if a partition is named twice in a call."""
    if len(set(numbers)) == len(numbers):
        return
    number, _ = Counter(numbers).most_common(1)[0]
    raise Invalid(
        f"Partition {number} is named more than once; name each partition once per call.",
        [("partitions", f"names {number} more than once")],
    )


async def refuse_items(flow: BoundFlow, reach: Reach, items: Sequence[Item]) -> None:
    """Raises Invalid for a partition that is named twice, for what cannot be a position of the
    queue's log, and for positions far beyond the ends of partitions that the flow owns (`Reach`).

    Items under an epoch that is over get their outcome instead: their partition may be gone.
    """
    refuse_repetitions([item.partition for item in items])
    is_doubtful = partial(reach.is_doubtful, flow.coordinator.queue_id)
    doubtful = await made(is_doubtful, items)
    if any(doubtful):
        places = compress(range(len(items)), doubtful)
        given = {f"partitions.{place}.position": items[place] for place in places}
        await _refuse(flow, reach, given, partial(_owned, flow.flow_id, [*given.values()]))


async def refuse_begins(flow: BoundFlow, reach: Reach, begins: Mapping[str, NewChild]) -> None:
    """Raises Invalid for what cannot be where a child begins; `begins`: the children by field."""
    queue_id = flow.coordinator.queue_id
    given = {field: one for field, one in begins.items() if reach.is_doubtful(queue_id, one)}
    if given:
        numbers = [one.partition for one in given.values() if one.partition is not None]
        await _refuse(flow, reach, given, lambda queue: numbers)


def _owned(flow_id: str, items: Sequence[Item], queue: Queue) -> list[int]:
    """The partitions of these items that the flow owns in their epochs."""
    flow = queue.flows.get(flow_id)
    return [
        item.partition
        for item in items
        if flow is not None
        and item.partition in flow.owned
        and queue.partitions[item.partition].epoch == item.epoch
    ]


async def _refuse(
    flow: BoundFlow,
    reach: Reach,
    given: Mapping[str, Positioned],
    bounded: Callable[[Queue], Collection[int]],
) -> None:
    """Raises Invalid for those that cannot be positions of the queue's log, and for those of the
    `bounded` partitions that the log says are far beyond their end. `given`: by field.
    """
    coordinator = flow.coordinator
    log, numbers = await coordinator.read(lambda queue: (queue.settings.log, bounded(queue)))
    positions = {field: one.position for field, one in given.items() if one.position is not None}
    refuse_invalid(log, positions)
    far = {
        number: (field, positions[field])
        for field, one in given.items()
        if (number := one.partition) is not None
        and number in numbers
        and not reach.is_near(coordinator.queue_id, number, positions[field])
    }
    if not far:
        return
    ends = await reach.beyond(
        coordinator.queue_id, log, {number: position for number, (_, position) in far.items()}
    )
    for number, end in ends.items():
        raise Invalid(
            f"The log's partition {number} ends at {end}, and {far[number][1]} is far beyond "
            "that; send the position of the next message to read, as the log gives it.",
            [(far[one][0], f"is far beyond {at}") for one, at in ends.items()],
        )
