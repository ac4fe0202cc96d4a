"""The wire models: rules for requests and answers, and the shared types.

Requests are strict (no "8" for 8) and refuse unknown fields. Answers are made from the broker's
views by attribute; times are Unix seconds there and RFC 3339 on the wire. The models are in
`queues`, `flows` and `rebalances`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

T = TypeVar("T")

QUEUE_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,200}$"
FLOW_ID_PATTERN = r"^[A-Za-z0-9-]{1,64}$"
# What no text may contain that is shown to others, on terminals and pages: the characters that
# `counterpoise.plain` escapes. They are controls, ends of lines, and what turns the direction of
# writing.
DECEPTIVE = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
TEXT_PATTERN = rf"^[^{DECEPTIVE}]+$"
POSITION_PATTERN = r"^[\x20-\x7e]+$"

# In a call that creates a queue, and in a body of 64 KiB.
MOST_ROOTS = 1000
MOST_INT32 = 2**31 - 1
MOST_INT64 = 2**63 - 1

EXAMPLE_TIME = "2026-11-20T10:00:00.250Z"
EXAMPLE_QUEUE_ID = "0198c0dc-11aa-7b02-8c41-5d0e9f6a7b8c"
EXAMPLE_FLOW = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"


# Unix seconds of the years 1 and 10000.
THE_FIRST, AFTER_THE_LAST = -62_135_596_800, 253_402_300_800
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def moment(value: object, otherwise: str = "") -> datetime:
    """A time in a request; pydantic would also accept numbers. Raises ValueError, which names what
    else might stand there."""
    text = value.upper() if isinstance(value, str) else ""
    if not _RFC3339.fullmatch(text) or text < "1970-01-02":
        raise ValueError(
            f"should be {otherwise}an RFC 3339 time since 1970, like 2026-11-20T10:00:00Z"
        )
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"should be {otherwise}a time before the year 10000 in UTC") from None


def rfc3339(unix_seconds: float) -> str:
    """A time on the wire: UTC, to the millisecond. A year has four digits there: a time before the
    first or after the last one is written as the nearest of them.
    """
    if unix_seconds >= AFTER_THE_LAST:
        return "9999-12-31T23:59:59.999Z"
    unix_seconds = max(unix_seconds, THE_FIRST)
    second = math.floor(unix_seconds)
    microsecond = round((unix_seconds - second) * 1e6)
    if microsecond == 1_000_000:
        second, microsecond = second + 1, 0
    return f"{_to_the_second(second)}.{microsecond // 1000:03}Z"


@lru_cache(maxsize=1000)
def _to_the_second(second: int) -> str:
    """Many answers of one moment have the same."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


# How a time is called in what is stored as JSON: events and the audit.
_TIME_NAME = re.compile("deadline|due|began|(.+_)?(at|until)")


def with_times(value: Any, name: str = "") -> Any:
    """A stored value called `name` in its wire form: its times, which are Unix seconds, as text."""
    match value:
        case Mapping():
            return {str(key): with_times(inner, str(key)) for key, inner in value.items()}
        case float() if _TIME_NAME.fullmatch(name):
            return rfc3339(value)
        case Sequence() if not isinstance(value, str):
            return [with_times(inner) for inner in value]
    return value


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
PartitionKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$")]
PartitionNumber = Annotated[int, Field(ge=0, le=MOST_INT32, examples=[5])]
Key = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=POSITION_PATTERN),
    Field(description="Names a partition of a dynamic queue for good.", examples=["token-7"]),
]
Epoch = Annotated[int, Field(ge=0, le=MOST_INT64, examples=[3])]
Position = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1000, pattern=POSITION_PATTERN),
    Field(
        description="The next message to read: an opaque string of the log. Null: see `start`.",
        examples=["1042"],
    ),
]
# As it is stored, also where it was written past the service.
ShownPosition = Annotated[
    str,
    Field(description="An opaque string of the log. Null: see `start`.", examples=["1042"]),
]
RebalanceStatusName = Literal["Ready", "Holddown", "Rebalancing"]


def absent(value: object) -> bool:
    """For fields that an answer has only where they mean something."""
    return value is None


def left_out(**options: Any) -> Any:
    """A request field that may be omitted but not be null, so there is no default to document."""

    def without_default(schema: dict[str, Any]) -> None:
        schema.pop("default", None)

    return Field(default=None, json_schema_extra=without_default, **options)


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AnswerModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class FieldProblem(AnswerModel):
    """One wrong field or parameter."""

    field: str = Field(description="Its path, with dots: `partitions.0.epoch`.")
    message: str = Field(description="What is wrong, or what would be valid.")


class Problem(AnswerModel):
    """An RFC 9457 problem document."""

    type: str = Field(description="`urn:counterpoise:problem:` and the code.")
    title: str = Field(description="What went wrong, the same for every instance of the code.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What to do about this error.")
    code: str = Field(description="Stable; meant for programs.")
    errors: list[FieldProblem] | None = Field(
        default=None, description="With `invalid`: every wrong field."
    )
    reason: str | None = Field(
        default=None,
        description="With `flow_gone`: `unbound`, `lease_expired`, `replaced`, …",
    )


HELD_UNTIL = (
    "Until then the flow is held back and gets no partitions, because its key has moved as much of "
    "the queue as it may in an hour; left out if it is not."
)
CUT = (
    "Where an ordered resize that is not settled has cut the partition; left out if the partition "
    "neither waits nor is waited for."
)
REACHED_CUT = "With `cut`: everything before it is processed."
WAITS_FOR = (
    "With `cut`: nothing at the cut or past it is processed before these partitions have reached "
    "theirs. The ten lowest; empty if it waits for none."
)


class Page(AnswerModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last one."
    )


class Health(AnswerModel):
    status: Literal["ok"]


class Readiness(AnswerModel):
    status: Literal["ready"]
    database: str | None = Field(
        default=None,
        exclude_if=absent,
        description="Names the tables that the service uses: equal for all replicas of a service.",
        examples=["3f9a0c51d7e2b864"],
    )
