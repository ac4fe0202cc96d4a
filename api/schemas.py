"""The wire models of queues: what requests may say and what answers look like.

Requests are strict (no "8" for 8) and refuse fields they do not know. Answers are made from the
broker's views by attribute; a time there is in Unix seconds and RFC 3339 on the wire.
`api.flow_schemas` has the models of flows.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

T = TypeVar("T")

QUEUE_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,200}$"
FLOW_ID_PATTERN = r"^[A-Za-z0-9-]{1,64}$"
LOG_PATTERN = r"^(builtin:[A-Za-z0-9._-]{1,200}|[a-z][a-z0-9+.-]{1,30}://[^@\s\x00-\x1f]{1,1000})$"
# What a database can store and a terminal can show.
TEXT_PATTERN = r"^[^\x00-\x1f\x7f]+$"
POSITION_PATTERN = r"^[\x20-\x7e]+$"

MOST_PARTITIONS = 100_000
MOST_INT32 = 2**31 - 1
MOST_INT64 = 2**63 - 1

EXAMPLE_TIME = "2026-11-20T10:00:00.250Z"
EXAMPLE_FLOW = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"
EXAMPLE_QUEUE = {
    "id": "0198c0dc-11aa-7b02-8c41-5d0e9f6a7b8c",
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
EXAMPLE_REBALANCE_STATUS = {
    "queue": "flights",
    "status": "Rebalancing",
    "revision": 41,
    "trigger": "bind",
    "since": EXAMPLE_TIME,
    "holddown_until": None,
    "handoffs": [
        {
            "partition": 3,
            "from": EXAMPLE_FLOW,
            "to": "0198c0df-02b4-7d55-a0f3-6a2c1e8d9b70",
            "phase": "revoking",
            "deadline": "2026-11-20T10:00:03.250Z",
        }
    ],
    "unassigned": [],
    "spread": 3,
    "last_rebalance": {
        "id": 7,
        "trigger": "unbind",
        "started_at": "2026-11-20T09:40:00.000Z",
        "finished_at": "2026-11-20T09:40:02.500Z",
        "handoffs": 3,
        "forced": 0,
        "granted": 2,
    },
}


def rfc3339(unix_seconds: float) -> str:
    """A time on the wire: UTC, to the millisecond."""
    time = datetime.fromtimestamp(unix_seconds, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


Time = Annotated[
    float,
    PlainSerializer(rfc3339, return_type=str),
    WithJsonSchema(
        {"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]}, mode="serialization"
    ),
]
QueueName = Annotated[
    str,
    StringConstraints(pattern=QUEUE_NAME_PATTERN),
    Field(description="The name of the queue.", examples=["flights"]),
]
PartitionNumber = Annotated[int, Field(ge=0, le=MOST_INT32, examples=[5])]
Epoch = Annotated[int, Field(ge=0, le=MOST_INT64, examples=[3])]
Position = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1000, pattern=POSITION_PATTERN),
    Field(
        description="Next to read: an opaque string of the log's. Null: where `start` says.",
        examples=["1042"],
    ),
]
RebalanceStatusName = Literal["Ready", "Holddown", "Rebalancing"]
ScaleStatusName = Literal["Ready", "ScalingUp", "ScalingDown"]
PartitionState = Literal[
    "unassigned", "owned", "warming", "revoking", "retiring", "waiting", "finished"
]
Trigger = Literal[
    "bind", "unbind", "lease_expired", "resize", "access_type", "drain", "admin", "replaced"
]


def _without_default(schema: dict[str, Any]) -> None:
    """A field that may be left out but not be null has no default to document."""
    schema.pop("default", None)


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AnswerModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class FieldProblem(AnswerModel):
    """One field or parameter that is not right."""

    field: str = Field(description="Its path, with dots: `partitions.0.epoch`.")
    message: str = Field(description="What is wrong with it, or what would be right.")


class Problem(AnswerModel):
    """An RFC 9457 problem document."""

    type: str = Field(description="`urn:counterpoise:problem:` and the code.")
    title: str = Field(description="What went wrong, the same for every instance of the code.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What to do about this instance.")
    code: str = Field(description="Stable; what a program should look at.")
    errors: list[FieldProblem] | None = Field(
        default=None, description="With `invalid`: every field at fault."
    )
    reason: str | None = Field(
        default=None,
        description="With `flow_gone`: `unbound`, `lease_expired`, `replaced`, …",
    )


class Page(AnswerModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last one."
    )


# Queues

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
LogName = Annotated[
    str,
    StringConstraints(pattern=LOG_PATTERN),
    Field(
        description="Where the messages are: `builtin:QUEUE`, or a URL without credentials. Naming "
        "another queue's log makes an independent set of consumers of the same messages.",
        examples=["builtin:flights"],
    ),
]
Start = Annotated[Literal["earliest", "latest"], Field(description="What a null position means.")]


class QueueCreate(RequestModel):
    """A new queue (the contract, *Queue*); what is left out has its default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "flights", "partition_count": 8}]}
    )

    name: QueueName
    partition_count: PartitionCount
    access_type: AccessType = "non_exclusive"
    rebalance_delay: RebalanceDelay = 5.0
    max_handoff_time: MaxHandoffTime = 3.0
    max_warmup_time: MaxWarmupTime = 600.0
    max_concurrent_handoffs: MaxConcurrentHandoffs = None
    log: LogName | None = Field(default=None, description="Null: `builtin:` and the name.")
    start: Start = "earliest"


class QueueChange(RequestModel):
    """Settings to change; what is left out stays. A change applies to what begins afterwards."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partition_count": 12, "max_handoff_time": 10}]}
    )

    partition_count: PartitionCount = Field(default=None, json_schema_extra=_without_default)
    access_type: AccessType = Field(default=None, json_schema_extra=_without_default)
    rebalance_delay: RebalanceDelay = Field(default=None, json_schema_extra=_without_default)
    max_handoff_time: MaxHandoffTime = Field(default=None, json_schema_extra=_without_default)
    max_warmup_time: MaxWarmupTime = Field(default=None, json_schema_extra=_without_default)
    max_concurrent_handoffs: MaxConcurrentHandoffs = Field(
        default=None, json_schema_extra=_without_default
    )
    log: LogName = Field(default=None, json_schema_extra=_without_default)
    start: Start = Field(default=None, json_schema_extra=_without_default)


class Queue(AnswerModel):
    """A queue: its settings, and where it stands."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_QUEUE]})

    id: str = Field(description="A queue made again under the same name has another.")
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
    """A partition: who owns it and where it has been processed up to."""

    partition: PartitionNumber
    epoch: Epoch
    owner: str | None = Field(description="The flow_id of its owner.")
    successor: str | None = Field(description="The flow_id of the flow it is being handed to.")
    state: PartitionState
    position: Position | None
    deadline: Time | None = Field(description="When its warm-up or handoff ends regardless.")


class PartitionPage(Page[Partition]):
    """Partitions, by number."""


class FlowSummary(AnswerModel):
    """A bound flow."""

    flow_id: str
    client_name: str
    instance_id: str
    active: bool = Field(description="Owns at least one partition.")
    draining: bool
    partitions: int = Field(description="How many it owns.")
    bound_at: Time
    lease_expires_at: Time


class FlowPage(Page[FlowSummary]):
    """Flows, in the order of binding."""


# Rebalances


class Move(AnswerModel):
    """One partition's grant or handoff."""

    partition: PartitionNumber
    from_flow: str | None = Field(serialization_alias="from")
    to_flow: str | None = Field(serialization_alias="to")
    epoch: Epoch
    outcome: str = Field(
        description="How it arrived: `initial`, `graceful`, `forced`, `orphaned`, `replaced`, or "
        "`discarded`.",
        examples=["graceful"],
    )
    seconds: float = Field(description="How long the handoff took.")


class RebalanceSummary(AnswerModel):
    """A rebalance, or a grant outside one (which has no handoffs)."""

    id: int
    trigger: Trigger
    started_at: Time
    finished_at: Time | None = Field(description="Null while it goes on.")
    handoffs: int
    forced: int = Field(description="How many of the handoffs met their deadline.")
    granted: int = Field(description="How many partitions without an owner were granted.")


class Rebalance(RebalanceSummary):
    """An entry of the history, with its moves."""

    moves: list[Move]


class RebalancePage(Page[Rebalance]):
    """Rebalances, newest first."""


class Handoff(AnswerModel):
    """A handoff in progress."""

    partition: PartitionNumber
    from_flow: str = Field(serialization_alias="from")
    to_flow: str | None = Field(serialization_alias="to")
    phase: Literal["warming", "revoking"]
    deadline: Time | None


class RebalanceStatus(AnswerModel):
    """Where the rebalancer stands with a queue, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_REBALANCE_STATUS]})

    queue: QueueName
    status: RebalanceStatusName
    revision: int
    trigger: Trigger | None = Field(description="The first cause; null when Ready.")
    since: Time = Field(description="Since when the status is what it is.")
    holddown_until: Time | None = Field(description="Null outside Holddown.")
    handoffs: list[Handoff]
    unassigned: list[PartitionNumber]
    spread: int = Field(
        description="The largest minus the smallest number of partitions over bound, non-draining "
        "flows."
    )
    last_rebalance: RebalanceSummary | None


# Positions and the log

PartitionKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]


class PositionsRequest(RequestModel):
    """Where consumers go on: `to` for every partition, or `positions` for those named."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"to": "earliest"}, {"positions": {"0": "1042", "5": None}}],
            "minProperties": 1,
            "maxProperties": 1,
        }
    )

    to: Literal["earliest", "latest"] | Annotated[AwareDatetime, Field(strict=False)] = Field(
        default=None,
        description="An end of the log, or a time: the first message published then or later.",
        json_schema_extra=_without_default,
    )
    positions: dict[PartitionKey, Position | None] = Field(
        default=None,
        min_length=1,
        max_length=MOST_PARTITIONS,
        description="Positions by partition number.",
        json_schema_extra=_without_default,
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "PositionsRequest":
        if len(self.model_fields_set) != 1:
            raise ValueError("give either 'to' or 'positions'")
        return self


class PositionSet(AnswerModel):
    partition: PartitionNumber
    epoch: Epoch
    position: Position | None


class Positions(AnswerModel):
    """The partitions whose position was set, each with the epoch that was raised with it."""

    revision: int
    partitions: list[PositionSet]


class LogAccessRequest(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"purpose": "publish"}]})

    purpose: Literal["read", "publish"]


class LogCredentials(AnswerModel):
    """Short-lived credentials for the built-in log."""

    url: str = Field(
        description="With user and password: not for logs.",
        examples=["postgresql://counterpoise_read_7:…@127.0.0.1:41000/counterpoise"],
    )
    expires_at: Time


class LogAccess(AnswerModel):
    """Where a queue's messages are, and what it takes to reach them."""

    log: str = Field(examples=["builtin:flights"])
    log_name: str | None = Field(
        description="The built-in log's name; null for other logs.", examples=["flights"]
    )
    partition_count: int = Field(description="What an append has to name.")
    start: Start
    access: LogCredentials | None = Field(
        description="Null when the log is not built in, or the service may not create roles in its "
        "database: the consumer then has to bring its own."
    )


class Health(AnswerModel):
    status: Literal["ok", "ready"]
