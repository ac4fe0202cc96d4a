"""The wire models of queues (`api.schemas` explains the rules they follow)."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
)

from api.schemas.common import (
    CUT,
    DECEPTIVE,
    EXAMPLE_QUEUE_ID,
    HELD_UNTIL,
    MOST_ROOTS,
    POSITION_PATTERN,
    REACHED_CUT,
    WAITS_FOR,
    AnswerModel,
    Epoch,
    Key,
    Page,
    PartitionKey,
    PartitionNumber,
    Position,
    QueueName,
    RebalanceStatusName,
    RequestModel,
    ShownPosition,
    Time,
    absent,
    left_out,
)
from broker.core.model import MOST_PARTITIONS
from broker.logs.retention import MOST_BYTES, MOST_SECONDS
from counterpoise.logs.address import MOST_ALIGNED, refuse_credentials

_NAME = "[A-Za-z0-9._-]{1,200}"
_NAMES = rf"{_NAME}(\+{_NAME}){{0,{MOST_ALIGNED - 1}}}"
LOG_PATTERN = rf"^(builtin:{_NAMES}|[a-z][a-z0-9+.-]{{1,30}}://[^\s{DECEPTIVE}]{{1,1000}})$"

UNREACHABLE_NAMES = (".", "..")

EXAMPLE_QUEUE: dict[str, JsonValue] = {
    "id": EXAMPLE_QUEUE_ID,
    "name": "flights",
    "partition_count": 8,
    "operational_partition_count": 8,
    "access_type": "non_exclusive",
    "rebalance_delay": 5.0,
    "max_handoff_time": 3.0,
    "max_warmup_time": 600.0,
    "max_concurrent_handoffs": None,
    "log": "builtin:flights",
    "start": "earliest",
    "ordered_resize": True,
    "retention_seconds": 86400.0,
    "retention_bytes": 1073741824,
    "rebalance_status": "Ready",
    "scale_status": "Ready",
    "flow_count": 3,
    "active_flow_count": 3,
    "revision": 42,
    "created_at": "2026-11-20T09:00:00.000Z",
    "partitioning": "fixed",
    "mirror_group": None,
}

ScaleStatusName = Literal["Ready", "ScalingUp", "ScalingDown"]
PartitionState = Literal[
    "unassigned", "owned", "warming", "revoking", "retiring", "waiting", "finished"
]
PartitionCount = Annotated[int, Field(ge=1, le=MOST_PARTITIONS, examples=[8])]
AccessType = Annotated[
    Literal["exclusive", "non_exclusive"],
    Field(
        description="`exclusive`: the earliest-bound flow owns every partition, the others stand "
        "by."
    ),
]
RebalanceDelay = Annotated[
    float,
    Field(
        ge=0,
        le=3600,
        description="The holddown, in seconds: the wait between a trigger and the rebalance.",
    ),
]
MaxHandoffTime = Annotated[
    float,
    Field(
        ge=0,
        le=3600,
        description="How long, in seconds, an owner may take to finish the outstanding messages of "
        "a partition that is being handed off.",
    ),
]
MaxWarmupTime = Annotated[
    float,
    Field(ge=0, le=86400, description="How long, in seconds, a successor may take to warm up."),
]
MaxConcurrentHandoffs = Annotated[
    Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] | None,
    Field(description="Null: all at once. Warming counts."),
]


def _without_credentials(log: str) -> str:
    """Refuse credentials in `log`, because it is shown to everybody."""
    refuse_credentials(log)
    return log


def _reachable(name: str) -> str:
    """Refuse `.` and `..`: HTTP clients normalise `/queues/..`, so no request could name it."""
    if name in UNREACHABLE_NAMES:
        raise ValueError(f"{name!r} is a path segment, not a name: choose another")
    return name


NewQueueName = Annotated[
    QueueName,
    AfterValidator(_reachable),
    Field(json_schema_extra={"not": {"enum": [*UNREACHABLE_NAMES]}}),
]
LogName = Annotated[
    str,
    StringConstraints(pattern=LOG_PATTERN),
    AfterValidator(_without_credentials),
    Field(
        description="Where the messages are: `builtin:QUEUE`, or a URL without credentials. With "
        "another queue's log, the queue has independent consumers of the same messages. "
        "`builtin:QUEUE+QUEUE`: the logs of several queues side by side, as with `align_with`.",
        examples=["builtin:flights"],
    ),
]
AlignWith = Annotated[
    str,
    StringConstraints(pattern=f"^{_NAMES}$"),
    Field(
        description="Another queue, whose built-in log is read beside `log` (several: joined by "
        "`+`): one flow owns equal partition numbers of both, and gets and hands over both "
        "together.",
        examples=["payments"],
    ),
]
Start = Annotated[
    Literal["earliest", "latest"],
    Field(
        description="Where the first partitions start: the first message in the log, or its end "
        "when the queue is created. Partitions added later start at the first message."
    ),
]


ORDERED_RESIZE = (
    "Whether a resize keeps the order of each key between partitions: nothing that was published "
    "after it is processed before what it could overtake. For fixed queues on the built-in log."
)
OrderedResize = Annotated[bool, Field(description=ORDERED_RESIZE)]


MirrorGroup = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=249, pattern=POSITION_PATTERN)]
    | None,
    Field(
        description="The consumer group of Kafka into which the positions are mirrored, for tools "
        "that watch groups; null: none. It is never read. For queues on a topic of Kafka.",
        examples=["counterpoise.flights"],
    ),
]


RetentionSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=MOST_SECONDS,
        description="How long, in seconds since its publishing, the queue's own built-in log keeps "
        "a message that every queue has processed. 0: it goes within a minute.",
    ),
]
RetentionBytes = Annotated[
    int,
    Field(
        ge=0,
        le=MOST_BYTES,
        description="How many bytes of such messages the log keeps, about; the newest ones.",
    ),
]
Partitioning = Annotated[
    Literal["fixed", "dynamic"],
    Field(
        description="`fixed`: a number of partitions that `partition_count` sets. `dynamic`: the "
        "source begins and ends partitions, and their owners report it."
    ),
]


class Root(RequestModel):
    """A first partition of a dynamic queue."""

    key: Key


class QueueCreate(RequestModel):
    """A new queue (the contract, *Queue*); omitted settings have their defaults."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "flights", "partition_count": 8}]}
    )

    name: NewQueueName
    partition_count: PartitionCount = left_out(
        description="Required, unless `log` is another queue's: then that queue's count is taken; "
        "or unless the queue is dynamic."
    )
    access_type: AccessType = "non_exclusive"
    rebalance_delay: RebalanceDelay = 5.0
    max_handoff_time: MaxHandoffTime = 3.0
    max_warmup_time: MaxWarmupTime = 600.0
    max_concurrent_handoffs: MaxConcurrentHandoffs = None
    log: LogName | None = Field(default=None, description="Null: `builtin:` and the name.")
    start: Start = "earliest"
    ordered_resize: OrderedResize = left_out(
        description=f"{ORDERED_RESIZE} Omitted: true where the log can, which the answer says."
    )
    retention_seconds: RetentionSeconds = left_out()
    retention_bytes: RetentionBytes = left_out()
    partitioning: Partitioning = "fixed"
    align_with: AlignWith = left_out()
    mirror_group: MirrorGroup = None
    partitions: list[Root] = left_out(
        min_length=1,
        max_length=MOST_ROOTS,
        description="The first partitions of a dynamic queue, each with a key.",
    )
    positions: dict[PartitionKey, Position | None] = left_out(
        min_length=1,
        max_length=MOST_PARTITIONS,
        description="Where partitions of an existing log begin, by number; the others begin as "
        "`start` says. They are stored with the queue, so no consumer begins elsewhere.",
    )


class QueueChange(RequestModel):
    """Settings to change; omitted settings stay. A change applies to what begins after it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partition_count": 12, "max_handoff_time": 10}]}
    )

    partition_count: PartitionCount = left_out()
    access_type: AccessType = left_out()
    rebalance_delay: RebalanceDelay = left_out()
    max_handoff_time: MaxHandoffTime = left_out()
    max_warmup_time: MaxWarmupTime = left_out()
    max_concurrent_handoffs: MaxConcurrentHandoffs = left_out()
    start: Start = left_out()
    ordered_resize: OrderedResize = left_out()
    mirror_group: MirrorGroup = left_out()
    retention_seconds: RetentionSeconds = left_out()
    retention_bytes: RetentionBytes = left_out()


class Queue(AnswerModel):
    """A queue: its settings and its state."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_QUEUE]})

    id: str = Field(description="A queue that is deleted and made again has another id.")
    name: QueueName
    partition_count: int = Field(
        description="The configured count; of a dynamic queue, how many take part in the balance."
    )
    operational_partition_count: int = Field(
        description="Partitions that retire, wait or are finished are included."
    )
    access_type: AccessType
    rebalance_delay: RebalanceDelay
    max_handoff_time: MaxHandoffTime
    max_warmup_time: MaxWarmupTime
    max_concurrent_handoffs: MaxConcurrentHandoffs
    log: str = Field(examples=["builtin:flights"])
    start: Start
    ordered_resize: OrderedResize
    retention_seconds: RetentionSeconds | None = Field(
        description="Null: the queue has no built-in log of its own."
    )
    retention_bytes: RetentionBytes | None
    rebalance_status: RebalanceStatusName
    scale_status: ScaleStatusName
    flow_count: int = Field(description="Bound flows.")
    active_flow_count: int = Field(description="Flows that own at least one partition.")
    revision: int = Field(
        description="+1 at every committed change of settings, status, flows or assignment."
    )
    created_at: Time
    partitioning: Partitioning
    conditions: dict[str, int] | None = Field(
        default=None,
        exclude_if=absent,
        description="How many conditions that consumers report hold, by kind, as `quarantined` or "
        "`log_away`; empty: none.",
        examples=[{"quarantined": 1}],
    )
    align_with: AlignWith | None = Field(default=None, exclude_if=absent)
    mirror_group: MirrorGroup


class QueuePage(Page[Queue]):
    """Queues, by name."""


class Partition(AnswerModel):
    """A partition: its owner and the position up to which it has been processed."""

    partition: PartitionNumber
    epoch: Epoch
    owner: str | None = Field(description="The flow_id of its owner.")
    successor: str | None = Field(description="The flow_id of its next owner during a handoff.")
    state: PartitionState
    position: ShownPosition | None
    deadline: Time | None = Field(description="When its warm-up or handoff ends at the latest.")
    end: ShownPosition | None = Field(
        description="The position of the next message to be appended. Null while the service "
        "cannot ask the log."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        description="The most messages from `position` to `end`; positions may have holes. Null "
        "with `end`, and for a position that the log cannot have."
    )
    lag_seconds: Annotated[float, Field(ge=0)] | None = Field(
        description="How long ago the message at `position` was published. Null if there is none, "
        "and while the log does not say it."
    )
    cut: ShownPosition | None = Field(default=None, exclude_if=absent, description=CUT)
    reached_cut: bool | None = Field(default=None, exclude_if=absent, description=REACHED_CUT)
    waits_for: list[PartitionNumber] | None = Field(
        default=None, exclude_if=absent, description=WAITS_FOR
    )
    key: str | None = Field(
        default=None, description="Names it, in a dynamic queue; null in a fixed one."
    )
    parents: list[str] | None = Field(
        default=None, description="The keys of the partitions that it follows."
    )
    children: list[str] | None = Field(
        default=None, description="The keys of the partitions that follow it, as far as known."
    )


class PartitionPage(Page[Partition]):
    """Partitions, by number."""


class FlowSummary(AnswerModel):
    """A bound flow."""

    flow_id: str
    client_name: str
    instance_id: str
    active: bool = Field(description="Owns at least one partition.")
    draining: bool
    partitions: int = Field(description="The number of partitions that it owns.")
    key_id: str | None = Field(
        description="The public id of the key that bound it; null: bound without one."
    )
    bound_at: Time
    lease_expires_at: Time
    held_until: Time | None = Field(default=None, exclude_if=absent, description=HELD_UNTIL)


class FlowPage(Page[FlowSummary]):
    """Flows, in the order of binding."""
