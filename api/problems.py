"""Errors as RFC 9457 problem documents: a stable `code`, a `detail` that says what to do.

One table has the status and title of every code; handlers, the OpenAPI document and tests read it.
"""

import difflib
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from api.answers import encode
from broker.core import errors
from counterpoise.wire import (
    LOG_PATTERN,
    QUEUE_NAME_PATTERN,
    TEXT_PATTERN,
    FieldProblem,
    Problem,
)

log = structlog.get_logger("api")

MOST_PROBLEMS = 50
# Longer than every name that is known.
MOST_NAME_CHARACTERS = 100
MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:counterpoise:problem:"

# code: (status, title). The broker's own titles are the first lines of its exceptions' docstrings.
_BROKER_STATUSES: dict[type[errors.BrokerError], int] = {
    errors.Invalid: 422,
    errors.QueueNotFound: 404,
    errors.KeyNotFound: 404,
    errors.QueueExists: 409,
    errors.QueueInUse: 409,
    errors.ResizeUnsettled: 409,
    errors.PartitionEnded: 409,
    errors.ChildrenRefused: 409,
    errors.FlowNotFound: 404,
    errors.FlowGone: 410,
    errors.Overtaken: 409,
    errors.StateKept: 409,
    errors.TooManyFlows: 429,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.Unavailable: 503,
    errors.QueueUnreadable: 500,
}
CODES: dict[str, tuple[int, str]] = {
    **{kind.code: (status, kind.title()) for kind, status in _BROKER_STATUSES.items()},
    "not_found": (404, "There is nothing at this path."),
    "method_not_allowed": (405, "This path does not take this method."),
    "malformed": (400, "This is not HTTP."),
    "head_timeout": (408, "The head of the request did not arrive in time."),
    "head_too_large": (431, "The head of the request is too large."),
    "body_timeout": (408, "The request body did not arrive in time."),
    "too_large": (413, "The request body is too large."),
    "unsupported_media_type": (415, "The request body is not JSON."),
    "internal": (500, "Internal error of the service."),
}

# Additional answers of calls with a request body.
OF_A_BODY = ("body_timeout", "too_large", "unsupported_media_type")

DETAILS = {
    "invalid": "partition_count: should be greater than or equal to 1",
    "queue_not_found": "No queue is named 'flights'; GET /v1/queues lists the queues, "
    "POST /v1/queues creates one.",
    "key_not_found": "No key that you may see has the id '3f9a0c51d7e2'; GET /v1/keys lists the "
    "keys.",
    "queue_exists": "A queue named 'flights' exists already, with other settings; "
    "PATCH /v1/queues/flights changes them.",
    "queue_in_use": "3 flows are bound to 'flights'; unbind them, or delete it with ?force=true.",
    "partition_ended": "Partition 3 takes no messages any more; after it came 7 and 8. Split or "
    "merge those.",
    "children_refused": "Nothing was changed: the queue 'flights' has all the partitions that it "
    "can have (4096 at a time, 1000000 in its life).",
    "resize_unsettled": "The last resize of the queue 'flights' is not settled (partition 3 waits "
    "for 1); try again when its consumers have processed what came before it.",
    "flow_not_found": "No flow 'f-1' is or was bound to this queue; bind with POST …/flows and use "
    "its flow_id.",
    "flow_gone": "Flow 0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f has left. Its lease expired; bind "
    "again with the same instance_id to go on.",
    "overtaken": "Nothing was changed: instance 'etl-7c31' is bound by a later bind of the same "
    "binder. If no answer to that one has come, bind again with a higher attempt.",
    "state_kept": "The consumer 'totals' (flow f-1) keeps state of all partitions of the queue "
    "'flights', and none of it is handed over with a partition; stop this consumer first, or leave "
    "access_type as it is.",
    "unauthorized": "This call is the flow's own; send 'Authorization: Bearer <flow_token>' with "
    "the token that bind answered.",
    "forbidden": "This token is another flow's; send the one that bind answered for this flow.",
    "unavailable": "The service cannot reach its database; try again in a moment.",
    "queue_unreadable": "The stored rows of the queue 'flights' do not fit together: partitions "
    "and keys differ in [4]. It can only be deleted (DELETE /v1/queues/flights?force=true), or "
    "restored from a backup of the database.",
    "not_found": "There is nothing at /v1/queue; /docs lists every call.",
    "method_not_allowed": "This path takes GET, POST.",
    "too_many_requests": "This caller is over its rate, or the service is at its limit; "
    "try again in 1 s, and ask for several partitions at once.",
    "malformed": "This is not a request in HTTP/1.1 or HTTP/1.0, or it has no Host, or it has a "
    "field twice that may come once: Authorization, Host, Origin, Sec-Fetch-Site.",
    "head_timeout": "The head did not arrive within 10 s.",
    "head_too_large": "A request's head may have 65536 bytes and 100 fields; send less in the path "
    "and in the headers.",
    "body_timeout": "The body did not arrive within 10 s; send it at once.",
    "too_large": "A request body may have 1048576 bytes; send fewer partitions at once.",
    "unsupported_media_type": "Send the body as JSON with 'Content-Type: application/json'.",
    "internal": "The service's log has the details under the id 4d1c6f2e; the request may or may "
    "not have been carried out.",
}


class RequestRefused(Exception):
    """The request gets this answer, and is not carried out."""

    def __init__(self, response: Response) -> None:
        self.response = response


def problem(
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """A problem document as a response, with additional `members` (`errors`, `reason`)."""
    status, _ = CODES[code]
    return Response(
        problem_body(code, detail, **members),
        status_code=status,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def problem_body(code: str, detail: str, **members: Any) -> bytes:
    status, title = CODES[code]
    return encode(Problem(TYPE_PREFIX + code, title, status, detail, code, **members))


def of_broker_error(error: errors.BrokerError) -> Response:
    """The response for an error of the broker."""
    headers: dict[str, str] = {}
    members: dict[str, Any] = {}
    match error:
        case errors.Invalid():
            members["errors"] = tuple(FieldProblem(*one) for one in error.errors[:MOST_PROBLEMS])
        case errors.FlowGone():
            members["reason"] = error.reason
        case errors.Unauthorized():
            headers["WWW-Authenticate"] = "Bearer"
        case errors.Unavailable() | errors.TooManyFlows():
            headers["Retry-After"] = str(error.retry_after_seconds)
    return problem(error.code, error.detail, headers=headers, **members)


def document(*codes: str) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that may answer these problems; `api.openapi` completes them.

    Without their model: FastAPI would prepare to validate and serialize it anew for each of them.
    """
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, _ = CODES[code]
        response = by_status.setdefault(status, {"x-codes": []})
        response["x-codes"].append(code)
    return by_status


def described(codes: Sequence[str]) -> dict[str, Any]:
    """The OpenAPI response for problems of one status, with an example for each code."""
    status, _ = CODES[codes[0]]
    response: dict[str, Any] = {
        "description": " ".join(f"`{code}`: {CODES[code][1]}" for code in codes),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {code: {"value": _example(code)} for code in codes},
            }
        },
    }
    if status in (429, 503):
        response["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait before trying again.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    return response


def _example(code: str) -> dict[str, object]:
    members: dict[str, object] = {}
    if code == "invalid":
        field, _, message = DETAILS[code].partition(": ")
        members["errors"] = (FieldProblem(field, message),)
    if code == "flow_gone":
        members["reason"] = "lease_expired"
    example: dict[str, object] = orjson.loads(problem_body(code, DETAILS[code], **members))
    return example


def add_handlers(app: FastAPI) -> None:
    """Make every error of the application a problem document."""
    app.add_exception_handler(errors.BrokerError, _broker_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)


async def _broker_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.BrokerError)
    return of_broker_error(error)


async def _validation_error(_: Request, error: Exception) -> Response:
    """Wrong parameters."""
    assert isinstance(error, RequestValidationError)
    return invalid(
        FieldProblem(".".join(shown(str(part)) for part in one["loc"][1:]), in_words(one))
        for one in error.errors()
    )


def invalid(found: Iterable[FieldProblem]) -> Response:
    """422 that names every wrong field, at most `MOST_PROBLEMS`."""
    problems = list(itertools.islice(found, MOST_PROBLEMS))
    detail = "; ".join(f"{item.field}: {item.message}" for item in problems[:5])
    if len(problems) > 5:
        detail += f"; and {len(problems) - 5} more"
    return problem("invalid", detail, errors=tuple(problems))


def unknown_name(name: str, known: Iterable[str]) -> str:
    """The message for an unknown field or parameter: it names the nearest valid one."""
    names = sorted(known)
    if len(name) > MOST_NAME_CHARACTERS:
        return "unknown"
    nearest = difflib.get_close_matches(name, names, n=1)
    if nearest:
        return f"unknown; did you mean {nearest[0]!r}?"
    return f"unknown; valid are {', '.join(names)}" if names else "unknown; none is valid here"


# What people get wrong; a pattern says it to programs.
IN_WORDS = {
    QUEUE_NAME_PATTERN: "should be 1 to 200 of the characters A-Z a-z 0-9 . _ -",
    LOG_PATTERN: "should be like builtin:orders, redis://host:6379/0/orders or "
    "kafka://host:9092/orders",
    TEXT_PATTERN: "should have no control characters",
}


def in_words(wrong: Mapping[str, Any]) -> str:
    """One of pydantic's errors in words that help the caller."""
    kind, message = wrong["type"], str(wrong["msg"])
    if kind == "missing":
        return "required"
    if kind == "string_pattern_mismatch":
        message = IN_WORDS.get(wrong["ctx"]["pattern"], message)
    return message.removeprefix("Value error, ").removeprefix("Input ")


def shown(name: str) -> str:
    """A name of the caller's, short enough to be sent back."""
    return name if len(name) <= MOST_NAME_CHARACTERS else f"{name[:MOST_NAME_CHARACTERS]}…"


async def _http_error(request: Request, error: Exception) -> Response:
    """Errors that Starlette and FastAPI raise themselves."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(
            "not_found", f"There is nothing at {shown(request.url.path)}; /docs lists every call."
        )
    if error.status_code == 405:
        methods = _methods_at(request)
        return problem(
            "method_not_allowed",
            f"This path takes {', '.join(methods)}.",
            headers={"Allow": ", ".join(methods)},
        )
    raise error


def _methods_at(request: Request) -> list[str]:
    """Every method that some route takes at this path."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, StarletteRoute) and route.path_regex.match(request.url.path):
            methods |= set(route.methods or ())
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def of_defect(scope: Scope, error: Exception) -> Response:
    """The response for an unexpected error, which is logged."""
    error_id = uuid.uuid4().hex[:8]
    log.error(
        "defect",
        error_id=error_id,
        method=scope["method"],
        path=scope["path"],
        exc_info=error,
    )
    return problem(
        "internal",
        f"The service's log has the details under the id {error_id}; the request may or "
        "may not have been carried out.",
    )
