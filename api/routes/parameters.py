"""Checked parameters of the calls, from paths, queries, headers and the application."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request

from api.http.routing import whole_number
from api.schemas import common
from broker.calls.bound_flows import BoundFlow
from broker.service import Broker


def whole(value: object) -> object:
    """Only digits: pydantic would also accept blanks and underscores."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("should be a whole number")
    return value


def _true_or_false(value: object) -> object:
    """A JSON boolean: pydantic would also accept `on`, `y` and more."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("should be true or false")
    return value


Flag = Annotated[bool, BeforeValidator(_true_or_false)]
Name = Annotated[
    str,
    Path(
        pattern=common.QUEUE_NAME_PATTERN,
        description="The name of the queue.",
        openapi_examples={"flights": {"value": "flights"}},
    ),
]
Limit = Annotated[
    int,
    BeforeValidator(whole),
    Query(ge=1, le=1000, description="The most items to return."),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=500,
        pattern=r"^[\x21-\x7e]+$",
        description="The `next_cursor` of the previous page.",
    ),
]


def broker_of(request: Request) -> Broker:
    """The application's broker."""
    broker: Broker = request.app.state.broker
    return broker


def flow_of(request: Request) -> BoundFlow:
    """The flow in the path; of a call that it makes itself."""
    flow: BoundFlow = request.state.flow
    return flow


def last_event_id(request: Request) -> int | None:
    """The revision that a stream resumes after, None without the header."""
    text = request.headers.get("last-event-id")
    if text is None:
        return None
    return whole_number(text, "Last-Event-ID", 0, common.MOST_INT64)
