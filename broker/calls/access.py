"""Access of the calls to a queue by name: its mailbox in this replica, and the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from broker.calls import views
from broker.calls.rendering import status_view, status_view_in_pieces
from broker.core.access import Caller
from broker.core.errors import Invalid, QueueNotFound
from broker.core.queue import Queue
from broker.logs.positions import refuse_invalid, surely_valid
from broker.logs.reach import Reach
from broker.mailbox.asks import Ask
from broker.mailbox.coordinator import Coordinator
from broker.mailbox.replica import Replica
from broker.pieces import PIECE, pieces
from broker.store.ports import Act, Store

T = TypeVar("T")


def act_of(caller: Caller | None, call: str, queue: str, flow_id: str | None = None) -> Act | None:
    """An administrative call for the audit; None for what the service does by itself."""
    if caller is None:
        return None
    return Act(
        call,
        queue,
        flow_id,
        key_id=caller.key_id,
        key_name=caller.key_name,
        address=caller.address,
    )


def act_on_flow(caller: Caller | None, call: str, queue: str, flow_id: str) -> Act | None:
    """The call on a flow for the audit; None if it is the flow's own."""
    by_flow = caller is None or caller.flow_id is not None
    return None if by_flow else act_of(caller, call, queue, flow_id)


def shown_flow(flow_id: str, queue: Queue) -> Mapping[str, Any] | None:
    """A flow in the audit; None if it is not bound."""
    flow = queue.flows.get(flow_id)
    if flow is None:
        return None
    return {
        "client_name": flow.client_name,
        "instance_id": flow.instance_id,
        "key_id": flow.key_id,
        "partitions": len(flow.owned),
        "draining": flow.draining,
    }


class QueueAccess:
    """Access to queues by name, also after a queue was deleted and made again."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.store: Store = replica.store

    async def on(self, name: str, work: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The result of `work` on the queue of this name; repeated once if the name means another
        queue by now.

        Raises QueueNotFound, Unavailable, and the errors of `work`.
        """
        coordinator = await self.replica.coordinator(name)
        try:
            return await work(coordinator)
        except QueueNotFound:
            self.replica.forget_name(name)
            again = await self.replica.coordinator(name)
            if again is coordinator:
                raise
        return await work(again)

    async def read(self, name: str, look: Callable[[Queue], T], *, fresh: bool = True) -> T:
        """The result of `look` on the queue.

        Raises QueueNotFound, Unavailable, and the errors of `look`.
        """
        return await self.on(name, lambda coordinator: coordinator.read(look, fresh=fresh))

    async def status(self, name: str) -> views.RebalanceStatusView:
        """The rebalance status. Raises QueueNotFound, Unavailable."""

        async def work(coordinator: Coordinator) -> views.RebalanceStatusView:
            handoffs = await coordinator.read(lambda queue: len(queue.handoffs), fresh=True)
            if handoffs > PIECE:
                return await coordinator.read_in_pieces(status_view_in_pieces)
            return await coordinator.read(status_view)

        return await self.on(name, work)

    async def ask(self, name: str, make: Callable[[], Ask]) -> Any:
        """The answer of a command on a queue; `make` makes the command anew for each attempt.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self.on(name, lambda coordinator: coordinator.ask(make()))


class Positioned(Protocol):
    """An item of a commit, release or children call."""

    @property
    def partition(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> str | None: ...


def _position_of(nth: int) -> str:
    return f"partitions.{nth}.position"


async def refuse_positions(
    coordinator: Coordinator,
    given: Sequence[str | None],
    field: Callable[[int], str] = _position_of,
) -> None:
    """Raises Invalid for what cannot be a position of the queue's log; `given` as in the call, each
    in its `field`."""
    place = 0
    async for some in pieces(given):
        doubtful = {
            field(nth): position
            for nth, position in enumerate(some, place)
            if position is not None and not surely_valid(position)
        }
        place += len(some)
        if doubtful:
            refuse_invalid(await coordinator.read(lambda queue: queue.settings.log), doubtful)


async def refuse_far(
    coordinator: Coordinator, reach: Reach, flow_id: str, items: Sequence[Positioned]
) -> None:
    """Raises Invalid for positions far beyond the ends of partitions that the flow owns (`Reach`).

    Items under an epoch that is over get their outcome instead: their partition may be gone.
    """
    queue_id, place = coordinator.queue_id, 0
    async for some in pieces(items):
        far = {
            one.partition: (nth, one.epoch, one.position)
            for nth, one in enumerate(some, place)
            if one.position is not None and not reach.is_near(queue_id, one.partition, one.position)
        }
        place += len(some)
        if far:
            own = await coordinator.read(partial(_owned, flow_id, far))
            await _refuse_beyond(coordinator, reach, own)


def _owned(
    flow_id: str, items: Mapping[int, tuple[int, int, str]], queue: Queue
) -> dict[int, tuple[str, str]]:
    """Field and position of the items whose partition the flow owns in their epoch."""
    flow = queue.flows.get(flow_id)
    return {
        number: (_position_of(nth), position)
        for number, (nth, epoch, position) in items.items()
        if flow is not None and number in flow.owned and queue.partitions[number].epoch == epoch
    }


async def refuse_begins(
    coordinator: Coordinator, reach: Reach, begins: Mapping[str, tuple[int | None, str | None]]
) -> None:
    """Raises Invalid for what cannot be where a child begins: by field, its number and position."""
    fields = [*begins]
    await refuse_positions(coordinator, [at for _, at in begins.values()], fields.__getitem__)
    queue_id = coordinator.queue_id
    far = {
        number: (field, position)
        for field, (number, position) in begins.items()
        if number is not None
        and position is not None
        and not reach.is_near(queue_id, number, position)
    }
    await _refuse_beyond(coordinator, reach, far)


async def _refuse_beyond(
    coordinator: Coordinator, reach: Reach, given: Mapping[int, tuple[str, str]]
) -> None:
    """Raises Invalid for those of these that the log says are far beyond their end."""
    if not given:
        return
    log = await coordinator.read(lambda queue: queue.settings.log)
    positions = {number: position for number, (_, position) in given.items()}
    ends = await reach.beyond(coordinator.queue_id, log, positions)
    for number, end in ends.items():
        raise Invalid(
            f"The log's partition {number} ends at {end}, and {positions[number]} is far beyond "
            "that; send the position of the next message to read, as the log gives it.",
            [(given[one][0], f"is far beyond {at}") for one, at in ends.items()],
        )


def refuse_repetitions(numbers: Sequence[int]) -> None:
    """Raises Invalid if a partition is named twice in a call."""
    if len(set(numbers)) == len(numbers):
        return
    number, _ = Counter(numbers).most_common(1)[0]
    raise Invalid(
        f"Partition {number} is named more than once; name each partition once per call.",
        [("partitions", f"names {number} more than once")],
    )
