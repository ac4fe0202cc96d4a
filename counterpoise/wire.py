"""The messages of the HTTP API. `reading.py` makes them from JSON as they are defined here.

A field without a default is in every answer, but may be null if its type has None. `raw` is the
whole answer, with the fields that are not known here. All datetimes are aware, in UTC. Positions
are opaque strings that only the log compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

from counterpoise.documents import Document, Json, PartlyShown

T = TypeVar("T")

# The most partitions that the service names of those for which another one waits.
MOST_WAITED_FOR = 10
# What a header can carry: visible ASCII characters, without a blank or a line end.
TOKEN_PATTERN = r"\A[!-~]{1,8192}\Z"
# One without its zone would be ambiguous.
Time = Annotated[datetime, Meta(tz=True)]
Cursor = Annotated[str, Meta(min_length=1, max_length=2_000)]


# ------------------------------------------------------------------ queues


class Queue(Document, frozen=True):
    """A queue's settings and status (the contract, *Queue*)."""

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
    created_at: Time


class Page(Struct, Generic[T], frozen=True):
    """One page of a listing; `next_cursor` is None on the last."""

    items: tuple[T, ...]
    next_cursor: Cursor | None


class Partition(Struct, frozen=True):
    """One partition of a queue, as an administrator sees it.

    `end` and `lag` (the most messages from the position to the end) are None unless the service
    could ask the log. `lag_seconds` is the age of the message at the position, None if nothing is
    unread or the age is not known. Amid an ordered resize `cut` is where the partition must stop
    while it waits for other partitions; None: it neither waits nor is waited for (the contract,
    *Ordered resize*). In a dynamic queue `key` names it, and `parents` and `children` are the keys
    of its neighbours in the graph (the contract, *Lineage*); in a fixed one they are None.
    """

    partition: int
    epoch: int
    owner: str | None
    successor: str | None
    state: str
    position: str | None
    deadline: Time | None
    end: str | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    cut: str | None = None
    reached_cut: bool | None = None
    waits_for: tuple[int, ...] | None = None
    key: str | None = None
    parents: tuple[str, ...] | None = None
    children: tuple[str, ...] | None = None


def barrier_text(cut: str | None, waits_for: Sequence[int] | None) -> str:
    """`at 1002 for 0, 2`: where a partition waits, and for which others; empty if it does not."""
    if cut is None or not waits_for:
        return ""
    # The service names no more than the ten lowest.
    more = ", …" if len(waits_for) >= MOST_WAITED_FOR else ""
    return f"at {cut} for {', '.join(map(str, waits_for))}{more}"


class FlowSummary(Document, frozen=True):
    """One flow of a queue, as an administrator sees it; `partitions` is the number that it owns."""

    flow_id: str
    client_name: str
    instance_id: str
    active: bool
    draining: bool
    partitions: int
    bound_at: Time
    lease_expires_at: Time
    held_until: Time | None = None

    @property
    def state(self) -> str:
        """`draining`, `active`, `held back` (until `held_until`) or `standby`, for people."""
        if self.draining:
            return "draining"
        if self.active:
            return "active"
        return "standby" if self.held_until is None else "held back"


class Handoff(Struct, frozen=True):
    """A handoff in progress: `phase` is `warming` or `revoking`."""

    partition: int
    from_flow: str = field(name="from")
    to_flow: str | None = field(name="to")
    phase: str
    deadline: Time | None


class Move(Struct, frozen=True):
    """One partition that a rebalance moved, and the outcome.

    `seconds`: how long it paused. `silent_seconds`: the part of them until the lease of its silent
    owner ended; None: it did not end.
    """

    partition: int
    from_flow: str | None = field(name="from")
    to_flow: str | None = field(name="to")
    epoch: int
    outcome: str
    seconds: float
    reason: str | None
    silent_seconds: float | None


class Rebalance(Document, frozen=True):
    """One entry of the rebalance history; in a status it has no moves, for one.

    `why` says in plain words what led to it. `clients`: the names of the clients of the flows in
    `moves`. `more_moves`: how many moves come after these.
    """

    id: int
    trigger: str
    started_at: Time
    finished_at: Time | None
    handoffs: int
    forced: int
    granted: int
    moves: tuple[Move, ...] = ()
    triggered_at: Time | None = None
    why: str | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    more_moves: int = 0


class AuditItem(Document, frozen=True):
    """An administrative call: who made it from where, on what, and the state before and after."""

    id: int
    at: Time
    call: str
    queue: str | None
    flow_id: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    before: Json | None
    after: Json | None


class Key(Struct, frozen=True):
    """A key, without its secret. `state`: `valid`, `ended` or `revoked`."""

    id: str
    name: str
    role: str
    queues: tuple[str, ...]
    created_at: Time
    ends_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None
    state: str


class MadeKey(Key, PartlyShown, frozen=True):
    """A new key. `key` is its text, which the service does not store. `is_first`: from now on
    callers of the service need a key.
    """

    hidden = frozenset({"key"})

    key: str
    is_first: bool


class HeldBack(Struct, frozen=True):
    """So many flows get no partitions yet, the first of them until then: their keys have moved as
    much of the queue as they may in an hour.
    """

    flows: int
    until: Time


class RebalanceStatus(Document, frozen=True):
    """The status of a queue (`Ready`, `Holddown` or `Rebalancing`) and its trigger."""

    queue: str
    status: str
    revision: int
    trigger: str | None
    since: Time
    holddown_until: Time | None
    handoffs: tuple[Handoff, ...]
    unassigned: tuple[int, ...]
    spread: int
    last_rebalance: Rebalance | None
    held_back: HeldBack | None = None


class Event(Struct, frozen=True):
    """One committed change of a queue, from its event stream."""

    revision: int | None
    name: str
    data: Any


# ------------------------------------------------------------------ flows


class UpdatePartition(Struct, frozen=True):
    """A partition in an update; `deadline` is a time of the service's clock."""

    partition: int
    epoch: int
    state: str
    position: str | None
    handed_over: str | None = None
    deadline: Time | None = None
    key: str | None = None
    parents: tuple[str, ...] | None = None
    cut: str | None = None
    reached_cut: bool | None = None
    waits_for: tuple[int, ...] | None = None


class Update(Struct, frozen=True):
    """A FlowChangeUpdate: always the whole current view of one flow."""

    queue: str
    flow_id: str
    revision: int
    active: bool
    draining: bool
    now: Time
    partitions: tuple[UpdatePartition, ...]
    resize: int | None = None
    held_until: Time | None = None


class LogAccess(PartlyShown, frozen=True):
    """Short-lived credentials for the log; the URL contains a password and is never shown."""

    hidden = frozenset({"url"})

    url: str
    expires_at: Time | None = None


class LogView(Struct, frozen=True):
    """How to reach a queue's log: `log` is its public address, `access` None if there is none."""

    log: str
    partition_count: int
    access: LogAccess | None
    log_name: str | None = None


class Bound(PartlyShown, frozen=True):
    """The answer to bind."""

    hidden = frozenset({"flow_token"})

    flow_id: str
    queue_id: str
    flow_token: Annotated[str, Meta(pattern=TOKEN_PATTERN)]
    lease_seconds: float
    log: str
    update: Update
    log_access: LogAccess | None = None


class Heartbeat(Struct, frozen=True):
    """The answer to a heartbeat; `revision` is that of the flow's view."""

    lease_expires_at: Time
    revision: int


class Result(Struct, frozen=True):
    """The result of one partition in a call: `ok`, or the reason why nothing was changed."""

    partition: int
    outcome: str
    current_epoch: int | None = None


class Results(Struct, frozen=True):
    """One result for each partition of the call, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: Update | None = None


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


class CommitItem(Struct, frozen=True):
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


class ReleaseItem(Struct, frozen=True):
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


class Child(Struct, frozen=True):
    """A partition that begins where its parents end.

    `parents` are keys; for `Flow.children` none means the partition itself. `partition` is its
    number in the log, None: the queue gives one. `position` is where it begins, None: at its first
    message.
    """

    key: str
    parents: tuple[str, ...] = ()
    partition: int | None = None
    position: str | None = None


class ChildrenItem(Struct, frozen=True):
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


class LineageNode(Struct, frozen=True):
    """A partition in the graph of a dynamic queue; `parents` and `children` are keys, `waits_for`
    the numbers of the parents that are not finished."""

    partition: int
    key: str
    state: str
    owner: str | None
    parents: tuple[str, ...]
    children: tuple[str, ...]
    waits_for: tuple[int, ...]


class ReadyItem(Struct, frozen=True):
    """The warm-up for this partition is done; `epoch` is its owner's."""

    partition: int
    epoch: int

    def __post_init__(self) -> None:
        _check_place(self.partition, self.epoch, None)


class Probe(Struct, frozen=True):
    """The answer of an address outside the base path; `date` as the server wrote it."""

    status: int
    date: str | None
    text: str
