"""What goes over the wire, as frozen dataclasses (`reading.py` makes them from JSON).

All datetimes are aware, in UTC. Positions are opaque strings that only the log compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Json = Mapping[str, Any]


# ------------------------------------------------------------------ queues


@dataclass(frozen=True)
class Queue:
    """A queue's settings and status (the contract, *Queue*); `raw` is all that was sent."""

    name: str
    id: str
    partition_count: int
    operational_partition_count: int
    access_type: str
    rebalance_delay: float
    max_handoff_time: float
    max_warmup_time: float
    max_concurrent_handoffs: int | None
    log: str
    start: str
    rebalance_status: str
    scale_status: str
    flow_count: int
    active_flow_count: int
    revision: int
    created_at: datetime | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing; `next_cursor` is None on the last."""

    items: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True)
class Partition:
    """One partition of a queue, as an administrator sees it.

    `end` and `lag` (messages from the position to the end, at most) are None unless the service
    could ask the log.
    """

    partition: int
    epoch: int
    owner: str | None
    successor: str | None
    state: str
    position: str | None
    deadline: datetime | None
    end: str | None = None
    lag: int | None = None


@dataclass(frozen=True)
class FlowSummary:
    """One flow of a queue, as an administrator sees it; `partitions` is how many it owns."""

    flow_id: str
    client_name: str
    instance_id: str | None
    active: bool
    draining: bool
    partitions: int
    bound_at: datetime | None
    lease_expires_at: datetime | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Handoff:
    """A handoff in progress: `phase` is `warming` or `revoking`."""

    partition: int
    from_flow: str | None
    to_flow: str | None
    phase: str
    deadline: datetime | None


@dataclass(frozen=True)
class Move:
    """One partition that a rebalance moved, and how that went."""

    partition: int
    from_flow: str | None
    to_flow: str | None
    epoch: int | None
    outcome: str
    seconds: float | None


@dataclass(frozen=True)
class Rebalance:
    """One entry of the rebalance history."""

    id: int | None
    trigger: str | None
    started_at: datetime | None
    finished_at: datetime | None
    handoffs: int
    forced: int
    granted: int
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class RebalanceStatus:
    """Where a queue stands between `Ready`, `Holddown` and `Rebalancing`, and why."""

    queue: str
    status: str
    revision: int
    trigger: str | None
    since: datetime | None
    holddown_until: datetime | None
    handoffs: tuple[Handoff, ...]
    unassigned: tuple[int, ...]
    spread: int
    last_rebalance: Rebalance | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Event:
    """One committed change of a queue, from its event stream."""

    revision: int | None
    name: str
    data: Any


# ------------------------------------------------------------------ flows


@dataclass(frozen=True)
class UpdatePartition:
    """A partition as an update names it; `deadline` by the service's clock."""

    partition: int
    epoch: int
    state: str
    position: str | None
    handed_over: str | None = None
    deadline: datetime | None = None
    key: str | None = None
    parents: tuple[str, ...] = ()
    cut: str | None = None
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Update:
    """A FlowChangeUpdate: always the whole current view of one flow."""

    queue: str
    flow_id: str
    revision: int
    active: bool
    draining: bool
    now: datetime
    partitions: tuple[UpdatePartition, ...]


@dataclass(frozen=True)
class LogAccess:
    """Short-lived credentials for the log; the URL carries a password and is never shown."""

    url: str = field(repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True)
class LogView:
    """How to reach a queue's log: `log` is its public name, `access` None if none can be given."""

    log: str
    partition_count: int
    start: str
    access: LogAccess | None
    log_name: str | None = None


@dataclass(frozen=True)
class Bound:
    """The answer to bind; `queue_id` is None from a service that does not tell it."""

    flow_id: str
    flow_token: str = field(repr=False)
    lease_seconds: float
    log: str
    start: str
    update: Update
    log_access: LogAccess | None = None
    queue_id: str | None = None


@dataclass(frozen=True)
class Heartbeat:
    """The answer to a heartbeat; `revision` is that of the flow's view."""

    lease_expires_at: datetime | None
    revision: int


@dataclass(frozen=True)
class Result:
    """What became of one partition named in a call; `ok` or why nothing was changed."""

    partition: int
    outcome: str
    current_epoch: int | None = None
    reached_cut: bool = False


@dataclass(frozen=True)
class Results:
    """One result for each partition named, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: Update | None


@dataclass(frozen=True)
class CommitItem:
    """Processed up to `position` (next to read) under `epoch`."""

    partition: int
    epoch: int
    position: str


@dataclass(frozen=True)
class ReleaseItem:
    """Give up a partition, committing `position` first when there is one.

    `finished`: a retiring partition was drained to its end.
    """

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False


@dataclass(frozen=True)
class ReadyItem:
    """The warm-up for this partition is done; `epoch` is its owner's."""

    partition: int
    epoch: int
