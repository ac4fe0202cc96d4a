"""The flows that are bound: found by id and token, their leases, and why one is bound no longer.

A call on a flow begins with `BoundFlows.authenticate`, which finds the flow's queue. From then on
the call keeps this queue (`BoundFlow`): its name may mean another one a moment later.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import NamedTuple

from broker.calls.access import QueueAccess
from broker.core.access import digest
from broker.core.errors import FlowGone, FlowNotFound, Forbidden, QueueNotFound, Unauthorized
from broker.replica.coordinator import Coordinator
from broker.replica.store_calls import store_available
from broker.store.ports import FlowRow, Lease

MOST_KNOWN_TOKENS = 100_000


class BoundFlow(NamedTuple):
    """A flow and its queue. It may leave at any time; the calls on it find that out."""

    coordinator: Coordinator
    flow_id: str


class BoundFlows:
    """The flows of all queues."""

    def __init__(self, queues: QueueAccess) -> None:
        self._replica = queues.replica
        self._store = queues.store
        # Of flows that were bound when they were last read: the queue's id, the token's digest.
        self._tokens: dict[str, tuple[str, bytes]] = {}
        # The flows of a queue that is deleted are read all at once.
        self._rows = queues.replica.batcher(self._read_rows)

    async def authenticate(self, name: str, flow_id: str, token: str) -> BoundFlow:
        """The flow of this id in the queue of this name, whose token this is.

        Raises Unauthorized, Forbidden, FlowGone, FlowNotFound, QueueNotFound, Unavailable.
        """
        queue_id, token_hash, reason = await self._known(name, flow_id)
        coordinator = await self._queue(name, flow_id, queue_id)
        if not token:
            raise Unauthorized("Send 'Authorization: Bearer <flow_token>' with the token of bind.")
        if not hmac.compare_digest(digest(token), token_hash):
            raise Forbidden(
                "This token is not this flow's; use the flow_token that its bind answered."
            )
        if reason is not None:
            raise FlowGone(flow_id, reason)
        return BoundFlow(coordinator, flow_id)

    def known(self, name: str, flow_id: str, token: str) -> BoundFlow | None:
        """As `authenticate`, if it is certain without the store."""
        known, coordinator = self._tokens.get(flow_id), self._replica.known(name)
        if known is None or coordinator is None or known[0] != coordinator.queue_id:
            return None
        if not hmac.compare_digest(digest(token), known[1]):
            return None
        return BoundFlow(coordinator, flow_id)

    async def of(self, name: str, flow_id: str) -> BoundFlow:
        """The flow of this id in the queue of this name, for who needs no token.

        Raises FlowNotFound, QueueNotFound, Unavailable.
        """
        queue_id, _, _ = await self._known(name, flow_id)
        return BoundFlow(await self._queue(name, flow_id, queue_id), flow_id)

    def remember(self, flow_id: str, queue_id: str, token_hash: bytes) -> None:
        """The flow is bound to this queue, and its token has this digest."""
        if len(self._tokens) >= MOST_KNOWN_TOKENS:
            self._tokens.clear()
        self._tokens[flow_id] = (queue_id, token_hash)

    def forget(self, flow_id: str) -> None:
        """The flow is not bound any more."""
        self._tokens.pop(flow_id, None)

    async def renew(self, flow: BoundFlow) -> Lease:
        """Renews the flow's lease. Raises FlowGone, FlowNotFound, QueueNotFound, Unavailable."""
        lease = await self._replica.renewals.now(flow.flow_id)
        if lease is None:
            raise await self.missing(flow.coordinator.name, flow.flow_id)
        return lease

    async def missing(self, name: str, flow_id: str) -> Exception:
        """The error for a flow that is not bound to the queue of this name."""
        self.forget(flow_id)
        row = await self._row(flow_id)
        try:
            if row is None:
                # It may be deleted with its queue.
                self._replica.forget_name(name)
                await self._replica.coordinator(name)
            elif row.reason is not None:
                await self._queue(name, flow_id, row.queue_id)
                return FlowGone(flow_id, row.reason)
        except (QueueNotFound, FlowNotFound) as error:
            return error
        return FlowNotFound(flow_id)

    async def _known(self, name: str, flow_id: str) -> tuple[str, bytes, str | None]:
        """The id of the flow's queue, its token's digest, and why it has left, if it has."""
        known = self._tokens.get(flow_id)
        if known is not None:
            return *known, None
        row = await self._row(flow_id)
        if row is None:
            raise await self.missing(name, flow_id)
        if row.reason is None:
            self.remember(flow_id, row.queue_id, row.token_hash)
        return row.queue_id, row.token_hash, row.reason

    async def _queue(self, name: str, flow_id: str, queue_id: str) -> Coordinator:
        """The queue of this name, which must be the flow's. Raises FlowNotFound."""
        coordinator = await self._replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            # The name may be used again, and this replica does not know it yet.
            self._replica.forget_name(name)
            coordinator = await self._replica.coordinator(name)
        if coordinator.queue_id != queue_id:
            raise FlowNotFound(flow_id)
        return coordinator

    async def _row(self, flow_id: str) -> FlowRow | None:
        """The flow's row, also of a flow that left recently. Raises Unavailable."""
        return await self._rows.put(flow_id)

    async def _read_rows(self, flow_ids: Sequence[str]) -> Sequence[FlowRow | None]:
        with store_available():
            found = await self._store.flow_rows(flow_ids)
        return [found.get(flow_id) for flow_id in flow_ids]
