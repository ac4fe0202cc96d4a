"""The wire models of queues (`api.schemas` explains the rules they follow)."""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from api.schemas.common import (
    EXAMPLE_QUEUE_ID,
    EXAMPLE_TIME,
    MOST_PARTITIONS,
    AnswerModel,
    Epoch,
    Page,
    PartitionNumber,
    Position,
    QueueName,
    RebalanceStatusName,
    RequestModel,
    ShownPosition,
    Time,
    left_out,
)
from counterpoise.logs.address import refuse_credentials

LOG_PATTERN = r"^(builtin:[A-Za-z0-9._-]{1,200}|[a-z][a-z0-9+.-]{1,30}://[^\s\x00-\x1f]{1,1000})$"

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
    "rebalance_status": "Ready",
    "scale_status": "Ready",
    "flow_count": 3,
    "active_flow_count": 3,
    "revision": 42,
    "created_at": "2026-11-20T09:00:00.000Z",
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
        "another queue's log, the queue has independent consumers of the same messages.",
        examples=["builtin:flights"],
    ),
]
Start = Annotated[
    Literal["earliest", "latest"],
    Field(
        description="Where the first partitions start: the first message in the log, or its end "
        "when the queue is created. Partitions added later start at the first message."
    ),
]


class QueueCreate(RequestModel):
    """A new queue (the contract, *Queue*); omitted settings have their defaults."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "flights", "partition_count": 8}]}
    )

    name: NewQueueName
    partition_count: PartitionCount = left_out(
        description="Required, unless `log` is another queue's: then that queue's count is taken."
    )
    access_type: AccessType = "non_exclusive"
    rebalance_delay: RebalanceDelay = 5.0
    max_handoff_time: MaxHandoffTime = 3.0
    max_warmup_time: MaxWarmupTime = 600.0
    max_concurrent_handoffs: MaxConcurrentHandoffs = None
    log: LogName | None = Field(default=None, description="Null: `builtin:` and the name.")
    start: Start = "earliest"


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


class Queue(AnswerModel):
    """A queue: its settings and its state."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_QUEUE]})

    id: str = Field(description="A queue that is deleted and made again has another id.")
    name: QueueName
    partition_count: int = Field(description="The configured count.")
    operational_partition_count: int = Field(description="Retiring partitions included.")
    access_type: AccessType
    rebalance_delay: RebalanceDelay
    max_handoff_time: MaxHandoffTime
    max_warmup_time: MaxWarmupTime
    max_concurrent_handoffs: MaxConcurrentHandoffs
    log: str = Field(examples=["builtin:flights"])
    start: Start
    rebalance_status: RebalanceStatusName
    scale_status: ScaleStatusName
    flow_count: int = Field(description="Bound flows.")
    active_flow_count: int = Field(description="Flows that own at least one partition.")
    revision: int = Field(
        description="+1 at every committed change of settings, status, flows or assignment."
    )
    created_at: Time


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


class FlowPage(Page[FlowSummary]):
    """Flows, in the order of binding."""


# Positions and the log

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _moment(value: object) -> datetime:
    """A time of a request; pydantic would also accept numbers as times."""
    text = value.upper() if isinstance(value, str) else ""
    if not _RFC3339.fullmatch(text) or text < "1970-01-02":
        raise ValueError("should be an RFC 3339 time since 1970, like 2026-11-20T10:00:00Z")
    return datetime.fromisoformat(text)


Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]}),
]
PartitionKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]


class PositionsRequest(RequestModel):
    """The new positions: `to` for every partition, or `positions` for the named ones."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"to": "earliest"}, {"positions": {"0": "1042", "5": None}}],
            "minProperties": 1,
            "maxProperties": 1,
        }
    )

    to: Literal["earliest", "latest"] | Moment = left_out(
        description="An end of the log, or a time: the first message published then or later.",
    )
    positions: dict[PartitionKey, Position | None] = left_out(
        min_length=1,
        max_length=MOST_PARTITIONS,
        description="Positions by partition number.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "PositionsRequest":
        if len(self.model_fields_set) != 1:
            raise ValueError("give either 'to' or 'positions'")
        return self


class PositionSet(AnswerModel):
    partition: PartitionNumber
    epoch: Epoch
    position: ShownPosition | None
    previous: ShownPosition | None = Field(
        default=None, description="In a dry run, the position as it is. Null without one."
    )
    read_again: int | None = Field(
        default=None,
        description="In a dry run, the most messages before `previous` that would be read again. "
        "Null if the log does not answer.",
    )
    skipped: int | None = Field(
        default=None,
        description="In a dry run, the most messages that would never be read. Null if the log "
        "does not answer.",
    )


class Positions(AnswerModel):
    """The partitions whose position was set, each with its raised epoch; in a dry run, those whose
    position would be set, each with its epoch as it is."""

    revision: int
    partitions: list[PositionSet]


class LogAccessRequest(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"purpose": "publish"}]})

    purpose: Literal["read", "publish"]
    refused: bool = Field(
        default=False,
        description="The log refused the credentials that the caller has: make others.",
    )


class LogCredentials(AnswerModel):
    """Short-lived credentials for the built-in log."""

    url: str = Field(
        description="With user and password: do not log it.",
        examples=["postgresql://counterpoise_read_7:…@127.0.0.1:41000/counterpoise"],
    )
    expires_at: Time


class LogAccess(AnswerModel):
    """Address of and credentials for a queue's log."""

    log: str = Field(examples=["builtin:flights"])
    log_name: str | None = Field(
        description="The built-in log's name; null for other logs.", examples=["flights"]
    )
    partition_count: int = Field(description="An append has to name this count.")
    start: Start
    access: LogCredentials | None = Field(
        description="Null when the log is not built in, or the service may not create roles in its "
        "database: the consumer then has to bring its own credentials."
    )
