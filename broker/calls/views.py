"""Arguments and results of the facade (`broker.service.Broker`): what flows and operators see.

These are values, not domain objects: the model never leaves `broker`. Every time is in Unix
seconds by the database's clock; the API writes it as RFC 3339. Enumerated fields (`status`,
`state`, `phase`, `trigger`, `outcome`, `handed_over`, ...) carry exactly the strings of the
contract. A property of a queue has the contract's name, even if it lacks its unit
(`rebalance_delay`, `max_handoff_time` and `max_warmup_time` are seconds).

A call of a flow may have thousands of items. These are named tuples, which are made several times
faster than frozen dataclasses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from broker.core.commands import Result
from broker.logs.ports import LogAccess

T = TypeVar("T")
MOST_NAMED = 10
"""So many of the partitions that a partition waits for are named, the lowest."""


class PartitionInUpdate(NamedTuple):
    """A partition as its owner or successor sees it. `handed_over` is None while `warming`.

    `key` and `parents` (keys) are of a dynamic queue, else None.
    """

    partition: int
    epoch: int
    state: str
    position: str | None
    handed_over: str | None = None
    deadline: float | None = None
    key: str | None = None
    parents: tuple[str, ...] | None = None
    cut: str | None = None
    reached_cut: bool | None = None
    waits_for: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class UpdateView:
    """FlowChangeUpdate: a flow's whole current view, at `revision`, read at `now`.

    `resize` is the number of the log's last resize that the barriers speak of; None: the queue has
    no ordered resizes. `held_until`: until then the flow is held back.
    """

    queue: str
    flow_id: str
    revision: int
    active: bool
    draining: bool
    now: float
    partitions: tuple[PartitionInUpdate, ...]
    resize: int | None = None
    held_until: float | None = None


@dataclass(frozen=True, slots=True)
class BoundView:
    """The answer to bind. `flow_token` is only here; the service stores only its hash."""

    flow_id: str
    flow_token: str = field(repr=False)
    queue_id: str
    lease_seconds: float
    log: str
    log_access: LogAccess | None
    update: UpdateView


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """`revision` is that of the flow's view; a client with an older view fetches the new one."""

    lease_expires_at: float
    revision: int


@dataclass(frozen=True, slots=True)
class ResultsView:
    """One result per item of the call, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: UpdateView


@dataclass(frozen=True, slots=True)
class MoveView:
    """One partition's grant or handoff within a rebalance; both flows are given as flow ids.

    `outcome` is how the partition was handed over (`initial`, `graceful`, `forced`, `orphaned`,
    `replaced`, `discarded`). `seconds` is how long it paused: since the last renewal of an owner
    that was silent, else since its owner was told to finish, or without an owner.
    `silent_seconds`: the part of it until the owner's lease ended; None: it did not end.
    `reason`: why it was forced (`not_released`, `positions_set`), else None.
    """

    partition: int
    from_flow: str | None
    to_flow: str | None
    epoch: int
    outcome: str
    seconds: float
    reason: str | None = None
    silent_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CauseView:
    """A change that led to a rebalance.

    `type`: `bound`, `admitted` (after it was held back), `left` (with the `reason`), `draining`, or
    `changed` (with new `settings`).
    """

    at: float
    type: str
    flow_id: str | None = None
    client_name: str | None = None
    reason: str | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RebalanceView:
    """One entry of the history; `handoffs`, `forced` and `granted` are counts.

    `triggered_at` is when its holddown began, or it itself. `why` says the causes in plain words;
    of very many causes the last are only counted (`more_causes`). `clients` are the names of the
    flows in `moves`; `more_moves`: how many moves come after these.
    """

    id: int
    trigger: str
    started_at: float
    finished_at: float | None
    handoffs: int
    forced: int
    granted: int
    moves: tuple[MoveView, ...] = ()
    triggered_at: float | None = None
    why: str = ""
    causes: tuple[CauseView, ...] = ()
    more_causes: int = 0
    more_moves: int = 0
    clients: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `next_cursor` is the `cursor` of the next call; None on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


# Queues


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The settings of a new queue (the contract, *Queue*). `log` None means `builtin:` + name.

    `partition_count` None: that of the queue whose built-in log this one reads. `partitions` are
    the keys of the first partitions of a dynamic queue. `align_with` names the queue whose built-in
    log is read beside `log`. A retention of None is the default, if the queue has a built-in log
    of its own, and otherwise none. `ordered_resize` None: wherever the log can. `positions`: where
    partitions begin; the others begin as `start` says.
    """

    name: str
    partition_count: int | None = None
    access_type: str = "non_exclusive"
    rebalance_delay: float = 5.0
    max_handoff_time: float = 3.0
    max_warmup_time: float = 600.0
    max_concurrent_handoffs: int | None = None
    log: str | None = None
    start: str = "earliest"
    ordered_resize: bool | None = None
    partitioning: str = "fixed"
    partitions: tuple[str, ...] | None = None
    align_with: str | None = None
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    positions: Mapping[int, str | None] = field(default_factory=dict)
    mirror_group: str | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: its settings and its state. A queue made again under a name has another `id`.

    `conditions`: how many hold, by kind; None where the answer does not look them up. `align_with`:
    the queues whose logs are read beside the first one.
    """

    id: str
    name: str
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
    created_at: float
    partitioning: str = "fixed"
    ordered_resize: bool = False
    conditions: Mapping[str, int] | None = None
    align_with: str | None = None
    mirror_group: str | None = None
    retention_seconds: float | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ResizeView:
    """An ordered resize that is not settled.

    `awaits_cuts`: the log has not said yet where it has cut its partitions; then the counts are
    those of an earlier resize, if any. `unreached` and `waiting` are numbers of partitions: those
    that are not processed up to their cuts, and those that wait for them.
    """

    resized_from: int | None
    resized_to: int
    awaits_cuts: bool
    unreached: int
    waiting: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as administrators see it; `owner` and `successor` are flow ids.

    `key`, `parents` and `children` (keys) are of a dynamic queue, else None.
    `end` and `lag` (the most messages from the position to the end) are None unless the log
    answered in time; a position that the log cannot have has no lag. `lag_seconds` is the age of
    the message at the position; None if nothing is unread, or the log does not say it.
    """

    partition: int
    epoch: int
    owner: str | None
    successor: str | None
    state: str
    position: str | None
    deadline: float | None
    end: str | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    key: str | None = None
    parents: tuple[str, ...] | None = None
    children: tuple[str, ...] | None = None
    cut: str | None = None
    reached_cut: bool | None = None
    waits_for: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LagView:
    """How many messages of a queue are not processed yet, at most, and the age of the oldest.

    `messages` is the sum over the partitions whose lag is known; `unknown`: the number of others.
    `seconds`: the largest age of a partition's next message, 0 if nothing is unread, None if the
    age of no such message is known. `partitions`: by number; empty for a queue with many.
    """

    messages: int
    unknown: int
    seconds: float | None
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class FlowSummaryView:
    """A bound flow as administrators see it. `partitions` is the number that it owns; `held_until`:
    until then it is held back.
    """

    flow_id: str
    client_name: str
    instance_id: str
    key_id: str | None
    active: bool
    draining: bool
    partitions: int
    bound_at: float
    lease_expires_at: float
    held_until: float | None = None


# Rebalances


@dataclass(frozen=True, slots=True)
class HandoffView:
    """A handoff in progress; `phase` is `warming` or `revoking`; both flows are flow ids."""

    partition: int
    from_flow: str
    to_flow: str | None
    phase: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A partition that waits for its parents; `waits_for` are those that are not finished."""

    partition: int
    key: str
    waits_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldBackView:
    """So many flows are held back, the first of them until then."""

    flows: int
    until: float


@dataclass(frozen=True, slots=True)
class RebalanceStatusView:
    """The rebalance status of a queue (the contract, *HTTP*, rebalance status)."""

    queue: str
    status: str
    revision: int
    trigger: str | None
    since: float
    holddown_until: float | None
    handoffs: tuple[HandoffView, ...]
    unassigned: tuple[int, ...]
    spread: int
    last_rebalance: RebalanceView | None
    resize: ResizeView | None = None
    waiting: tuple[WaitingView, ...] = ()
    held_back: HeldBackView | None = None


# The audit


@dataclass(frozen=True, slots=True)
class AuditView:
    """An administrative call: who made it, and the state before and after, JSON-ready.

    `queue` and `flow_id` name what it was about; `key_id` is None for a caller without a key.
    """

    id: int
    at: float
    call: str
    queue: str | None
    flow_id: str | None
    key_id: str | None
    key_name: str | None
    address: str | None
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


# Positions, log access, events, readiness


@dataclass(frozen=True, slots=True)
class PositionSet:
    """The new position of a partition, and its raised epoch.

    Of a dry run: the epoch as it is, the position until then, and how many messages (at most) would
    be read again or skipped; None where the log does not say.
    """

    partition: int
    epoch: int
    position: str | None
    previous: str | None = None
    read_again: int | None = None
    skipped: int | None = None


@dataclass(frozen=True, slots=True)
class PositionsView:
    """The partitions whose position was set, by number, and the revision of the change."""

    revision: int
    partitions: tuple[PositionSet, ...]


@dataclass(frozen=True, slots=True)
class LogAccessView:
    """A queue's log. `log_name` is the built-in log's name, None for others."""

    log: str
    log_name: str | None
    partition_count: int
    access: LogAccess | None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class EventView:
    """One committed revision: what changed, each as a mapping with its `type`, JSON-ready.

    All followers of the queue get the same view, so that it is rendered once. Times inside
    `changes` are Unix seconds; the API knows them by their names (`api.schemas.common.with_times`).
    """

    revision: int
    at: float
    changes: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """Whether this replica can serve; `problem` gives the reason if it cannot.

    `identity` names the tables that it serves, if they are in a database.
    """

    database: bool
    migrations: bool
    problem: str | None = None
    identity: str | None = None

    @property
    def ready(self) -> bool:
        return self.database and self.migrations
