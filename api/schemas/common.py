"""The models of requests: their rules, and the types that they share.

Requests are strict (no "8" for 8) and refuse unknown fields. Answers are documents of
`counterpoise.wire`. What a request has in common with one is taken from there (`like`).
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from counterpoise.documents import described
from counterpoise.wire import (
    MOST_INT32,
    MOST_INT64,
    POSITION_PATTERN,
    QUEUE_NAME_PATTERN,
    Queue,
)

FLOW_ID_PATTERN = r"^[A-Za-z0-9-]{1,64}$"
# What no text may contain that is shown to others, on terminals and pages: the characters that
# `counterpoise.plain` escapes. They are controls, ends of lines, and what turns the direction of
# writing.
DECEPTIVE = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
TEXT_PATTERN = rf"^[^{DECEPTIVE}]+$"

# In a call that creates a queue, and in a body of 64 KiB.
MOST_ROOTS = 1000

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


_LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
}
_HINTS = get_type_hints(Queue, include_extras=True)
_WORDS = described(Queue)[1]


def like(setting: str, part: Literal["words", "limits"] | None = None) -> Any:
    """What answers say of a queue's setting (`wire.Queue`), for a request.

    Without a `part` it is for a setting that a request cannot set to null, and the last sentence,
    on null, is left out.
    """
    metas, may_be_null = [], False
    found = [_HINTS[setting]]
    for one in found:
        metas += [meta for meta in getattr(one, "__metadata__", ()) if isinstance(meta, Meta)]
        may_be_null |= one is type(None)
        found += [inner for inner in get_args(one) if not isinstance(inner, Meta)]
    words = _WORDS[setting]
    if part is None and may_be_null:
        words = words.partition(" Null")[0]
    known = {
        name: value for meta in metas for name, value in (meta.extra_json_schema or {}).items()
    }
    limits = {_LIMITS[name]: value for name, value in known.items() if name in _LIMITS}
    return Field(
        description=None if part == "limits" else words,
        examples=None
        if part == "limits"
        else next((m.examples for m in metas if m.examples), None),
        **({} if part == "words" else limits),
    )


def left_out(**options: Any) -> Any:
    """A request field that may be omitted but not be null, so there is no default to document."""

    def without_default(schema: dict[str, Any]) -> None:
        schema.pop("default", None)

    return Field(default=None, json_schema_extra=without_default, **options)


class RequestModel(BaseModel):
    """Built with the route that takes it (`api.routing`), not at the import."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
