"""What can be asked of a queue.

`decide` answers with records; ids, names and times come from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Outcome(StrEnum):
    """What became of one item of a commit, release or ready (the contract, *HTTP*); only `ok`
    changes anything.
    """

    OK = "ok"
    NO_SUCH_PARTITION = "no_such_partition"
    STALE_EPOCH = "stale_epoch"
    NOT_OWNER = "not_owner"
    NOT_REVOKING = "not_revoking"
    NOT_WARMING = "not_warming"


class Result(NamedTuple):
    """The outcome for one partition; `current_epoch` goes with `stale_epoch`."""

    partition: int
    outcome: Outcome
    current_epoch: int | None = None


class ReleaseItem(NamedTuple):
    """One partition to let go: the owner has finished what was outstanding of it in this epoch."""

    partition: int
    epoch: int
    finished: bool = False


class ReadyItem(NamedTuple):
    """One partition whose state the successor has restored; `epoch` is the owner's."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Bind:
    """A consumer joins.

    `flow_id` is new; an instance that is bound already is replaced, but not by a bind that the same
    program (`binder`) sent before the one that it is bound by: `attempt` is one higher with each.
    An instance belongs to the key that bound it (None: bound without one).
    Answer: None. Raises Overtaken.
    """

    flow_id: str
    instance_id: str
    client_name: str
    lease_seconds: float
    warmup: bool = False
    binder: str | None = None
    attempt: int = 0
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unbind:
    """A flow leaves: it said so, an administrator did (`unbound`), or its lease expired
    (`lease_expired`).
    """

    flow_id: str
    reason: str = "unbound"


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
class Drain:
    """A flow is to hand over all it owns and take nothing new. Harmless when repeated."""

    flow_id: str
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Settings are to have new values; `partition_count` is the resize."""

    changes: Mapping[str, Any]
    discard: bool = False


@dataclass(frozen=True, slots=True)
class RebalanceNow:
    """An administrator wants the rebalance at once, without the rest of the holddown."""


@dataclass(frozen=True, slots=True)
class RaiseEpochs:
    """An administrator sets the positions of these partitions, so what goes on goes on under new
    epochs.
    """

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Time has passed: do what is due, the rest of a decision included. No caller sends it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a decision that was cut off, whatever the time. No caller sends it."""


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
    | Unbind
    | Release
    | Ready
    | Drain
    | Change
    | RebalanceNow
    | RaiseEpochs
    | Advance
    | Resume
    | MoveDeadlines
)
