"""Arguments and results of the facade (`broker.service.Broker`) that are no documents of the API.

What it answers to callers are the documents themselves (`counterpoise.wire`). Here are the settings
of a new queue, and what only the service sees. Times are Unix seconds by the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.core.model import MOST_WEIGHT


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
    max_weight: int = MOST_WEIGHT


@dataclass(frozen=True, slots=True)
class LagView:
    """How many messages of a queue are not processed yet, at most, and the age of the oldest.
    Partitions that are paused do not count: nobody is to process them now.

    `messages` is the sum over the partitions whose lag is known; `unknown`: the number of others.
    `seconds`: the largest age of a partition's next message, 0 if nothing is unread, None if the
    age of no such message is known. `partitions`: by number; empty for a queue with many.
    """

    messages: int
    unknown: int
    seconds: float | None
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class EventView:
    """One committed revision: what changed, each as a mapping with its `type`, JSON-ready.

    All followers of the queue get the same view, so that it is rendered once. Times inside
    `changes` are Unix seconds; they are known by their names (`broker.calls.times.with_times`).
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
