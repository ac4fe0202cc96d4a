"""The view of a flow, made from its queue and the positions of its partitions.

The queue is read in memory, the positions come from the store. A position belongs to an epoch, and
a view is made only if both have the same epoch. A commit brings the positions that its answers
show; else they are read, in batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from broker.calls.access import QueueAccess
from broker.calls.bound_flows import BoundFlow, BoundFlows
from broker.calls.rendering import barrier_of, pause_view
from broker.calls.times import time_of
from broker.core.model import Flow
from broker.core.queue import Queue
from broker.core.transitions import State
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.store.ports import Positions
from counterpoise import wire

# So many positions are returned with a commit, for the view that follows.
MOST_SHOWN = 1000


def needed_positions(flow: Flow) -> list[int]:
    """The partitions whose positions are in the flow's view."""
    return sorted(flow.owned | flow.incoming)


def shown_positions(flow_id: str, queue: Queue) -> Collection[int]:
    """As `needed_positions`; none if they are very many, or without the flow."""
    flow = queue.flows.get(flow_id)
    numbers = () if flow is None else needed_positions(flow)
    return numbers if len(numbers) <= MOST_SHOWN else ()


def partitions_in_view(
    queue: Queue, flow: Flow, numbers: Iterable[int], positions: Positions
) -> list[wire.UpdatePartition] | None:
    """Those of the partitions that the flow owns or warms up for; None without a position of the
    epoch of each.
    """
    seen: list[wire.UpdatePartition] = []
    nodes = {} if queue.lineage is None else queue.lineage.nodes
    barriers = queue.resize.barriers
    for number in numbers:
        partition, handoff = queue.partitions[number], queue.handoffs.get(number)
        is_owner = partition.owner is flow
        if partition.is_let_go if is_owner else (handoff is None or not handoff.warm):
            continue
        epoch, position, above = positions.get(number, (None, None, None))
        if epoch != partition.epoch:
            return None
        node = nodes.get(number)
        place = (None, None) if node is None else (node.key, node.parents)
        deadline = None if handoff is None else time_of(handoff.deadline)
        if not is_owner:
            warming = (number, epoch, "warming", position, None, deadline, *place)
            seen.append(wire.UpdatePartition(*warming))
            continue
        revoking = partition.state is State.REVOKING
        state = "revoking" if revoking else "retiring" if partition.retiring else "owned"
        view = wire.UpdatePartition(
            number,
            partition.epoch,
            state,
            position,
            partition.handed_over,
            deadline if revoking else None,
            *place,
            *(() if barriers is None else barrier_of(queue, number)),
        )
        if queue.pauses:
            view = replace(view, paused=pause_view(queue.pauses.holding(number)))
        if above is not None:
            view = replace(view, done_above=above)
        seen.append(view)
    return seen


class FlowViews:
    """The views of all flows."""

    def __init__(self, queues: QueueAccess, bound: BoundFlows) -> None:
        self._store = queues.store
        self._clock = queues.replica.clock
        self._bound = bound
        self._positions = queues.replica.batcher(self._read_positions)

    async def view(
        self, flow: BoundFlow, *, fresh: bool = False, positions: Positions | None = None
    ) -> wire.Update:
        """The flow's view. `positions`: those that were just read.

        Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable.
        """
        coordinator, flow_id = flow
        found = await coordinator.read(partial(self.at_once, flow, positions), fresh=fresh)
        if isinstance(found, wire.Update):
            return found
        numbers = found
        while True:
            if numbers is not None:
                some = _at_hand(coordinator, numbers, positions)
                if some is None:
                    some = await self._positions.put((coordinator.queue_id, numbers))
                made = partial(self._made, flow_id, some)
                view = await coordinator.read(made, fresh=fresh)
                if view is not None:
                    return view
            # Something changed meanwhile, or this replica does not know the change yet.
            fresh, positions = True, None
            numbers = await coordinator.read(partial(_needed, flow_id), fresh=True)
            if numbers is None:
                raise await self._bound.missing(coordinator.name, flow_id)

    def at_once(
        self, flow: BoundFlow, positions: Positions | None, queue: Queue
    ) -> wire.Update | list[int] | None:
        """The flow's view, if the positions are at hand; else the partitions whose positions it
        takes. None without the flow.
        """
        numbers = _needed(flow.flow_id, queue)
        if numbers is None:
            return numbers
        some = _at_hand(flow.coordinator, numbers, positions)
        view = None if some is None else self._made(flow.flow_id, some, queue)
        return numbers if view is None else view

    def _made(self, flow_id: str, positions: Positions, queue: Queue) -> wire.Update | None:
        """The flow's view; None without the flow or a position of the epoch of each partition."""
        flow = queue.flows.get(flow_id)
        if flow is None:
            return None
        found = partitions_in_view(queue, flow, needed_positions(flow), positions)
        if found is None:
            return None
        return wire.Update(
            queue=queue.name,
            flow_id=flow.id,
            revision=flow.view_revision,
            active=flow.active,
            draining=flow.draining,
            now=time_of(self._clock.now()),
            partitions=tuple(found),
            resize=queue.resize.seen if queue.settings.ordered_resize else None,
            held_until=time_of(flow.held_until),
        )

    async def _read_positions(
        self, wanted: Sequence[tuple[str, Sequence[int]]]
    ) -> Sequence[Positions]:
        """Those of the partitions of each item, by queue."""
        numbers_of: dict[str, set[int]] = {}
        for queue_id, numbers in wanted:
            numbers_of.setdefault(queue_id, set()).update(numbers)
        with store_available():
            found = {
                queue_id: await self._store.positions(queue_id, sorted(numbers))
                for queue_id, numbers in numbers_of.items()
            }
        return [found[queue_id] for queue_id, _ in wanted]


def _needed(flow_id: str, queue: Queue) -> list[int] | None:
    flow = queue.flows.get(flow_id)
    return None if flow is None else needed_positions(flow)


def _at_hand(
    coordinator: Coordinator, numbers: Collection[int], positions: Positions | None
) -> Positions | None:
    """The positions of these partitions, if it takes no read of the store."""
    if positions is not None and positions.keys() >= {*numbers}:
        return positions
    return coordinator.notifier.of(numbers)
