"""What changed, in the past tense: the only thing that `replay` understands and that the store
keeps.

The records of one entry are committed together under one revision of the queue. Replicas that
missed them replay them, the event stream publishes them and the history is read from them, so each
says all that those need. Times are Unix seconds by the database's clock.

Records come from the rebalance loop and from what flows and administrators do; from partitions of a
dynamic queue that begin, wait, end and go (the contract, *Lineage*); and from ordered resizes
(`broker.core.barriers`). Neighbours that say the same of several partitions are stored as one
record (`draft.merged`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.core.model import DEFAULT_WEIGHT, HandedOver


class Grant(NamedTuple):
    """One grant of ownership.

    `previous` is the flow that owned the partition last (None: none did), `seconds` how long the
    partition paused: it was being handed off or without an owner, or its owner was silent before
    that (None: it never had an owner). `by_handoff`: whether a handoff ended with it.
    """

    partition: int
    previous: str | None
    flow_id: str
    epoch: int
    handed_over: str
    seconds: float | None
    by_handoff: bool

    @property
    def by_force(self) -> bool:
        """Whether a handoff ended at its deadline. A grant without a handoff is `forced` where
        positions were set meanwhile."""
        return self.by_handoff and self.handed_over == HandedOver.FORCED


class Move(NamedTuple):
    """The beginning of one handoff."""

    partition: int
    owner: str
    successor: str


class Ended(NamedTuple):
    """A handoff that ended without a grant, in its owner's epoch; `seconds` as in `Grant`."""

    partition: int
    owner: str
    successor: str
    epoch: int
    seconds: float


class Redirect(NamedTuple):
    """A handoff's new successor; None while there is nobody to take the partition."""

    partition: int
    successor: str | None


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Settings have new values."""

    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FlowBound:
    """A flow was bound.

    `bind_number` is its place in the order of binding; a replacement has that of its predecessor.
    `held_until`: until then it is held back. `moved`: what counts of the moves of its key, None: as
    much as before (`budget`). `keeps_state`, `weight` and `max_partitions`: as of `Bind`.
    """

    flow_id: str
    instance_id: str
    client_name: str
    bind_number: int
    lease_seconds: float
    warmup: bool
    at: float
    binder: str | None = None
    attempt: int = 0
    key_id: str | None = None
    held_until: float | None = None
    moved: float | None = None
    keeps_state: bool = False
    weight: int = DEFAULT_WEIGHT
    max_partitions: int | None = None


@dataclass(frozen=True, slots=True)
class FlowsAdmitted:
    """Flows that were held back take part in the balance from now on."""

    flow_ids: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class FlowLeft:
    """A flow is gone; what it owned has no owner.

    `remember`: a holddown runs in which it may come back. `seen_at`: the last renewal of a lease
    that expired.
    """

    flow_id: str
    reason: str
    remember: bool
    at: float
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class FlowDraining:
    """A flow is leaving in order. After `deadline` warm-ups of its successors are cut short."""

    flow_id: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class HolddownStarted:
    """The quiet wait began.

    `flows_before` is the number of non-draining flows before the trigger.
    """

    trigger: str
    until: float
    flows_before: int
    at: float


@dataclass(frozen=True, slots=True)
class HolddownSettled:
    """The number of flows was again what it was and the queue balanced, so no rebalance was
    needed.
    """

    at: float


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """The loop began to work the assignment to balance."""

    rebalance_id: int
    trigger: str
    at: float


@dataclass(frozen=True, slots=True)
class PairsFirst:
    """Until then the loop hands over pairs alone; None: from now on all that the balance needs.

    `flows_before` is the number of non-draining flows before the first of those that wait.
    """

    until: float | None
    flows_before: int


@dataclass(frozen=True, slots=True)
class RebalanceFinished:
    """The queue is balanced."""

    at: float


@dataclass(frozen=True, slots=True)
class GrantedOutside:
    """The grants that follow happened outside of a rebalance; in the history they are an entry of
    their own.
    """

    rebalance_id: int
    trigger: str
    at: float


@dataclass(frozen=True, slots=True)
class Granted:
    """Flows became owners of partitions, each with an epoch one higher than before."""

    grants: tuple[Grant, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Released:
    """A draining owner let go of a partition for which there was no successor."""

    partition: int
    flow_id: str
    at: float


@dataclass(frozen=True, slots=True)
class ReleasedInPart:
    """An owner let go of one of several aligned partitions. It still has the others, with which
    this one changes hands."""

    partition: int


@dataclass(frozen=True, slots=True)
class WarmupsStarted:
    """Handoffs began with the successor restoring its state while the owner goes on working."""

    moves: tuple[Move, ...]
    deadline: float
    at: float


@dataclass(frozen=True, slots=True)
class RevokesStarted:
    """Handoffs began: the owners are to finish and release."""

    moves: tuple[Move, ...]
    deadline: float
    at: float


@dataclass(frozen=True, slots=True)
class WarmupsEnded:
    """Warm-ups are over, `ready` (the successors said so) or not; the owners are to finish and
    release.
    """

    partitions: tuple[int, ...]
    ready: bool
    deadline: float
    at: float


@dataclass(frozen=True, slots=True)
class WarmupsReady:
    """The successors are ready for these, and not yet for others of their groups (`rebalancer`,
    *Aligned partitions*)."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandoffsRedirected:
    """Handoffs have other successors.

    `deadline` is that of the new successor's warm-up, None while revoking.
    """

    redirects: tuple[Redirect, ...]
    deadline: float | None
    at: float


@dataclass(frozen=True, slots=True)
class HandoffsCalledOff:
    """Handoffs that were still warming are not needed any more; the owners noticed nothing."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Partitions `first` to `end` - 1 exist (again).

    Retiring ones among them were taken back as they are.
    """

    first: int
    end: int
    at: float


@dataclass(frozen=True, slots=True)
class PartitionsRetired:
    """Owners drain these partitions to their ends and finish them."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionsRemoved:
    """Partitions are gone: `finished` by their owners or `discarded` with whatever they held.

    `ended` are the handoffs that end with them.
    """

    partitions: tuple[int, ...]
    ended: tuple[Ended, ...]
    outcome: str
    at: float


@dataclass(frozen=True, slots=True)
class EpochsRaised:
    """The owners of these partitions keep them under a new epoch.

    `forced`: an administrator set positions. `replaced`: the partitions retire again, and work that
    was planned under the epoch before counts.
    """

    partitions: tuple[int, ...]
    at: float
    handed_over: str = HandedOver.FORCED


@dataclass(frozen=True, slots=True)
class Paused:
    """Partitions, with none named the whole queue, are paused; or they were, and `until` and
    `reason` are others (`pauses`)."""

    partitions: tuple[int, ...]
    until: float | None
    reason: str | None
    at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pauses of partitions, with none named the queue's own, are over.

    `why`: `resumed` (an administrator did it) or `ended` (their time came).
    """

    partitions: tuple[int, ...]
    why: str
    at: float


@dataclass(frozen=True, slots=True)
class Pinned:
    """Partitions, of groups the first, are pinned to the consumer of this name (`pins`); or they
    were, and the name or the `reason` is another. `since` when they are pinned to it."""

    partitions: tuple[int, ...]
    client_name: str
    reason: str | None
    since: float


@dataclass(frozen=True, slots=True)
class Unpinned:
    """Partitions, of groups the first, are pinned no longer."""

    partitions: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DeadlinesMoved:
    """Nobody served for a while: deadlines of handoffs that were still to come moved by as much."""

    outage_id: int
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockWentBack:
    """The store's clock went back: every deadline moved by `seconds`, which are negative."""

    outage_id: int
    seconds: float


# Partitions that begin, wait, end and go (the contract, *Lineage*)


class Child(NamedTuple):
    """A new partition: its number, its key, and the keys of the partitions that it follows; a root
    follows none."""

    partition: int
    key: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildrenAdded:
    """Partitions exist. Each waits until its wait is said to be over, even if it has nothing to
    wait for."""

    children: tuple[Child, ...]
    at: float


@dataclass(frozen=True, slots=True)
class WaitsEnded:
    """All parents of these partitions are finished. They have no owner yet."""

    partitions: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class PartitionFinished:
    """The owner has processed the partition to its end. A handoff of it ends."""

    partition: int
    flow_id: str
    at: float


@dataclass(frozen=True, slots=True)
class FinishedRemoved:
    """No unfinished partition follows these any more: only their keys are remembered."""

    partitions: tuple[int, ...]
    at: float


# Ordered resizes (`broker.core.barriers`)


class Cut(NamedTuple):
    """The cut of one partition, and whether everything before it is processed."""

    partition: int
    cut: str
    reached: bool


@dataclass(frozen=True, slots=True)
class CutsAwaited:
    """There was a resize, or there may have been one, of which the log's cuts are not known yet.

    They are read from the log at once, and again at `due`; `attempt` counts how often that came.
    """

    due: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CutsTaken:
    """The log said where its resize number `resize` has cut the partitions.

    The barriers are in force with it.
    """

    resize: int
    resized_from: int
    resized_to: int
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class CutsReached:
    """These partitions are processed up to their cuts."""

    partitions: tuple[int, ...]


# All of them

Record = (
    SettingsChanged
    | FlowBound
    | FlowsAdmitted
    | FlowLeft
    | FlowDraining
    | HolddownStarted
    | HolddownSettled
    | RebalanceStarted
    | PairsFirst
    | RebalanceFinished
    | GrantedOutside
    | Granted
    | Released
    | ReleasedInPart
    | WarmupsStarted
    | RevokesStarted
    | WarmupsEnded
    | WarmupsReady
    | HandoffsRedirected
    | HandoffsCalledOff
    | PartitionsAdded
    | PartitionsRetired
    | PartitionsRemoved
    | EpochsRaised
    | Paused
    | Resumed
    | Pinned
    | Unpinned
    | DeadlinesMoved
    | ClockWentBack
    | CutsAwaited
    | CutsTaken
    | CutsReached
    | ChildrenAdded
    | WaitsEnded
    | PartitionFinished
    | FinishedRemoved
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is committed under one revision, decided at the time `at`.

    `rebalance_id` is the entry of the history that it belongs to, if any. `commit_id` is known when
    it is read from the store: that of the transaction that it came in.
    """

    revision: int
    at: float
    records: tuple[Record, ...]
    rebalance_id: int | None = None
    commit_id: str = ""
