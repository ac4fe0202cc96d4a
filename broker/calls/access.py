"""Access of the calls to a queue by name and to a flow by id: the replica's mailbox, and the store.

`QueueAccess` finds the queue: its mailbox in this replica, and the store. `FlowRows` has the flows
in the store: their tokens, and the reason why one is no longer bound. Positions are refused here
before they reach a queue.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from broker.calls import views
from broker.calls.rendering import status_view, status_view_in_pieces
from broker.core.access import Caller, digest
from broker.core.errors import FlowGone, FlowNotFound, Invalid, QueueNotFound
from broker.core.queue import Queue
from broker.logs.positions import Reach, refuse_invalid, surely_valid
from broker.pieces import PIECE, pieces
from broker.replica.coordinator import Coordinator
from broker.replica.replica import Replica
from broker.replica.store_calls import Batcher, store_available
from broker.replica.transaction import Submission
from broker.store.ports import Act, FlowRow, Lease, Store

T = TypeVar("T")
MOST_KNOWN_TOKENS = 100_000


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

    async def submit(self, name: str, make: Callable[[], Submission]) -> Any:
        """The answer of a command on a queue; `make` makes the command anew for each attempt.

        Raises QueueNotFound, Unavailable, and the command's errors.
        """
        return await self.on(name, lambda coordinator: coordinator.submit(make()))


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


class FlowRows:
    """The rows of the flows of all queues."""

    def __init__(self, queues: QueueAccess) -> None:
        self._queues = queues
        self._tokens: dict[str, tuple[str, bytes]] = {}
        # The flows of a queue that is deleted ask all at once.
        self._rows: Batcher[str, FlowRow | None] = Batcher(self._row_many)

    # Tokens

    def known_token(self, flow_id: str) -> tuple[str, bytes] | None:
        """The queue's id and the token's digest of a flow that was bound at the last query."""
        return self._tokens.get(flow_id)

    def knows(self, name: str, flow_id: str, token: str) -> bool:
        """Whether it is certain that the token is this flow's, without asking the store."""
        known, coordinator = self._tokens.get(flow_id), self._queues.replica.known(name)
        if known is None or coordinator is None or known[0] != coordinator.queue_id:
            return False
        return hmac.compare_digest(digest(token), known[1])

    def remember(self, flow_id: str, queue_id: str, digest: bytes) -> None:
        """The flow is bound to this queue, and its token has this digest."""
        if len(self._tokens) >= MOST_KNOWN_TOKENS:
            self._tokens.clear()
        self._tokens[flow_id] = (queue_id, digest)

    def forget(self, flow_id: str) -> None:
        """The flow is not bound any more."""
        self._tokens.pop(flow_id, None)

    # Leases

    async def renew(self, name: str, flow_id: str) -> Lease:
        """Renews the flow's lease. Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable."""
        lease = await self._queues.replica.renewals.now(flow_id)
        if lease is None:
            raise await self.missing(name, flow_id)
        return lease

    # The flow and its queue

    async def row(self, flow_id: str) -> FlowRow | None:
        """The flow's row, also of a flow that left recently. Raises Unavailable."""
        return await self._rows.ask(flow_id)

    async def _row_many(self, flow_ids: Sequence[str]) -> Sequence[FlowRow | None]:
        with store_available():
            found = await self._queues.store.flow_rows(flow_ids)
        return [found.get(flow_id) for flow_id in flow_ids]

    async def of_queue(self, name: str, flow_id: str, queue_id: str) -> Coordinator:
        """The coordinator of the queue of this name, which must be the flow's.

        Raises FlowNotFound.
        """
        coordinator = await self._queues.replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            # The name may be used again, and this replica does not know it yet.
            self._queues.replica.forget_name(name)
            coordinator = await self._queues.replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            raise FlowNotFound(flow_id)
        return coordinator

    async def missing(self, name: str, flow_id: str) -> Exception:
        """The error for a flow that is not bound."""
        self.forget(flow_id)
        row = await self.row(flow_id)
        try:
            if row is None:
                # It may be deleted with its queue.
                self._queues.replica.forget_name(name)
                await self._queues.replica.coordinator(name)
            elif row.reason is not None and await self.is_of(name, row):
                return FlowGone(flow_id, row.reason)
        except QueueNotFound as error:
            return error
        return FlowNotFound(flow_id)

    async def is_of(self, name: str, row: FlowRow) -> bool:
        """Whether the flow is or was bound to the queue of this name. Raises QueueNotFound."""
        try:
            await self.of_queue(name, row.flow_id, row.queue_id)
        except FlowNotFound:
            return False
        return True
