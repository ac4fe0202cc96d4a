"""Flows in the store: their tokens, and the reason why one is no longer bound."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from broker.calls.access import QueueAccess
from broker.core.access import digest
from broker.core.errors import FlowGone, FlowNotFound, QueueNotFound
from broker.mailbox.batches import Batcher
from broker.mailbox.coordinator import Coordinator
from broker.mailbox.patience import store_available
from broker.store.ports import FlowRow, Lease

MOST_KNOWN_TOKENS = 100_000


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
