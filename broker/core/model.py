"""What a queue is made of: settings, partitions, flows and handoffs, as values.

Memory counts: a replica has many queues of up to `MOST_PARTITIONS` partitions, so a partition has
slots for what every partition has, and what few have at a time (a handoff, the time since when
nobody owns it) is kept beside, in `queue`. Positions and leases are not here: they change with
every commit and heartbeat, and live in the store alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from broker.core.structures import Heap
from broker.core.transitions import Life, State

# A queue has no more partitions, so that no decision on all of them takes longer than a caller of
# another queue may wait. More work takes more queues.
MOST_PARTITIONS = 4096
# The largest weight that a flow may have, and the weight of one that names none (`shares`).
MOST_WEIGHT = 1000
DEFAULT_WEIGHT = 1
# The key of a flow (None: bound without one), and its `instance_id`: of two keys, the same name is
# that of two instances.
Instance: TypeAlias = tuple[str | None, str]


class AccessType(StrEnum):
    """Who may own partitions: every flow, or the earliest bound one alone."""

    NON_EXCLUSIVE = "non_exclusive"
    EXCLUSIVE = "exclusive"


class HandedOver(StrEnum):
    """How the previous owner of a partition let go."""

    INITIAL = "initial"
    GRACEFUL = "graceful"
    FORCED = "forced"
    ORPHANED = "orphaned"
    REPLACED = "replaced"


@dataclass(slots=True)
class Settings:
    """The writable properties of a queue (the contract, *Queue*); times in seconds.

    `aligned`: so many partitions in a row have one owner (`Queue.group`); it never changes. The
    retention is None if the queue has no built-in log of its own.
    """

    partition_count: int
    access_type: str = AccessType.NON_EXCLUSIVE
    rebalance_delay: float = 5.0
    max_handoff_time: float = 3.0
    max_warmup_time: float = 600.0
    max_concurrent_handoffs: int | None = None
    log: str = ""
    start: str = "earliest"
    partitioning: str = "fixed"
    ordered_resize: bool = False
    aligned: int = 1
    mirror_group: str | None = None
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    max_weight: int = MOST_WEIGHT


class Partition:
    """One partition. `number` never changes; a removed one stays, so that its epochs go on when it
    comes again.

    `next_handed_over` is the `handed_over` that the next epoch will have, as far as what has
    happened by now decides it; `initial`: nothing has. `released_by` is the flow whose release
    ended the latest epoch (so that a repeated release is recognized), or which left in it (and may
    come back: `Absent`).
    """

    __slots__ = (
        "epoch",
        "handed_over",
        "next_handed_over",
        "number",
        "owner",
        "released_by",
        "retiring",
        "state",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.state = State.UNASSIGNED
        self.retiring = False
        self.owner: Flow | None = None
        self.handed_over: str | None = None
        self.next_handed_over: str = HandedOver.INITIAL
        self.released_by: str | None = None

    @property
    def is_let_go(self) -> bool:
        """Whether its owner has released it, and still works on others of its group."""
        return self.owner is not None and self.next_handed_over == HandedOver.GRACEFUL

    @property
    def is_taken_back(self) -> bool:
        """Whether it was retiring in this epoch, and is no more: if it retires again, its owner
        goes on in a new one."""
        return self.owner is not None and self.next_handed_over == HandedOver.REPLACED

    @property
    def life(self) -> Life:
        """Whether it is to stay."""
        if self.state is State.REMOVED:
            return Life.REMOVED
        return Life.RETIRING if self.retiring else Life.CONFIGURED


class Flow:
    """One consumer's binding.

    `owned` and `incoming` hold partition numbers; `incoming` are on their way to it. `offers` is a
    heap of what it can give, as negative numbers (`Queue.highest_giveable`).

    `held_until`: until then the flow is held back (`budget`), and takes no part in the balance.
    `keeps_state`: it has state that no handoff takes along. `weight`: its share of the partitions,
    compared with those of the others; `max_partitions`: it gets no more than so many (`shares`).
    `pinned`: so many groups have it as their home (`pins`).
    """

    __slots__ = (
        "attempt",
        "bind_number",
        "binder",
        "bound_at",
        "client_name",
        "drain_deadline",
        "draining",
        "held_until",
        "id",
        "incoming",
        "instance",
        "instance_id",
        "keeps_state",
        "key_id",
        "lease_seconds",
        "load",
        "max_partitions",
        "offers",
        "outgoing",
        "owned",
        "pinned",
        "view_revision",
        "warmup",
        "weight",
    )

    def __init__(
        self,
        id: str,
        instance_id: str,
        client_name: str,
        bind_number: int,
        lease_seconds: float,
        warmup: bool,
        bound_at: float,
        binder: str | None = None,
        attempt: int = 0,
        key_id: str | None = None,
        held_until: float | None = None,
        keeps_state: bool = False,
        weight: int = DEFAULT_WEIGHT,
        max_partitions: int | None = None,
    ) -> None:
        self.id = id
        self.instance_id = instance_id
        self.client_name = client_name
        self.bind_number = bind_number
        self.lease_seconds = lease_seconds
        self.warmup = warmup
        self.bound_at = bound_at
        self.binder = binder
        self.attempt = attempt
        self.key_id = key_id
        self.instance: Instance = key_id, instance_id
        self.draining = False
        self.drain_deadline: float | None = None
        self.held_until = held_until
        self.keeps_state = keeps_state
        self.weight = weight
        self.max_partitions = max_partitions
        self.view_revision = 0
        self.owned: set[int] = set()
        self.incoming: set[int] = set()
        self.offers: Heap[int] = Heap()
        self.load = 0
        self.outgoing = 0
        self.pinned = 0

    @property
    def takes(self) -> bool:
        """Takes part in the balance, while it is bound."""
        return not self.draining and self.held_until is None

    @property
    def is_weighted(self) -> bool:
        """Whether its share may differ from that of a flow that asks for nothing."""
        return self.weight != DEFAULT_WEIGHT or self.max_partitions is not None

    @property
    def asks(self) -> tuple[int, int | None]:
        """Weight and maximum: two flows with equal ones have equal shares, but for pins."""
        return self.weight, self.max_partitions

    @property
    def active(self) -> bool:
        """Owns at least one partition, revoking and retiring ones included."""
        return bool(self.owned)


class Handoff:
    """One partition on its way. `warm`: it began with a warm-up, so the successor sees it as
    `warming` until it has it.

    `named` is the flow that was named as successor last, if any; it may be leaving. `since` is when
    the present phase began.
    """

    __slots__ = ("deadline", "named", "number", "since", "warm")

    def __init__(
        self, number: int, successor: Flow | None, deadline: float, since: float, warm: bool
    ) -> None:
        self.number = number
        self.named = successor
        self.deadline = deadline
        self.since = since
        self.warm = warm

    @property
    def successor(self) -> Flow | None:
        """The flow that is to get the partition; None if there is none, or if it is leaving."""
        named = self.named
        return None if named is None or named.draining else named


class Absent:
    """A flow that left during the holddown: if its instance comes back in time it gets back what is
    still unassigned.

    `left` are the partitions that it had; `Queue.still_left` says which of them nobody has had
    since. `weight`, `max_partitions` and `client_name`: as of the flow.
    """

    __slots__ = ("bind_number", "client_name", "flow_id", "left", "max_partitions", "weight")

    def __init__(
        self,
        bind_number: int,
        flow_id: str,
        left: Sequence[int],
        weight: int,
        max_partitions: int | None,
        client_name: str,
    ) -> None:
        self.bind_number = bind_number
        self.client_name = client_name
        self.flow_id = flow_id
        self.left = left
        self.weight = weight
        self.max_partitions = max_partitions


class Pin(NamedTuple):
    """To which consumer a partition is pinned, since when (Unix seconds), and why (`pins`)."""

    client_name: str
    since: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One entry of the history in figures.

    `granted` counts grants without a handoff, `forced` is part of `handoffs`.
    """

    id: int
    trigger: str
    started_at: float
    finished_at: float | None = None
    handoffs: int = 0
    forced: int = 0
    granted: int = 0
