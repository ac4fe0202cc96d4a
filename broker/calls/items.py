"""What a call of a flow names, refused before it reaches the queue: partitions and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from broker.calls.bound_flows import BoundFlow
from broker.core.commands import ChildrenItem, CommitItem, NewChild, ReleaseItem
from broker.core.errors import Invalid
from broker.core.queue import Queue
from broker.logs.positions import Positioned, Reach, refuse_invalid

Item: TypeAlias = CommitItem | ReleaseItem | ChildrenItem
T = TypeVar("T", bound=Positioned)
# Of many that are wrong.
MOST_NAMED = 50


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
    given = [
        (f"partitions.{place}.position", one) for place, one in enumerate(items) if is_doubtful(one)
    ]
    if given:
        await _refuse(flow, reach, given, partial(_owned, flow.flow_id))


async def refuse_begins(flow: BoundFlow, reach: Reach, begins: Mapping[str, NewChild]) -> None:
    """Raises Invalid for what cannot be where a child begins; `begins`: the children by field."""
    queue_id = flow.coordinator.queue_id
    given = [(field, one) for field, one in begins.items() if reach.is_doubtful(queue_id, one)]
    if given:
        await _refuse(flow, reach, given, lambda queue, child: child.partition is not None)


def _owned(flow_id: str, queue: Queue, item: Item) -> bool:
    """Whether the flow owns the partition of the item in its epoch."""
    flow = queue.flows.get(flow_id)
    return (
        flow is not None
        and item.partition in flow.owned
        and queue.partitions[item.partition].epoch == item.epoch
    )


async def _refuse(
    flow: BoundFlow,
    reach: Reach,
    given: Sequence[tuple[str, T]],
    is_bounded: Callable[[Queue, T], bool],
) -> None:
    """Raises Invalid for those that cannot be positions of the queue's log, and for those whose
    partition `is_bounded` that the log says are far beyond its end. `given`: each with its field.
    """
    coordinator = flow.coordinator

    def extract(queue: Queue) -> tuple[str, list[tuple[str, T]]]:
        return queue.settings.log, [one for one in given if is_bounded(queue, one[1])]

    log, bounded = await coordinator.read(extract)
    refuse_invalid(log, {field: at for field, one in given if (at := one.position) is not None})
    far: dict[int, tuple[str, str]] = {}
    for field, one in bounded:
        number, at = one.partition, one.position
        assert number is not None
        assert at is not None
        if not reach.is_near(coordinator.queue_id, number, at):
            far[number] = field, at
    if not far:
        return
    positions = {number: at for number, (_, at) in far.items()}
    ends = await reach.beyond(coordinator.queue_id, log, positions)
    for number, end in ends.items():
        raise Invalid(
            f"The log's partition {number} ends at {end}, and {far[number][1]} is far beyond "
            "that; send the position of the next message to read, as the log gives it.",
            [(far[one][0], f"is far beyond {at}") for one, at in islice(ends.items(), MOST_NAMED)],
        )
