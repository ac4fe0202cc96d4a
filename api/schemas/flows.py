"""The requests of flows."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from api.schemas.common import (
    TEXT_PATTERN,
    Epoch,
    Key,
    PartitionNumber,
    Position,
    RequestModel,
)
from broker.core.errors import Invalid
from broker.core.model import DEFAULT_WEIGHT, MOST_PARTITIONS, MOST_WEIGHT
from counterpoise.wire import DONE_ABOVE_PATTERN, MOST_DONE_ABOVE, MOST_INT64

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

DoneAbove = Annotated[
    Annotated[str, StringConstraints(max_length=MOST_DONE_ABOVE, pattern=DONE_ABOVE_PATTERN)]
    | None,
    Field(
        description="What is processed above the position; goes with it. Null: nothing, also "
        "nothing of what was committed before.",
        examples=["1045+17,3+40"],
    ),
]
SAYS_REACHED = (
    "The position is at the partition's cut or past it, and the view does not say so yet."
)


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
    keeps_state: bool = Field(
        default=False,
        description="Whether the consumer keeps state of the messages that no handoff takes along. "
        "The queue must be exclusive, stays it while the flow is bound, and has one such consumer "
        "(409 `state_kept`).",
    )
    weight: int = Field(
        default=DEFAULT_WEIGHT,
        ge=1,
        le=MOST_WEIGHT,
        description="The flow's share of the partitions, compared with the weights of the others; "
        "at most the queue's `max_weight` (422).",
    )
    max_partitions: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PARTITIONS,
        description="The flow gets no more partitions than this; null: any number. What no flow "
        "may take has no owner (the condition `over_capacity`). Not in an exclusive queue (422).",
        examples=[64],
    )


# If many items of a list are wrong, the error names only the first: each could have several errors,
# and the answer would be larger than the request.
_ITEMS: Any = Field(max_length=MOST_PARTITIONS, fail_fast=True)


class CommitItem(RequestModel):
    partition: PartitionNumber
    epoch: Epoch
    position: Position
    reached_cut: bool = Field(default=False, description=SAYS_REACHED)
    done_above: DoneAbove = None


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
    done_above: DoneAbove = None


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

    @model_validator(mode="before")
    @classmethod
    def _few_names(cls, body: Any) -> Any:
        """Counted before an object is made of each child. Raises `Invalid`."""
        names = 0
        for nth, item in enumerate(_listed(body, "partitions")):
            for child in _listed(item, "children"):
                names += 1 + len(_listed(child, "parents"))
            if names > MOST_NAMES:
                raise Invalid(
                    f"A call names at most {MOST_NAMES} children and parents; report fewer "
                    "partitions at once.",
                    [(f"partitions.{nth}.children", "is too much for one call")],
                )
        return body


def _listed(value: Any, name: str) -> list[Any]:
    """The list in this field; none where the value is no such object, which is said later."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


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
