"""What the calls take from paths, queries, headers and the application, checked."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from api import schemas
from api.routing import whole_number
from broker.service import Broker


def _whole(value: object) -> object:
    """Digits alone: pydantic would take blanks and underscores too."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("should be a whole number")
    return value


def _true_or_false(value: object) -> object:
    """What JSON calls a boolean: pydantic would take `on`, `y` and more."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("should be true or false")
    return value


Flag = Annotated[bool, BeforeValidator(_true_or_false)]
Name = Annotated[
    str,
    Path(
        pattern=schemas.QUEUE_NAME_PATTERN,
        description="The name of the queue.",
        openapi_examples={"flights": {"value": "flights"}},
    ),
]
Limit = Annotated[
    int,
    BeforeValidator(_whole),
    Query(ge=1, le=1000, description="How many items to answer at most."),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=500,
        pattern=r"^[\x21-\x7e]+$",
        description="The `next_cursor` of the page before.",
    ),
]


def broker_of(request: Request) -> Broker:
    """The broker that the application was made with."""
    broker: Broker = request.app.state.broker
    return broker


def last_event_id(request: Request) -> int | None:
    """The revision that a stream resumes after, None without the header."""
    text = request.headers.get("last-event-id")
    if text is None:
        return None
    return whole_number(text, "Last-Event-ID", 0, schemas.MOST_INT64)
