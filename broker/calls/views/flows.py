"""What flows ask and see.

A call may have 100,000 items. These are named tuples, which are made several times faster than
frozen dataclasses.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.logs.ports import LogAccess


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
    no ordered resizes.
    """

    queue: str
    flow_id: str
    revision: int
    active: bool
    draining: bool
    now: float
    partitions: tuple[PartitionInUpdate, ...]
    resize: int | None = None


@dataclass(frozen=True, slots=True)
class BoundView:
    """The answer to bind. `flow_token` is only here; the service stores only its hash."""

    flow_id: str
    flow_token: str = field(repr=False)
    queue_id: str
    lease_seconds: float
    log: str
    start: str
    log_access: LogAccess | None
    update: UpdateView


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """`revision` is that of the flow's view; a client with an older view fetches the new one."""

    lease_expires_at: float
    revision: int


class CommitItem(NamedTuple):
    """`reached_cut`: everything before the partition's cut is processed."""

    partition: int
    epoch: int
    position: str
    reached_cut: bool = False


class ReleaseItem(NamedTuple):
    """`position` None releases at the last committed one."""

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False
    reached_cut: bool = False


class NewChild(NamedTuple):
    """A partition that begins where its parents end; `parents` are keys.

    `partition` None: the queue's next number. `position` None: it begins at its first message.
    """

    key: str
    parents: tuple[str, ...]
    partition: int | None = None
    position: str | None = None


class ChildrenItem(NamedTuple):
    """What comes after a partition; `position` None leaves the last committed one."""

    partition: int
    epoch: int
    position: str | None = None
    finished: bool = False
    children: tuple[NewChild, ...] = ()


class ReadyItem(NamedTuple):
    partition: int
    epoch: int


class Result(NamedTuple):
    """`current_epoch` only with `stale_epoch`."""

    partition: int
    outcome: str
    current_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ResultsView:
    """One result per item of the call, in order, and the flow's view afterwards."""

    results: tuple[Result, ...]
    update: UpdateView
