"""What the rest of the source needs of a flow, whether a query has one or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from counterpoise.conditions import Condition
from counterpoise.errors import CounterpoiseError
from counterpoise.flow.view import Owned, Warming
from counterpoise.spark.errors import FlowEnded
from counterpoise.spark.queue_log import AccessSource
from counterpoise.wire import ChildrenItem, Position, ReleaseItem


class BoundFlow(AccessSource, Protocol):
    """The flow of a query, or several seen as one (`flows`)."""

    @property
    def instance_id(self) -> str: ...

    @property
    def queue_id(self) -> str | None: ...

    @property
    def flow_ids(self) -> Sequence[str]: ...

    @property
    def status(self) -> str: ...

    @property
    def gone_reason(self) -> str | None: ...

    @property
    def last_error(self) -> CounterpoiseError | None: ...

    @property
    def in_doubt(self) -> bool: ...

    @property
    def partitions(self) -> Mapping[int, Owned]: ...

    @property
    def warming(self) -> Mapping[int, Warming]: ...

    @property
    def draining(self) -> bool: ...

    def commit(
        self, positions: Iterable[Position], *, timeout_seconds: float | None = None
    ) -> dict[int, str]: ...

    def release_many(
        self, items: Iterable[ReleaseItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]: ...

    def children_many(
        self, items: Iterable[ChildrenItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]: ...

    def ready(self, partition: int, epoch: int | None = None) -> str: ...

    def refresh(self, *, timeout_seconds: float | None = None) -> None: ...

    def report(
        self, conditions: Iterable[Condition], *, timeout_seconds: float | None = None
    ) -> None: ...

    def drain(self, timeout_seconds: float | None = None) -> None: ...

    def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool: ...

    def close(self, *, timeout_seconds: float = 5.0, reason: str | None = None) -> None: ...


def raise_if_over(flow: BoundFlow, queue: str) -> None:
    """Raises FlowEnded, with the reason and what to do, once the flow has ended for good."""
    if flow.status != "gone":
        return
    reason = flow.gone_reason or "unknown"
    said = {
        "replaced": "another consumer was bound with the same instanceId, so this one is over. "
        "Two queries at a time need two instanceIds (and two checkpoints)",
        "unbound": "an administrator has unbound this consumer. Start the query again to come back",
        "key_ended": "its key was revoked or reached its end. Start the query again with another "
        "key in COUNTERPOISE_TOKEN",
        "lease_expired": "its lease expired while it was being drained. Start the query again to "
        "come back",
        "queue_not_found": "the queue has been deleted. Make it again and start the query with "
        "another checkpointLocation, or let the query end",
        "queue_recreated": "the queue has been deleted and made again. To consume the new one, "
        "start the query again with another checkpointLocation",
    }.get(reason, str(flow.last_error or reason))
    raise FlowEnded(f"queue {queue!r}: {said}")
