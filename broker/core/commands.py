"""What can be done with a queue.

`decide` answers with records; ids, names and times come from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from broker.core.model import DEFAULT_WEIGHT


class Quota(NamedTuple):
    """How much one key may do in one queue.

    So many `flows` may be bound at a time. In an hour they may take so many `moves`, times the
    number of partitions, from flows of other keys (`budget`), and `least_moves` of a small queue.
    """

    flows: int
    moves: int
    least_moves: int = 100


class Outcome(StrEnum):
    """What became of one item of a call (the contract, *HTTP*); only `ok` changes anything."""

    OK = "ok"
    NO_SUCH_PARTITION = "no_such_partition"
    STALE_EPOCH = "stale_epoch"
    NOT_OWNER = "not_owner"
    NOT_REVOKING = "not_revoking"
    NOT_WARMING = "not_warming"
    NOT_ENDED = "not_ended"
    UNKNOWN_PARENT = "unknown_parent"
    CONFLICTING_CHILD = "conflicting_child"
    TOO_MANY_PARTITIONS = "too_many_partitions"


class Result(NamedTuple):
    """The outcome for one partition; `current_epoch` goes with `stale_epoch`."""

    partition: int
    outcome: Outcome
    current_epoch: int | None = None


class CommitItem(NamedTuple):
    """The position up to which the owner has processed one partition in this epoch.

    It changes no assignment, so it becomes no command and goes to the store alone. `reached_cut`:
    the owner says that the position is at the partition's cut or past it. `done_above` is stored
    with the position.
    """

    partition: int
    epoch: int
    position: str
    reached_cut: bool = False
    done_above: str | None = None


class ReadyItem(NamedTuple):
    """One partition whose state the successor has restored; `epoch` is the owner's."""

    partition: int
    epoch: int


class LogCut(NamedTuple):
    """Where a resize has cut a partition, and whether everything before it is processed.

    That follows from the position in this epoch; None: there is nothing before the cut.
    """

    partition: int
    cut: str
    reached: bool
    epoch: int | None = None


class NewChild(NamedTuple):
    """A partition that begins where its parents end.

    `parents` are keys. `partition` is the number that it has in its log; None: the next of the
    queue. `position` is where it begins; None: at its first message.
    """

    key: str
    parents: tuple[str, ...]
    partition: int | None = None
    position: str | None = None


class ReleaseItem(NamedTuple):
    """One partition to let go: the owner has finished what was outstanding of it in this epoch.

    `position` is stored with it; None leaves the last committed one. `reached_cut`, `done_above`:
    see `CommitItem`; `reaches` is the resize whose cut the position does reach. `children` are what
    the log says comes after a finished partition. `against`: what the log says against the item; it
    is the outcome, unless another comes first.
    """

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False
    reached_cut: bool = False
    done_above: str | None = None
    reaches: int | None = None
    children: tuple[NewChild, ...] = ()
    against: Outcome | None = None


class ChildrenItem(NamedTuple):
    """What comes after one partition, and whether its owner has processed it to its end.

    `position` is stored with it; None leaves the last committed one. `against`: as of a
    `ReleaseItem`.
    """

    partition: int
    epoch: int
    children: tuple[NewChild, ...] = ()
    finished: bool = False
    position: str | None = None
    against: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A consumer joins.

    `flow_id` is new; an instance that is bound already is replaced, but not by a bind that the same
    program (`binder`) sent before the one that it is bound by: `attempt` is one higher with each.
    An instance belongs to the key that bound it (None: bound without one). `quota` limits what
    belongs to the key; None, and without a key: nothing does. `at_once`: without a holddown if no
    other flow is bound. `keeps_state`: what it has made of the messages is outside of the queue and
    is not handed over. `weight` and `max_partitions`: its share of the partitions (`shares`).
    Answer: None. Raises Invalid, Overtaken, StateKept, TooManyFlows.
    """

    flow_id: str
    instance_id: str
    client_name: str
    lease_seconds: float
    warmup: bool = False
    binder: str | None = None
    attempt: int = 0
    key_id: str | None = None
    quota: Quota | None = None
    at_once: bool = False
    keeps_state: bool = False
    weight: int = DEFAULT_WEIGHT
    max_partitions: int | None = None

    @property
    def is_weighted(self) -> bool:
        """As of `Flow`."""
        return self.weight != DEFAULT_WEIGHT or self.max_partitions is not None


@dataclass(frozen=True, slots=True)
class BindTogether:
    """Several instances join, none of which was bound or has left partitions. The balance is
    decided once, after the last: the first ones get nothing that they would hand over to the next.

    Answer: a tuple with the BrokerError of each, as of `Bind`, or None.
    """

    binds: tuple[Bind, ...]


@dataclass(frozen=True, slots=True)
class Unbind:
    """A flow leaves: it said so, an administrator did (`unbound`), its lease expired
    (`lease_expired`), its key ended (`key_ended`), or the driver of its Spark query is gone
    (`driver_lost`).

    `seen_at` is the last renewal of a lease that expired: its partitions pause since then.
    """

    flow_id: str
    reason: str = "unbound"
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """An owner lets partitions go. Answer: a tuple of `Result`, one per item in order."""

    flow_id: str
    items: tuple[ReleaseItem, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A successor has restored the state of partitions.

    Answer: a tuple of `Result`, one per item in order.
    """

    flow_id: str
    items: tuple[ReadyItem, ...]


@dataclass(frozen=True, slots=True)
class Children:
    """Owners report what comes after partitions of theirs, and finish them (the contract,
    *Lineage*).

    Answer: a tuple of `Result`, one per item in order. Raises Invalid for a fixed queue.
    """

    flow_id: str
    items: tuple[ChildrenItem, ...]


@dataclass(frozen=True, slots=True)
class AddChildren:
    """An administrator split or merged partitions in the log, so these come after them. All of
    them are added or none.

    Answer: the outcome (`Outcome`), of all. Raises Invalid for a fixed queue.
    """

    children: tuple[NewChild, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """A flow is to hand over all it owns and take nothing new. Harmless when repeated."""

    flow_id: str
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Settings are to have new values; `partition_count` is the resize.

    `checked` is the partition count that the queue had, and the resize of which it knew the cuts,
    when the other readers of its log were found settled; None if that does not matter.

    Raises Invalid for exclusive access while a flow with a maximum is bound, StateKept for shared
    access while a flow that keeps state is bound, ResizeUnsettled for
    another resize of a queue with ordered resizes before the last one is
    settled, and LogChanged if the queue was resized since it was `checked`.
    """

    changes: Mapping[str, Any]
    discard: bool = False
    checked: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FollowLog:
    """The log has this partition count since its resize number `resize`, and the queue, which has
    ordered resizes and does not own the log, is to have it too.

    Nothing changes if the queue knows the cuts of this resize or of a later one. So a call that
    comes late takes no newer count back. Harmless when repeated.
    """

    resize: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class PausePartitions:
    """An administrator holds partitions still, with none named the whole queue (`pauses`).

    `until` (Unix seconds): when that ends by itself; None: when it is resumed. `seconds`: so long
    from now, instead. `reason`: for people. Harmless when repeated. Raises Invalid for a time that
    is over, and for a partition that nobody reads, now or later.
    """

    partitions: tuple[int, ...] = ()
    until: float | None = None
    seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResumePartitions:
    """An administrator ends the pauses of these partitions, with none named the queue's own.

    Harmless when repeated. Raises Invalid for a partition that nobody reads, now or later.
    """

    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PinPartition:
    """An administrator pins the partition, and its group, to the consumer of this name (`pins`).

    `reason`: for people. Harmless when repeated. Raises Invalid for a partition that nobody reads,
    now or later.
    """

    partition: int
    client_name: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class UnpinPartition:
    """An administrator ends the pin of the partition, and of its group.

    Harmless when repeated. Raises Invalid for a partition that nobody reads, now or later.
    """

    partition: int


@dataclass(frozen=True, slots=True)
class RebalanceNow:
    """An administrator wants the rebalance at once, without the rest of the holddown."""


@dataclass(frozen=True, slots=True)
class TakeCuts:
    """The log says where its resize number `resize` has cut the partitions. Harmless when
    repeated."""

    resize: int
    resized_from: int
    resized_to: int
    cuts: tuple[LogCut, ...] = ()


@dataclass(frozen=True, slots=True)
class ReachCuts:
    """Committed positions of partitions, each in an epoch, are at the cuts of this resize or past
    them. Harmless when repeated.
    """

    resize: int
    items: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RaiseEpochs:
    """An administrator sets the positions of these partitions, so what goes on goes on under new
    epochs.

    `cuts` are those of the log's last resize, and which of them are reached when the positions are
    set.
    """

    partitions: tuple[int, ...]
    cuts: TakeCuts | None = None


@dataclass(frozen=True, slots=True)
class Advance:
    """Time has passed: do what is due. No caller sends it.

    `seen_at`: the last renewals of flows, by id. A partition whose owner did not renew its lease
    since the revoke, which ends by force now, pauses since then.
    """

    seen_at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoveDeadlines:
    """Nobody served from `began` on for `seconds`: handoffs that were under way get that time
    back. Negative `seconds`: the store's clock went back, and every deadline goes back with it.
    """

    outage_id: int
    began: float
    seconds: float


Command = (
    Bind
    | BindTogether
    | Unbind
    | Release
    | Ready
    | Children
    | AddChildren
    | Drain
    | Change
    | FollowLog
    | TakeCuts
    | ReachCuts
    | RebalanceNow
    | PausePartitions
    | ResumePartitions
    | PinPartition
    | UnpinPartition
    | RaiseEpochs
    | Advance
    | MoveDeadlines
)
