"""The messages of the HTTP API as frozen dataclasses (`reading.py` makes them from JSON).

All datetimes are aware, in UTC. Positions are opaque strings that only the log compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

# The most partitions that the service names of those for which another one waits.
MOST_WAITED_FOR = 10
Json = Mapping[str, Any]


# ------------------------------------------------------------------ queues


@dataclass(frozen=True)
class Queue:
    """A queue's settings and status (the contract, *Queue*); `raw` is the whole answer."""

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
    retention_seconds: float | None
    retention_bytes: int | None
    mirror_group: str | None
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

    `end` and `lag` (the most messages from the position to the end) are None unless the service
    could ask the log. `lag_seconds` is the age of the message at the position, None if nothing is
    unread or the age is not known. Amid an ordered resize `cut` is where the partition must stop
    while it waits for other partitions; None: it neither waits nor is waited for (the contract,
    *Ordered resize*). In a dynamic queue `key` names it, and `parents` and `children` are the keys
    of its neighbours in the graph (the contract, *Lineage*).
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
    lag_seconds: float | None = None
    cut: str | None = None
    reached_cut: bool = False
    waits_for: tuple[int, ...] = ()
    key: str | None = None
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def barrier_text(cut: str | None, waits_for: Sequence[int]) -> str:
    """`at 1002 for 0, 2`: where a partition waits, and for which others; empty if it does not."""
    if cut is None or not waits_for:
        return ""
    # The service names no more than the ten lowest.
    more = ", …" if len(waits_for) >= MOST_WAITED_FOR else ""
    return f"at {cut} for {', '.join(map(str, waits_for))}{more}"


@dataclass(frozen=True)
class FlowSummary:
    """One flow of a queue, as an administrator sees it; `partitions` is the number that it owns."""

    flow_id: str
    client_name: str
    instance_id: str | None
    active: bool
    draining: bool
    partitions: int
    bound_at: datetime | None
    lease_expires_at: datetime | None
    raw: Json = field(repr=False, compare=False)
    held_until: datetime | None = None

    @property
    def state(self) -> str:
        """`draining`, `active`, `held back` (until `held_until`) or `standby`, for people."""
        if self.draining:
            return "draining"
        if self.active:
            return "active"
        return "standby" if self.held_until is None else "held back"


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
    """One partition that a rebalance moved, and the outcome.

    `seconds`: how long it paused. `silent_seconds`: the part of them until the lease of its silent
    owner ended; None: it did not end, or an older service does not say.
    """

    partition: int
    from_flow: str | None
    to_flow: str | None
    epoch: int | None
    outcome: str
    seconds: float | None
    reason: str | None = None
    silent_seconds: float | None = None


@dataclass(frozen=True)
class Rebalance:
    """One entry of the rebalance history.

    `why` says in plain words what led to it; None from an older service. `clients`: the names of
    the clients of the flows in `moves`. `more_moves`: how many moves come after these.
    """

    id: int | None
    trigger: str | None
    started_at: datetime | None
    finished_at: datetime | None
    handoffs: int
    forced: int
    granted: int
    moves: tuple[Move, ...]
    triggered_at: datetime | None = None
    why: str | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    more_moves: int = 0
    raw: Json = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class AuditItem:
    """An administrative call: who made it from where, on what, and the state before and after."""

    id: int
    at: datetime | None
    call: str
    queue: str | None
    flow_id: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    before: Json | None
    after: Json | None
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Key:
    """A key, without its secret. `state`: `valid`, `ended` or `revoked`."""

    id: str
    name: str
    role: str
    queues: tuple[str, ...]
    created_at: datetime | None
    ends_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    state: str


@dataclass(frozen=True)
class MadeKey(Key):
    """A new key. `key` is its text, which the service does not store. `is_first`: from now on
    callers of the service need a key.
    """

    key: str = field(repr=False)
    is_first: bool


@dataclass(frozen=True)
class HeldBack:
    """So many flows get no partitions yet, the first of them until then: their keys have moved as
    much of the queue as they may in an hour.
    """

    flows: int
    until: datetime | None


@dataclass(frozen=True)
class RebalanceStatus:
    """The status of a queue (`Ready`, `Holddown` or `Rebalancing`) and its trigger."""

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
    held_back: HeldBack | None = None


@dataclass(frozen=True)
class Event:
    """One committed change of a queue, from its event stream."""

    revision: int | None
    name: str
    data: Any


# ------------------------------------------------------------------ flows


@dataclass(frozen=True)
class UpdatePartition:
    """A partition in an update; `deadline` is a time of the service's clock."""

    partition: int
    epoch: int
    state: str
    position: str | None
    handed_over: str | None = None
    deadline: datetime | None = None
    key: str | None = None
    parents: tuple[str, ...] = ()
    cut: str | None = None
    reached_cut: bool = False
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
    resize: int | None = None
    held_until: datetime | None = None


@dataclass(frozen=True)
class LogAccess:
    """Short-lived credentials for the log; the URL contains a password and is never shown."""

    url: str = field(repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True)
class LogView:
    """How to reach a queue's log: `log` is its public address, `access` None if there is none."""

    log: str
    partition_count: int
    start: str
    access: LogAccess | None
    log_name: str | None = None


@dataclass(frozen=True)
class Bound:
    """The answer to bind; `queue_id` is None from a service that does not send it."""

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
    """The result of one partition in a call: `ok`, or the reason why nothing was changed."""

    partition: int
    outcome: str
    current_epoch: int | None = None


@dataclass(frozen=True)
class Results:
    """One result for each partition of the call, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: Update | None


def check_partition(partition: object) -> None:
    """Raise TypeError unless it is the number of a partition as JSON can hold it."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise TypeError(f"the partition must be an int, not {partition!r}")


def _check_place(partition: object, epoch: object, position: object) -> None:
    check_partition(partition)
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise TypeError(f"the epoch must be an int, not {epoch!r}: take it from Owned.epoch")
    if position is not None and not isinstance(position, str):
        raise TypeError(f"the position must be a str, not {position!r}")


Position: TypeAlias = tuple[int, int, str] | tuple[int, int, str, bool]
"""The fields of a `CommitItem`."""


@dataclass(frozen=True)
class CommitItem:
    """Processed up to `position` (the next to read) under `epoch`.

    `reached_cut`: that is at the partition's cut or past it, which the view does not say yet.
    """

    partition: int
    epoch: int
    position: str
    reached_cut: bool = False

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)
        if self.position is None:
            raise TypeError("the position to commit must be a str, not None")

    @property
    def fields(self) -> Position:
        """What a flow's `commit` takes."""
        place = self.partition, self.epoch, self.position
        return (*place, True) if self.reached_cut else place


@dataclass(frozen=True)
class ReleaseItem:
    """Release a partition, and commit `position` with it if there is one.

    `finished`: a retiring partition was drained to its end.
    """

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False
    reached_cut: bool = False

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)


@dataclass(frozen=True)
class Child:
    """A partition that begins where its parents end.

    `parents` are keys; for `Flow.children` none means the partition itself. `partition` is its
    number in the log, None: the queue gives one. `position` is where it begins, None: at its first
    message.
    """

    key: str
    parents: tuple[str, ...] = ()
    partition: int | None = None
    position: str | None = None


@dataclass(frozen=True)
class ChildrenItem:
    """What comes after a partition. All of it is carried out, or nothing.

    `finished`: it was processed to its end, `position`, and has no other children.
    """

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False
    children: tuple[Child, ...] = ()

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, self.position)


@dataclass(frozen=True)
class LineageNode:
    """A partition in the graph of a dynamic queue; `parents` and `children` are keys, `waits_for`
    the numbers of the parents that are not finished."""

    partition: int
    key: str
    state: str
    owner: str | None
    parents: tuple[str, ...]
    children: tuple[str, ...]
    waits_for: tuple[int, ...]


@dataclass(frozen=True)
class ReadyItem:
    """The warm-up for this partition is done; `epoch` is its owner's."""

    partition: int
    epoch: int

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, None)


@dataclass(frozen=True)
class Probe:
    """The answer of an address outside the base path; `date` as the server wrote it."""

    status: int
    date: str | None
    text: str
