"""The requests that make and change queues."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from api.schemas.common import (
    DECEPTIVE,
    MOST_ROOTS,
    Key,
    PartitionKey,
    Position,
    QueueName,
    RequestModel,
    left_out,
    like,
)
from broker.core.model import MOST_PARTITIONS, MOST_WEIGHT
from counterpoise.logs.address import refuse_credentials
from counterpoise.wire import ALIGNED_PATTERN

_NAMES = ALIGNED_PATTERN.strip("^$")
LOG_PATTERN = rf"^(builtin:{_NAMES}|[a-z][a-z0-9+.-]{{1,30}}://[^\s{DECEPTIVE}]{{1,1000}})$"

UNREACHABLE_NAMES = (".", "..")

PartitionCount = Annotated[int, Field(ge=1, le=MOST_PARTITIONS, examples=[8])]
AccessType = Annotated[Literal["exclusive", "non_exclusive"], like("access_type")]
RebalanceDelay = Annotated[float, like("rebalance_delay")]
MaxHandoffTime = Annotated[float, like("max_handoff_time")]
MaxWarmupTime = Annotated[float, like("max_warmup_time")]
MaxConcurrentHandoffs = Annotated[
    Annotated[int, like("max_concurrent_handoffs", "limits")] | None,
    like("max_concurrent_handoffs", "words"),
]
Start = Annotated[Literal["earliest", "latest"], like("start")]
OrderedResize = Annotated[bool, like("ordered_resize")]
AlignWith = Annotated[str, like("align_with")]
MirrorGroup = Annotated[
    Annotated[str, like("mirror_group", "limits")] | None, like("mirror_group", "words")
]
MaxWeight = Annotated[int, like("max_weight")]
RetentionSeconds = Annotated[float, like("retention_seconds")]
RetentionBytes = Annotated[int, like("retention_bytes")]
Partitioning = Annotated[Literal["fixed", "dynamic"], like("partitioning")]


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
        description=f"{like('ordered_resize').description} "
        "Omitted: true where the log can, which the answer says."
    )
    retention_seconds: RetentionSeconds = left_out()
    retention_bytes: RetentionBytes = left_out()
    partitioning: Partitioning = "fixed"
    align_with: AlignWith = left_out()
    mirror_group: MirrorGroup = None
    max_weight: MaxWeight = MOST_WEIGHT
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
    max_weight: MaxWeight = left_out()
    retention_seconds: RetentionSeconds = left_out()
    retention_bytes: RetentionBytes = left_out()
