"""The port of a store. One contract suite (`tests/broker/store`) tests every implementation against
this page.

The main rule: **a replica commits its decision only if no other replica committed first.** Frequent
changes are fenced where they are written.

- A queue's changes are committed under its revision. `commit` succeeds only if the stored revision
  is the one that the replica had seen; otherwise it raises `Conflict` and writes nothing. The
  records of the change and the changed rows are written together. So a queue can be updated from
  records or loaded from rows, with equal results.
- Positions and leases are in rows alone. `commit_positions` and `renew` do not change the revision;
  their WHERE clause names the epoch and the flow. A change that relies on them (a release with its
  position, the expiry of a lease) is fenced the same way inside `commit`. If a fence does not hold,
  `commit` raises (`LeaseRenewed`, `PositionSuperseded`) and writes nothing, and the replica can
  decide again.
- All times are the store's own (`pulse` returns them), never a replica's. Times are Unix seconds as
  floats.

Any method raises `StoreUnavailable` when the store cannot be reached. A `commit` that raises it may
or may not have been carried out: `entries_after` shows it by the `commit_id`.

**Keys, sessions and the audit** are a port of their own (`KeyStore`). Keys are made and revoked
elsewhere (`broker.access_keys`). A key counts while it is neither revoked nor past its end, by the
store's clock. A replica reads again whether a key has ended, so no notification can be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from broker.core.access import ALL_QUEUES
from broker.core.commands import Result
from broker.core.model import Flow, Partition
from broker.core.queue import Queue
from broker.core.records import Child, Entry
from broker.core.stored import ShownEntry
from broker.store.conditions import ConditionStore
from broker.store.measurements import MeasurementStore
from broker.store.mirrors import MirrorStore
from broker.store.trims import End, Fence, TrimStore


class Stored(NamedTuple):
    """The epoch of a partition, its position, and what is done above that; None: nothing (the
    contract, *Work above the position*).
    """

    epoch: int
    position: str | None
    done_above: str | None = None


# By the number of the partition.
Positions = Mapping[int, Stored]


class StoreError(Exception):
    """Base of all errors of a store."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or did not answer in time.

    `code`: the database's own code for it (SQLSTATE), None if it gave none.
    """

    def __init__(self, reason: str = "", code: str | None = None) -> None:
        super().__init__(reason)
        self.code = code


class Conflict(StoreError):
    """Another replica committed first."""


class QueueGone(StoreError):
    """The queue was deleted."""


class WentBack(StoreError, KeyError):
    """The store does not have a revision that it had: it was returned to an earlier state."""


class QueueTooNew(StoreError):
    """The queue uses what only a newer release knows (`broker.store.levels`); the text says it."""


class QueueDamaged(StoreError):
    """The rows of the queue do not fit together; the text names it and says what does not."""


class NameTaken(StoreError):
    """A queue of this name exists."""


class FlowsBound(StoreError):
    """The queue cannot be deleted while flows are bound to it."""


class LeaseRenewed(StoreError):
    """Leases that should expire were renewed meanwhile; nothing was committed."""

    def __init__(self, flow_ids: frozenset[str]) -> None:
        super().__init__(f"{len(flow_ids)} leases were renewed")
        self.flow_ids = flow_ids


class PositionSuperseded(StoreError):
    """Writes to these partitions were refused, usually because a later call of the same flow has
    set the position already (by `seq`); nothing was committed.
    """

    def __init__(self, partitions: frozenset[int]) -> None:
        super().__init__(f"{len(partitions)} positions were refused")
        self.partitions = partitions


class Overdue(StoreError):
    """The commit came outside of its `valid` time; nothing was committed."""


class LogTrimmed(StoreError):
    """A trim or the end of the log was announced since the commit's fence was taken, or a reader
    came since the end was prepared; nothing was committed.
    """


@dataclass(frozen=True, slots=True)
class PositionWrite:
    """A position in a release: written only while `flow_id` owns the partition in this epoch.

    `seq` None: written unconditionally; otherwise only if it is higher than the last one in this
    epoch. `position` None: the position stays, and only the fence applies. `done_above` goes with
    the position.
    """

    partition: int
    epoch: int
    flow_id: str
    position: str | None
    seq: int | None
    done_above: str | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A position, and what is done above it, after an administrator has passed one message. Written
    only if both are still what was seen: otherwise a consumer has committed meanwhile.
    """

    seen_position: str | None
    seen_done_above: str | None
    position: str | None
    done_above: str | None


@dataclass(slots=True)
class Commit:
    """One transaction on one queue. `queue` is its new state; `partitions` and `flows` are the
    changed ones.

    - `seen`: the revision the decisions were made on; `entries` are `seen` + 1 and so on, in order.
    - `partitions`: rows to write completely, except position and seq; a higher epoch sets seq to
      null.
    - `flows`: rows to insert or update; `token_hashes` has the hashes of new flows, whose leases
      begin. A flow that was bound and left within the commit is in `flows` and in `left`, so that
      its client gets an answer that says so.
    - `left`: flows that are gone, with the reason; their rows stay for a while. The commit requires
      that the leases of `expired`, some of these flows, are over by the store's clock (see
      `expiries`).
    - `renewed`: flows whose leases begin anew because they called. (This includes expired flows
      that are still bound.)
    - `writes`: positions that go with releases, fenced; they are applied before the partitions'
      rows change.
    - `positions`: positions set by an administrator, unfenced.
    - `passed`: those of partitions of which an administrator passes a message, none of them in
      `positions`; one that does not fit stays as it is, and the rest of the commit takes effect.
    - `first_positions`: the first positions of partitions that have none yet.
    - `children`: the partitions of a dynamic queue that are new, with their keys and parents.
    - `removed`: the partitions of a dynamic queue that are gone, by number; of each its key is
      remembered and nothing else. They are not in `partitions`.
    - `acts`: administrative calls that were carried out, for the audit.
    - `calls`: the calls that are answered with it, as traces know them (`broker.tracing`).
    - `shown`: partitions whose positions an answer will show, beside those in the commit.
    - `fences`: of a commit that makes a reader of logs, one for each, or that sets positions, then
      only one (`broker.store.trims`).
    - `next_deadline`: when the queue must be advanced, for the sweep.
    - `valid`: the commit takes effect only if the store carries it out between these times (by its
      clock, waits for locks included), because its deadlines run from the time of the decision.
    """

    queue: Queue
    seen: int
    commit_id: str
    entries: Sequence[Entry]
    partitions: Sequence[Partition] = ()
    flows: Sequence[Flow] = ()
    token_hashes: Mapping[str, bytes] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    expired: frozenset[str] = frozenset()
    renewed: frozenset[str] = frozenset()
    writes: Sequence[PositionWrite] = ()
    positions: Mapping[int, str | None] = field(default_factory=dict)
    passed: Mapping[int, Passed] = field(default_factory=dict)
    first_positions: Mapping[int, str] = field(default_factory=dict)
    children: Sequence[Child] = ()
    removed: Mapping[int, str] = field(default_factory=dict)
    acts: Sequence[Act] = ()
    calls: list[object] = field(default_factory=list)
    shown: Set[int] = frozenset()
    fences: Sequence[Fence] = ()
    next_deadline: float | None = None
    valid: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which no replica served, or a step of the store's clock; recorded once, by the
    first replica that noticed. Negative `seconds`: the clock went back.
    """

    id: int
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """The store's time, and the latest outage, if any."""

    now: float
    outage: Outage | None


@dataclass(frozen=True, slots=True)
class Lease:
    """A flow's lease, and the revision at which its view last changed."""

    expires_at: float
    view_revision: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """The row of a flow, bound or not; `reason` is None while it is bound."""

    flow_id: str
    queue_id: str
    token_hash: bytes
    reason: str | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue for listings: the queue without its partitions, and its counts.

    `over_capacity`: as of `Queue`. `unmet_pins`: how many partitions are pinned without effect.
    """

    queue: Queue
    operational_partition_count: int
    scale_status: str
    flow_count: int
    active_flow_count: int
    over_capacity: int
    unmet_pins: int


@dataclass(frozen=True, slots=True)
class PositionCommit:
    """One partition of a commit, see `commit_positions`."""

    queue_id: str
    flow_id: str
    seq: int | None
    partition: int
    epoch: int
    position: str
    done_above: str | None = None


class PositionOutcomes(NamedTuple):
    """One result for each item; and the epochs and positions of partitions by queue and number.

    `replaced`: by the item's place, the position that was committed before. Missing are items that
    were refused, and those that changed nothing because of their `seq`.
    """

    results: Sequence[Result | None]
    positions: Mapping[tuple[str, int], Stored]
    replaced: Mapping[int, str | None]


class NamedFlow(NamedTuple):
    """A flow in the history. `expired_at`: when it was found that its lease is over; None: it left
    in another way, or is bound."""

    client_name: str
    expired_at: float | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """The flows of a queue whose leases are over, and when the next lease ends (None: there is no
    other flow). `seen_at`: the last renewals of all its flows, by id.
    """

    expired: tuple[str, ...]
    next_at: float | None
    seen_at: Mapping[str, float] = field(default_factory=dict, compare=False)


class Store(Protocol):
    """Queues, flows, partitions and their records."""

    @property
    def keys(self) -> KeyStore:
        """Keys, sessions and the audit."""

    @property
    def trims(self) -> TrimStore:
        """The announced trims of logs."""

    @property
    def conditions(self) -> ConditionStore:
        """What consumers report of their partitions."""

    @property
    def measurements(self) -> MeasurementStore:
        """An hour of lag and of what was published."""

    @property
    def mirrors(self) -> MirrorStore:
        """Which replica mirrors positions, and which mirrors fail."""

    async def start(self) -> None:
        """Opens connections. Raises StoreUnavailable."""

    async def stop(self) -> None:
        """Closes them."""

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        """Stamps that a replica serves, and returns the time.

        If the last stamp is older than `gap_seconds`, no replica served since: the leases that were
        alive then begin anew and the outage is recorded, in one transaction, by exactly one
        replica. The same happens if the last stamp lies in the future by more than that: the clock
        went back, and all leases begin anew.
        """

    async def create(self, commit: Commit) -> None:
        """Inserts a new queue with its partitions and records. Raises NameTaken, LogTrimmed."""

    async def delete(
        self, queue_id: str, *, force: bool, act: Act | None = None, end: End | None = None
    ) -> None:
        """Deletes a queue with everything in it, announces the end of its log, records the act.

        Raises FlowsBound unless `force`, QueueGone, LogTrimmed (a reader of the log came).
        """

    async def find(self, name: str) -> str | None:
        """The id of the queue of this name."""

    async def list(
        self, limit: int, after: str | None, patterns: Sequence[str] = ALL_QUEUES
    ) -> Sequence[QueueRow]:
        """Queues by name, those after the name `after` that match one of the patterns."""

    async def load(self, queue_id: str) -> Queue:
        """The whole queue from its rows, journal empty. Raises QueueGone."""

    async def revisions(self, queue_ids: Sequence[str]) -> Mapping[str, int]:
        """The committed revisions of these queues; deleted queues are left out."""

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        """The first `limit` entries that were committed after `revision`, in order.

        Raises QueueGone; WentBack if the queue is not at `revision` yet; KeyError if an entry is
        not stored any more, or has a record that this version does not know.
        """

    async def changes_after(self, queue_id: str, revision: int, limit: int) -> Sequence[ShownEntry]:
        """As `entries_after`, for showing: records that this version does not know are passed on.

        Raises QueueGone, WentBack; KeyError if an entry is not stored any more.
        """

    async def history(
        self, queue_id: str, limit: int, before: int | None, most_entries: int
    ) -> Sequence[int]:
        """The revisions of the entries of the newest `limit` rebalances with an id below `before`,
        and of the latest of those without a rebalance between them and up to the rebalance before
        them; oldest first. Of fewer rebalances if theirs would be more than `most_entries`, but of
        one at least.
        """

    async def entries_at(self, queue_id: str, revisions: Sequence[int]) -> Sequence[ShownEntry]:
        """The entries with these revisions that are stored, in order. Records that this version
        does not know are passed on.
        """

    async def flows_named(self, flow_ids: Sequence[str]) -> Mapping[str, NamedFlow]:
        """These flows, also those that have left, as far as they are stored."""

    async def commit(self, commit: Commit) -> Positions:
        """Commits. Returns the epochs and positions of the written partitions and of those in
        `shown`, as after the commit; none if that is not known.

        If it raises Conflict, QueueGone, LeaseRenewed, PositionSuperseded, LogTrimmed or Overdue,
        nothing is written.
        """

    async def expiries(self, queue_id: str) -> Expiry:
        """The flows whose leases are over.

        No lease is over while no replica serves: not before the first `pulse`, and not while the
        last one is older than its `gap_seconds`. So a replica that wakes up after an outage cannot
        expire a flow before `pulse` has noticed the outage.
        """

    async def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        """Begins the leases of these flows anew; flows that are not bound are missing from the
        answer.

        Never waits for a lock. None: another transaction holds the flow (perhaps a frozen
        replica's); call again.
        """

    async def commit_positions(
        self, items: Sequence[PositionCommit], shown: Collection[tuple[str, int]] = ()
    ) -> PositionOutcomes:
        """Commits positions and renews the leases of their flows; the items of a partition in
        their order. Returns the positions of the partitions in `shown`, too (by queue and number),
        as after it.

        Items are fenced by flow and epoch in the statement itself; results as in the contract,
        *HTTP*. Never waits for a lock. None: this item was skipped, because another transaction
        holds its partition or its flow; call again.
        """

    async def positions(self, queue_id: str, partitions: Sequence[int] | None = None) -> Positions:
        """The epoch and the last committed position of each partition; None: of all, removed ones
        too.
        """

    async def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        """When leases of bound flows end."""

    async def flow_rows(self, flow_ids: Sequence[str]) -> Mapping[str, FlowRow]:
        """The rows of these flows, as far as there are any; one remains for 24 hours after its flow
        left, and as long as the history.
        """

    async def outages(self, after: int) -> Sequence[Outage]:
        """The outages with an id above `after`, in order."""

    async def due(self, limit: int) -> Sequence[str]:
        """Queues that need a turn: their deadline has come, or was set before the clock went back,
        or a lease is over.
        """

    async def purge(self, flows_before: float, records_before: float) -> None:
        """Deletes flows that left and records committed before these times; the newest record of a
        queue stays.
        """

    async def notify(self, queue_ids: Sequence[str]) -> None:
        """Notifies the other replicas that these queues changed; best effort."""

    def listen(self) -> AsyncIterator[Sequence[str] | None]:
        """Queues that other replicas changed; None: notifications may have been missed, check all
        queues.
        """


# Keys, sessions and the audit


class KeyRow(NamedTuple):
    """A key that counts. `ends_at`: Unix seconds of the store."""

    id: str
    hash: bytes
    name: str
    role: str
    queues: Sequence[str]
    ends_at: float | None


class NewKey(NamedTuple):
    """A key that is to be made. `ends_at`: Unix seconds of the store."""

    id: str
    hash: bytes
    name: str
    role: str
    queues: Sequence[str]
    ends_at: float | None


class KeySummary(NamedTuple):
    """A key without its secret. Times are Unix seconds of the store, None for never."""

    id: str
    name: str
    role: str
    queues: Sequence[str]
    created_at: float
    ends_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    state: str  # valid, ended, revoked

    @property
    def audited(self) -> Mapping[str, Any]:
        """What the audit has of it."""
        shown = ("id", "name", "role", "queues", "ends_at", "revoked_at")
        return {name: getattr(self, name) for name in shown}


class SessionRow(NamedTuple):
    """A session that has not ended; its key may have. `unlocked_until`: None if it only reads."""

    key_id: str
    ends_at: float
    unlocked_until: float | None = None


@dataclass(frozen=True, slots=True)
class Keys:
    """Whether any key was ever made, and those of the given keys that count, by id."""

    any_made: bool
    counting: Mapping[str, KeyRow]


@dataclass(frozen=True, slots=True)
class Act:
    """One administrative call, for the audit. `before` and `after` are JSON values.

    `flow_id` names the flow that the call was about; `address` is the caller's.
    """

    call: str
    queue: str | None = None
    flow_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    address: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An act as it was recorded; ids rise, but may have holes."""

    id: int
    at: float
    act: Act


# How exactly the last use of a key is known.
USED_SECONDS = 60.0


class KeyStore(Protocol):
    """Keys, sessions and the audit. Each method raises StoreUnavailable."""

    async def read(self, key_ids: Sequence[str]) -> Keys:
        """Those of these keys that count."""

    async def make(self, key: NewKey, act: Act, *, only_first: bool) -> KeySummary | None:
        """Makes a key, and records the act with the key as `after`. `only_first`: None, and nothing
        is done, if there ever was a key."""

    async def one(self, key_id: str) -> KeySummary | None:
        """The key of this id, also one that does not count any more."""

    async def page(
        self, limit: int, after: str | None, *, everything: bool
    ) -> Sequence[KeySummary]:
        """Keys in the order in which they were made, those after the key of the id `after`.
        `everything`: also those that do not count any more."""

    async def revoke(self, key_id: str, act: Act) -> KeySummary | None:
        """Revokes a key, and records the act with the key before and after, unless it is revoked
        already. None: there is no such key."""

    async def keyless(self, limit: int) -> Sequence[tuple[str, str]]:
        """Bound flows whose key has ended, as (id of the queue, id of the flow)."""

    async def used(self, key_ids: Sequence[str]) -> None:
        """These keys were used just now; written unless that was known to `USED_SECONDS`."""

    async def begin_session(self, hash: bytes, key_id: str, seconds: float, most: int) -> float:
        """Begins a session, and ends the key's oldest ones above `most`. Returns when it ends."""

    async def sessions(self, hashes: Sequence[bytes]) -> Mapping[bytes, SessionRow]:
        """The sessions with these hashes that have not ended."""

    async def unlock_session(self, hash: bytes, seconds: float, act: Act) -> float | None:
        """Lets a session change something for so long, at most until it ends, and records the act.
        Returns until when. None: it has ended, and nothing is recorded."""

    async def lock_session(self, hash: bytes) -> None:
        """Lets a session only read from now on; harmless when repeated."""

    async def end_session(self, hash: bytes) -> None:
        """Ends a session; harmless when repeated."""

    async def flow_of_token(self, hash: bytes) -> tuple[str, str, str | None] | None:
        """The queue's id, the id and the key's id of the bound flow whose token has this hash."""

    async def record(self, acts: Sequence[Act]) -> None:
        """Records acts that changed nothing; others are recorded with their change."""

    async def audit(
        self, limit: int, before: int | None, patterns: Sequence[str], queue: str | None
    ) -> Sequence[AuditRow]:
        """Acts with an id below `before`, newest first, of queues that match a pattern (`*` and
        `?`); those on no queue only for the pattern `*`.
        """

    async def purge(self, before: float) -> None:
        """Forgets acts before this time, keys that ended before it, and sessions that have ended.
        The first key stays: there is one if there ever was one.
        """
