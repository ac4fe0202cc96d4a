"""The wire models of flows (`api.schemas` explains the rules they follow)."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints

from api.schemas.common import (
    CUT,
    EXAMPLE_FLOW,
    EXAMPLE_QUEUE_ID,
    EXAMPLE_TIME,
    HELD_UNTIL,
    MOST_INT64,
    REACHED_CUT,
    TEXT_PATTERN,
    WAITS_FOR,
    AnswerModel,
    Epoch,
    Key,
    PartitionNumber,
    Position,
    QueueName,
    RequestModel,
    ShownPosition,
    Time,
    absent,
)
from api.schemas.logs import LogCredentials
from broker.core.model import MOST_PARTITIONS

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=TEXT_PATTERN), Field()
]
Sequence = Annotated[
    Annotated[int, Field(ge=0, le=MOST_INT64)] | None,
    Field(
        description="Raised by the client with every call: within a partition and epoch an equal "
        "or lower one answers `ok` and changes nothing, so a delayed retry does no harm.",
        examples=[17],
    ),
]

EXAMPLE_UPDATE: dict[str, JsonValue] = {
    "queue": "flights",
    "flow_id": EXAMPLE_FLOW,
    "revision": 42,
    "active": True,
    "draining": False,
    "now": EXAMPLE_TIME,
    "partitions": [
        {
            "partition": 0,
            "epoch": 3,
            "state": "owned",
            "position": "1042",
            "handed_over": "graceful",
        },
        {
            "partition": 5,
            "epoch": 2,
            "state": "revoking",
            "position": "990",
            "handed_over": "initial",
            "deadline": "2026-11-20T10:00:03.250Z",
        },
        {
            "partition": 7,
            "epoch": 4,
            "state": "warming",
            "position": "77",
            "deadline": "2026-11-20T10:10:00.250Z",
        },
    ],
}


SAYS_REACHED = (
    "The position is at the partition's cut or past it, and the view does not say so yet."
)


class PartitionOfFlow(AnswerModel):
    """A partition as its owner or successor sees it."""

    partition: PartitionNumber
    epoch: Epoch = Field(description="The owner's epoch, also while the flow is only warming.")
    state: Literal["owned", "revoking", "retiring", "warming"] = Field(
        description="In the first three the flow is the owner; in `warming` it is not yet."
    )
    position: ShownPosition | None = Field(description="The last committed position.")
    # Not an enumeration: a newer replica may have stored another.
    handed_over: str | None = Field(
        default=None,
        exclude_if=absent,
        description="How it left its previous owner: `initial`, `graceful`, `forced`, `orphaned` "
        "or `replaced`; absent while `warming`. After `forced` and `orphaned`, messages after "
        "`position` may have been seen before.",
        examples=["graceful"],
    )
    deadline: Time | None = Field(
        default=None,
        exclude_if=absent,
        description="With `revoking` and `warming`: when the handoff continues without the flow.",
    )
    cut: ShownPosition | None = Field(default=None, exclude_if=absent, description=CUT)
    reached_cut: bool | None = Field(default=None, exclude_if=absent, description=REACHED_CUT)
    waits_for: list[PartitionNumber] | None = Field(
        default=None, exclude_if=absent, description=WAITS_FOR
    )
    key: str | None = Field(
        default=None, exclude_if=absent, description="Of a partition of a dynamic queue."
    )
    parents: list[str] | None = Field(
        default=None,
        exclude_if=absent,
        description="The keys of the partitions that it follows, in a dynamic queue.",
    )


class FlowChangeUpdate(AnswerModel):
    """A flow's assignment: always its whole current view, so a lost or repeated one is harmless."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_UPDATE]})

    queue: QueueName
    flow_id: str
    revision: int = Field(description="The queue's revision at which this view last changed.")
    active: bool = Field(description="Owns at least one partition.")
    draining: bool
    now: Time = Field(description="The service's clock; `deadline` is a time of this clock.")
    partitions: list[PartitionOfFlow]
    resize: int | None = Field(
        default=None,
        exclude_if=absent,
        description="Of a queue with ordered resizes: the number of the log's last resize of which "
        "this view knows the cuts. If the log names a later one, stop at its cuts.",
    )
    held_until: Time | None = Field(default=None, exclude_if=absent, description=HELD_UNTIL)


class BindRequest(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"client_name": "etl", "instance_id": "etl-7c31", "lease_seconds": 10},
            ]
        }
    )

    client_name: Name = Field(description="Shown to people in lists; need not be unique.")
    instance_id: Name | None = Field(
        default=None,
        description="Identifies a consumer over restarts: the new flow takes the place of the "
        "flow bound with the same id. Always send it; else the service chooses a random one.",
    )
    lease_seconds: float = Field(
        default=10.0, ge=1, le=3600, description="How long the flow lives without renewal."
    )
    warmup: bool = Field(
        default=False, description="Whether the flow warms up before it is granted a partition."
    )
    binder: Name | None = Field(
        default=None,
        description="Random, the same for all binds of one running client for this instance.",
    )
    attempt: int = Field(
        default=0,
        ge=0,
        le=MOST_INT64,
        description="One higher with each bind of the `binder`: a late bind never takes the "
        "place of a later one (409 `overtaken`).",
    )
    at_once: bool = Field(
        default=False,
        description="Without a holddown if no other flow is bound: for a consumer that reads what "
        "is there and ends.",
    )


class Bound(AnswerModel):
    """A bound flow, with everything that it needs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "flow_id": EXAMPLE_FLOW,
                    "flow_token": "cpf_3q2-7w…",
                    "queue_id": EXAMPLE_QUEUE_ID,
                    "lease_seconds": 10.0,
                    "log": "builtin:flights",
                    "log_access": {
                        "url": "postgresql://counterpoise_read_7:…@127.0.0.1:41000/counterpoise",
                        "expires_at": "2026-11-20T12:00:00.250Z",
                    },
                    "update": EXAMPLE_UPDATE,
                }
            ]
        }
    )

    flow_id: str = Field(examples=[EXAMPLE_FLOW])
    flow_token: str = Field(
        description="The flow's secret, sent with its calls as `Authorization: Bearer`. Only shown "
        "here: the service stores only a hash."
    )
    queue_id: str = Field(
        examples=[EXAMPLE_QUEUE_ID],
        description="The queue's `id`. If a flow binds again and gets another id, it belonged to a "
        "queue that was deleted and made again; its epochs and positions no longer apply.",
    )
    lease_seconds: float
    log: str = Field(examples=["builtin:flights"])
    log_access: LogCredentials | None = Field(
        description="Credentials to read the built-in log, if the service can give them."
    )
    update: FlowChangeUpdate


class Heartbeat(AnswerModel):
    lease_expires_at: Time
    revision: int = Field(
        description="The revision of the flow's view; fetch the view if yours is older."
    )


# If many items of a list are wrong, the error names only the first: each could have several errors,
# and the answer would be larger than the request.
_ITEMS: Any = Field(max_length=MOST_PARTITIONS, fail_fast=True)


class CommitItem(RequestModel):
    partition: PartitionNumber
    epoch: Epoch
    position: Position
    reached_cut: bool = Field(default=False, description=SAYS_REACHED)


class CommitRequest(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"seq": 17, "partitions": [{"partition": 0, "epoch": 3, "position": "1042"}]}
            ]
        }
    )

    seq: Sequence = None
    partitions: list[CommitItem] = _ITEMS


class ReleaseItem(RequestModel):
    partition: PartitionNumber
    epoch: Epoch
    position: Position | None = Field(
        default=None, description="Committed with the release; null: leave the position as it is."
    )
    finished: bool = Field(
        default=False,
        description="A retiring partition, or one of a dynamic queue, was processed to its end.",
    )
    reached_cut: bool = Field(default=False, description=SAYS_REACHED)


class ReleaseRequest(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"seq": 18, "partitions": [{"partition": 5, "epoch": 2, "position": "990"}]}
            ]
        }
    )

    seq: Sequence = None
    partitions: list[ReleaseItem] = _ITEMS


# Of the children of one call and of their parents together: they fit into a body, however long.
MOST_NAMES = 2_048


class NewChild(RequestModel):
    """A partition that begins where its parents end."""

    key: Key
    parents: list[Key] = Field(
        min_length=1,
        max_length=1000,
        fail_fast=True,
        description="The keys of all partitions that it follows, that of the item among them.",
    )
    partition: PartitionNumber | None = Field(
        default=None,
        description="Its number, if the log numbers its partitions; null: the next of the queue.",
    )
    position: Position | None = Field(
        default=None, description="Where it begins; null: at its first message."
    )


class ChildrenItem(RequestModel):
    """One partition. All of an item is carried out, or nothing."""

    partition: PartitionNumber
    epoch: Epoch
    position: Position | None = Field(
        default=None, description="Committed with the report; null: leave the position as it is."
    )
    finished: bool = Field(
        default=False, description="It was processed to its end, and has no other children."
    )
    children: list[NewChild] = Field(default_factory=list, max_length=1000, fail_fast=True)


class ChildrenRequest(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "seq": 19,
                    "partitions": [
                        {
                            "partition": 3,
                            "epoch": 2,
                            "position": "1042",
                            "finished": True,
                            "children": [{"key": "token-7", "parents": ["token-3", "token-4"]}],
                        }
                    ],
                }
            ]
        }
    )

    seq: Sequence = None
    partitions: list[ChildrenItem] = _ITEMS


class ReadyItem(RequestModel):
    partition: PartitionNumber
    epoch: Epoch


class ReadyRequest(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partitions": [{"partition": 7, "epoch": 4}]}]}
    )

    partitions: list[ReadyItem] = _ITEMS


class DrainRequest(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"timeout_seconds": 60}]})

    timeout_seconds: float | None = Field(
        default=None,
        ge=0,
        le=86400,
        description="After this time, warm-ups of the successors are cut short.",
    )


class Result(AnswerModel):
    """The result of one item. With any outcome but `ok` nothing has changed."""

    partition: PartitionNumber
    outcome: Literal[
        "ok",
        "no_such_partition",
        "stale_epoch",
        "not_owner",
        "not_revoking",
        "not_warming",
        "not_ended",
        "unknown_parent",
        "conflicting_child",
        "too_many_partitions",
    ]
    current_epoch: int | None = Field(
        default=None, exclude_if=absent, description="With `stale_epoch`."
    )


class Results(AnswerModel):
    """One result for each item, in order, and the flow's view afterwards."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "results": [
                        {"partition": 0, "outcome": "ok"},
                        {"partition": 5, "outcome": "stale_epoch", "current_epoch": 3},
                    ],
                    "update": EXAMPLE_UPDATE,
                }
            ]
        }
    )

    results: list[Result]
    update: FlowChangeUpdate
