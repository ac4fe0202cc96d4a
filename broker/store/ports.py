"""What the broker asks of a store. One contract suite (`tests/broker/store`) holds every
implementation to this page.

The rule of it all: **a replica commits what it decided only if nobody else committed first**, and
what changes often is fenced where it is written.

- A queue's changes are committed under its revision: `commit` succeeds only if the stored revision
  is the one that the replica had seen (`Conflict` otherwise, and nothing is written). The records
  of the change and the rows that they touched are written together, so a queue can be caught up
  with by records or loaded from rows, with equal results.
- Positions and leases are in rows alone. `commit_positions` and `renew` touch no revision; they
  name the epoch and the flow they act for in their WHERE clause. A change that relies on them (a
  release with its position, the expiry of a lease) is fenced the same way inside `commit`, which
  then says so (`LeaseRenewed`, `PositionBehind`) and writes nothing, so that the replica can decide
  again.
- All times are the store's own (`pulse` tells them), never a replica's. Times are Unix seconds as
  floats.

Any method raises `StoreUnavailable` when the store cannot be reached; a `commit` that raises it may
or may not have been carried out: `entries_after` tells by the `commit_id`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.core.access import ALL_QUEUES
from broker.core.commands import Result
from broker.core.state.model import Flow, Partition
from broker.core.state.queue import Queue
from broker.core.state.records import Entry
from broker.store.key_ports import Act, KeyStore


class StoreError(Exception):
    """Base of what a store raises."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or did not answer in time."""


class Conflict(StoreError):
    """Another replica committed first."""


class QueueGone(StoreError):
    """The queue was deleted."""


class NameTaken(StoreError):
    """A queue of this name exists."""


class FlowsBound(StoreError):
    """The queue cannot be deleted while flows are bound to it."""


class LeaseRenewed(StoreError):
    """Leases that were to expire were renewed meanwhile; nothing was committed."""

    def __init__(self, flow_ids: frozenset[str]) -> None:
        super().__init__(f"{len(flow_ids)} leases were renewed")
        self.flow_ids = flow_ids


class PositionBehind(StoreError):
    """Writes to these partitions were refused, usually because a later call of the same flow has
    set the position already (by `seq`); nothing was committed.
    """

    def __init__(self, partitions: frozenset[int]) -> None:
        super().__init__(f"{len(partitions)} positions were refused")
        self.partitions = partitions


class Overdue(StoreError):
    """The commit came when it was not `valid`; nothing was committed."""


@dataclass(frozen=True, slots=True)
class PositionWrite:
    """A position that goes with a release: applied only while `flow_id` owns the partition in this
    epoch.

    `seq` None: applied as it comes; else only if it is higher than the last one in this epoch.
    `position` None: the position stays as it is, only the fence holds.
    """

    partition: int
    epoch: int
    flow_id: str
    position: str | None
    seq: int | None


@dataclass(slots=True)
class Commit:
    """One transaction on one queue. The queue is as it is to be; `partitions` and `flows` are those
    that changed.

    - `seen`: the revision the decisions were made on; `entries` are `seen` + 1 and so on, in order.
    - `partitions`: rows to write whole but for position and seq; an epoch that rises sets seq to
      null.
    - `flows`: rows to insert or update; `token_hashes` holds those of the new ones, whose lease
      begins. A flow that was bound and left within the commit is in `flows` and in `left`, so that
      its client can be told what became of it.
    - `left`: flows that are gone, with the reason; their rows stay for a while. `expired` are those
      among them that may go only if their lease is over by the store's clock (see `expiries`).
    - `renewed`: flows whose leases begin anew, as they called. (Expired ones that are still bound
      come back by it.)
    - `writes`: positions that go with releases, fenced; they are applied before the partitions'
      rows change.
    - `positions`: positions set by an administrator, unfenced.
    - `first_positions`: where partitions begin that have no position yet.
    - `acts`: administrative calls that were carried out, for the audit.
    - `next_deadline`: when the queue must be advanced, for the sweep.
    - `valid`: the commit holds only if the store carries it out between these times (by its clock,
      waits for locks counted), for deadlines in it run from when it was decided.
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
    first_positions: Mapping[int, str] = field(default_factory=dict)
    acts: Sequence[Act] = ()
    next_deadline: float | None = None
    valid: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which no replica served, or in which the store's clock was set, noticed by whoever
    came first. Negative `seconds`: the clock went back.
    """

    id: int
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """The store's time, and the latest outage there was."""

    now: float
    outage: Outage | None


@dataclass(frozen=True, slots=True)
class Lease:
    """A flow's lease, and the revision at which its view last changed."""

    expires_at: float
    view_revision: int


@dataclass(frozen=True, slots=True)
class FlowRow:
    """What is known of a flow whether it is bound or not; `reason` is None while it is bound."""

    flow_id: str
    queue_id: str
    token_hash: bytes
    reason: str | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue for listings: the queue without its partitions, and its counts."""

    queue: Queue
    operational_partition_count: int
    scale_status: str
    flow_count: int
    active_flow_count: int


@dataclass(frozen=True, slots=True)
class PositionCommit:
    """One partition of a commit, see `commit_positions`."""

    queue_id: str
    flow_id: str
    seq: int | None
    partition: int
    epoch: int
    position: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """The flows of a queue whose leases are over, and when the next lease ends (None: no other
    flow).
    """

    expired: tuple[str, ...]
    next_at: float | None


class Store(Protocol):
    """Queues, flows, partitions and their records."""

    @property
    def keys(self) -> KeyStore:
        """Keys, sessions and the audit."""

    async def start(self) -> None:
        """Opens connections. Raises StoreUnavailable."""

    async def stop(self) -> None:
        """Closes them."""

    async def pulse(self, gap_seconds: float = 3.0) -> Pulse:
        """Stamps that a replica serves, and tells the time.

        If the last stamp is older than `gap_seconds`, nobody served since: the leases that were
        alive then begin anew and the outage is recorded, in one transaction, by exactly one
        replica. So it is if the last stamp lies in the future by more than that: the clock went
        back, and all leases begin anew.
        """

    async def create(self, commit: Commit) -> None:
        """Inserts a new queue with its partitions and first records. Raises NameTaken."""

    async def delete(self, queue_id: str, *, force: bool, act: Act | None = None) -> None:
        """Deletes a queue and all of it, and records the act.

        Raises FlowsBound unless `force`, QueueGone.
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
        """The committed revisions of those of these queues that exist."""

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        """What was committed after `revision`, in order, of that the first `limit` entries.

        Raises QueueGone; KeyError if it is not kept any more.
        """

    async def history(self, queue_id: str, limit: int, before: int | None) -> Sequence[Entry]:
        """The entries of the newest `limit` rebalances with an id below `before`, oldest entry
        first.
        """

    async def commit(self, commit: Commit) -> None:
        """Commits. Raises Conflict, QueueGone, LeaseRenewed, PositionBehind or Overdue, and then
        nothing is written.
        """

    async def expiries(self, queue_id: str) -> Expiry:
        """Whose leases are over.

        No lease is over while nobody serves: not before the first `pulse`, nor while the last one
        is older than its `gap_seconds`. So who wakes up after an outage cannot expire a flow before
        `pulse` has noticed it.
        """

    async def renew(self, flow_ids: Sequence[str]) -> Mapping[str, Lease | None]:
        """Begins the leases of these flows anew; flows that are not bound are missing from the
        answer.

        Waits for nobody: None means that another transaction holds the flow (it may be that of a
        frozen replica); ask again.
        """

    async def commit_positions(self, items: Sequence[PositionCommit]) -> Sequence[Result | None]:
        """Commits positions and renews the leases of the flows named, in one transaction; one
        result per item.

        Items are fenced by flow and epoch in the statement itself; results as in the contract,
        *HTTP*. Waits for nobody: None means that nothing was done for this item, because another
        transaction holds its partition or its flow; ask again.
        """

    async def positions(
        self, queue_id: str, partitions: Sequence[int] | None = None
    ) -> Mapping[int, tuple[int, str | None]]:
        """The epoch and the last committed position of each; None: of all there ever were."""

    async def leases(self, flow_ids: Sequence[str]) -> Mapping[str, float]:
        """When leases of bound flows end."""

    async def flow(self, flow_id: str) -> FlowRow | None:
        """What is known of a flow, also for 24 hours after it left."""

    async def outages(self, after: int) -> Sequence[Outage]:
        """The outages with an id above `after`, in order."""

    async def due(self, limit: int) -> Sequence[str]:
        """Queues with something to do: their next deadline has come or was set by a clock that went
        back since, or a lease is over.
        """

    async def purge(self, flows_before: float, records_before: float) -> None:
        """Forgets flows that left and records committed before these times (the newest record of a
        queue stays).
        """

    async def notify(self, queue_ids: Sequence[str]) -> None:
        """Tells the other replicas that these queues changed; best effort."""

    def listen(self) -> AsyncIterator[Sequence[str] | None]:
        """Queues changed by other replicas; None: something may have been missed, look at
        everything.
        """
