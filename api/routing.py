"""The only kind of route: it checks role and parameters, awaits the body, and calls the endpoint.

Most routes are ordinary FastAPI routes. The most frequent ones (heartbeat, updates, event streams)
are documented in the same way, but a plain Starlette handler serves them, with about half of the
processor time per request: `@served_by(handler)` on the documented signature names the handler.
Parameters that several calls have are at the end, for both kinds of routes.

**A route is completed by its first call**, or for the OpenAPI document. Before that it knows its
path and who may call it. FastAPI reads the signatures of endpoints and builds what validates their
parameters: some milliseconds for each of 50 routes, a tenth of the start of a service, which uses
few of them.

**A database that does not answer.** A stopped Postgres, or a network that swallows everything,
neither answers nor refuses. A call that waits for it ends by the limits of the connections, after
half a minute. The caller gets an answer sooner (`while_reachable`): a call without a result after
`ANSWER_SECONDS` gets 503 if the database has not answered the replica's own check, once a second,
either. A call that takes long while the database answers goes on. The call itself is not ended: it
may be in the middle of a commit. It ends by those limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from fastapi import Path, Query
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute
from msgspec import Struct
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import request_response
from starlette.types import Receive, Scope, Send

from api import bodies, requests
from api.answers import answer
from api.problems import RequestRefused, shown, unknown_name
from api.security import Also, Requirement, authorize, requirement_of
from broker.calls.bound_flows import BoundFlow
from broker.core.errors import Invalid, Unavailable
from broker.replica.store_calls import Awaiter, answered
from broker.service import Broker
from broker.tasks import disregard
from counterpoise import wire
from counterpoise.wire import MOST_INT64, QUEUE_NAME_PATTERN, FieldProblem, RequestBody

T = TypeVar("T")

ANSWER_SECONDS = 6.5
CHECK_SECONDS = 0.25
PROBE_SECONDS = 1.5

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
# Of a poll.
LONGEST_WAIT_SECONDS = 60.0
FLOW_ID_PATTERN = r"^[A-Za-z0-9-]{1,64}$"
# Where the scope of a request has the document that its body is.
_DOCUMENT = "counterpoise.document"
_PATH_PARAMETERS = {
    "queue": (
        re.compile(QUEUE_NAME_PATTERN),
        "1 to 200 of the characters A-Z a-z 0-9 . _ -",
    ),
    "flow": (re.compile(FLOW_ID_PATTERN), "a flow_id as bind answered it"),
    "partition": (re.compile(r"[0-9]{1,10}"), "the number of a partition"),
    "key": (re.compile(r"[0-9a-f]{12}"), "the id of a key, 12 hexadecimal digits"),
    "module": (re.compile(r"[a-z]{1,40}\.js"), "the name of a module of the dashboard"),
}
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

Name = Annotated[
    str,
    Path(
        pattern=QUEUE_NAME_PATTERN,
        description="The name of the queue.",
        openapi_examples={"flights": {"value": "flights"}},
    ),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=500,
        pattern=r"^[\x21-\x7e]+$",
        description="The `next_cursor` of the previous page.",
    ),
]


async def while_reachable(
    call: Coroutine[Any, Any, T], is_reachable: Callable[[], bool], seconds: float = ANSWER_SECONDS
) -> T:
    """The result of `call`. Raises its errors, and `Unavailable` if the database is away."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        while not done:
            if not is_reachable():
                # Its result comes too late for its caller.
                disregard(task)
                raise Unavailable(
                    "The service's database does not answer; the call may or may not be carried "
                    "out. Try again in a moment."
                )
            done, _ = await asyncio.wait((task,), timeout=CHECK_SECONDS)
    except asyncio.CancelledError:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise
    return task.result()


async def in_time(call: Coroutine[Any, Any, T], seconds: float = PROBE_SECONDS) -> T:
    """The result of `call`, which is given up after so many seconds. Raises TimeoutError."""
    task = asyncio.ensure_future(call)
    done, _ = await asyncio.wait((task,), timeout=seconds)
    if done:
        return task.result()
    # Not awaited: its connection takes its own time to close.
    disregard(task)
    task.cancel()
    raise TimeoutError


def served_by(handler: Handler) -> Callable[[Endpoint], Endpoint]:
    """Let a plain handler serve the decorated endpoint, which then only documents the call."""

    def mark(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)["handler"] = handler
        return endpoint

    return mark


# Services in threads of one process share the routes.
_COMPLETING = threading.Lock()


class Route(APIRoute):
    """Checks the path, then the caller's role, then the query's names; then it awaits the body, and
    serves.
    """

    requirement: Requirement

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.requirement = requirement_of(endpoint)
        shown = options.get("include_in_schema", True)
        StarletteRoute.__init__(self, path, endpoint, include_in_schema=shown)
        self.methods = {*(options.get("methods") or ("GET",))}
        # Starlette's `$` also matches before an end of line, and a proxy's rules do not.
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z")
        self._rest: Callable[[], None] | None = partial(self._describe, endpoint, options)

    def complete(self) -> None:
        """Make FastAPI's part of the route, once."""
        if self._rest is not None:
            with _COMPLETING:
                if self._rest is not None:
                    self._rest()
                    self._rest = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that is for this route."""
        self.complete()
        await super().handle(scope, receive, send)

    def _describe(self, endpoint: Callable[..., Any], options: dict[str, Any]) -> None:
        self.handler: Handler | None = vars(endpoint).get("handler")
        # FastAPI describes and writes other answers than documents.
        answers = _documents(endpoint, options.pop("response_model", None))
        self.previews = wire.Preview in answers
        self.document = next((one for one in answers if one is not wire.Preview), None)
        self.taken = _taken(endpoint)
        self.may_be_without = type(None) in get_args(get_type_hints(endpoint).get("body"))
        if answers or self.taken is not None:
            endpoint = _answering(endpoint, options.get("status_code") or 200)
        found_by = self.path_regex
        super().__init__(self.path, endpoint, response_model=None, **options)
        self.path_regex = found_by
        self.query_names = frozenset(parameter.alias for parameter in self.dependant.query_params)
        if self.handler is not None:
            self.app = request_response(self._guarded(self.handler))

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()
        if self.taken is None:
            return self._guarded(handler)
        reader, may_be_without = requests.BodyReader(self.taken), self.may_be_without

        async def read(request: Request) -> Response:
            value = bodies.read_body(request)
            if value is not None:
                request.scope[_DOCUMENT] = reader.read(value)
            elif may_be_without:
                request.scope[_DOCUMENT] = None
            else:
                message = "a JSON object is required as the body"
                raise requests.refused([FieldProblem("body", message)])
            return await handler(request)

        return self._guarded(read)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            check_path(request)
            awaiter = self._awaiter(request)
            try:
                if bodies.BODY in request.scope and bodies.COMPLETE not in request.scope:
                    await awaiter(self._admit(request))
                    await bodies.arrive(request.scope)
                # Also again: the credential may have ended while the body was on its way.
                return await awaiter(served(request))
            except RequestRefused as refused:
                return refused.response

        async def served(request: Request) -> Response:
            await self._admit(request)
            await bodies.arrive(request.scope)
            return await handler(request)

        return guarded

    def _awaiter(self, request: Request) -> Awaiter:
        """What awaits the parts of the call that may need the database."""
        requirement = self.requirement
        is_open = requirement.also is Also.ANYONE and request.method == "GET"
        if requirement.stale_may or is_open:
            # Probes and pages have their own limit.
            return answered
        return partial(request.app.state.answered, seconds=_seconds(request))

    async def _admit(self, request: Request) -> None:
        """Returns if the caller may make the call."""
        await authorize(request, self.requirement)
        self._check_query(request)

    def _check_query(self, request: Request) -> None:
        if not request.scope["query_string"]:
            return
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in self.query_names:
                message = unknown_name(name, self.query_names)
            elif names.count(name) > 1:
                message = "given more than once"
            else:
                continue
            name = shown(name)
            raise Invalid(f"Query parameter {name}: {message}", [(name, message)])


def _documents(endpoint: Callable[..., object], given: Any) -> Sequence[Any]:
    """The documents of `counterpoise.wire` that the endpoint answers: the `response_model` of the
    route, or what the endpoint returns.
    """
    if given is None or isinstance(given, DefaultPlaceholder):
        given = get_type_hints(endpoint).get("return")
    found = get_args(given) if isinstance(given, UnionType) else (given,)
    kinds = [(get_origin(one) or one, one) for one in found]
    return [one for kind, one in kinds if isinstance(kind, type) and issubclass(kind, Struct)]


def _taken(endpoint: Callable[..., object]) -> type[RequestBody] | None:
    """The document of `counterpoise.wire` that the endpoint takes as its `body`; None: nothing."""
    hint = get_type_hints(endpoint).get("body")
    kinds = (one for one in (hint, *get_args(hint)) if isinstance(one, type))
    return next((one for one in kinds if issubclass(one, RequestBody)), None)


def _answering(endpoint: Callable[..., Any], status_code: int) -> Callable[..., Any]:
    """The endpoint with the document that it returns as an answer. A preview is always a 200.

    Its body comes from the request, unknown to FastAPI.
    """

    @wraps(endpoint)
    async def answering(*args: Any, **given: Any) -> Response | None:
        if takes_body:
            given["body"] = given["request"].scope[_DOCUMENT]
        found = await endpoint(*args, **given)
        if found is None or isinstance(found, Response):
            return found
        return answer(found, 200 if isinstance(found, wire.Preview) else status_code)

    signature = inspect.signature(endpoint)
    kept = [one for one in signature.parameters.values() if one.name != "body"]
    takes_body = len(kept) < len(signature.parameters)
    vars(answering)["__signature__"] = signature.replace(parameters=kept)
    return answering


def _seconds(request: Request) -> float:
    """How long the call may take if the database does not answer; a poll may wait besides."""
    wait = request.query_params.get("wait", "") if request.scope["query_string"] else ""
    waits = float(wait) if _NUMBER.fullmatch(wait) else 0.0
    return ANSWER_SECONDS + max(0.0, min(waits, LONGEST_WAIT_SECONDS))


def check_path(request: Request) -> None:
    """Refuse names that no queue or flow can have, before any lookup."""
    for parameter, value in request.path_params.items():
        pattern, expected = _PATH_PARAMETERS[parameter]
        if not pattern.fullmatch(value):
            raise Invalid(f"The path's {parameter} is not {expected}.", [(parameter, expected)])


def whole_number(text: str, name: str, least: int, most: int) -> int:
    """A parameter of a plain handler as a whole number; raises `Invalid` with its name."""
    if _WHOLE.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    raise _not_a_number(name, f"should be a whole number from {least} to {most}")


def number(text: str, name: str, least: float, most: float) -> float:
    """A parameter of a plain handler as a number; raises `Invalid` with its name."""
    if _NUMBER.fullmatch(text) and least <= float(text) <= most:
        return float(text)
    raise _not_a_number(name, f"should be a number from {least:g} to {most:g}")


def _not_a_number(name: str, message: str) -> Invalid:
    return Invalid(f"{name} {message}.", [(name, message)])


def whole(value: object) -> object:
    """Only digits: pydantic would also accept blanks and underscores.

    Comes after the range, which so is in the OpenAPI document.
    """
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("should be a whole number")
    return value


def _true_or_false(value: object) -> object:
    """A JSON boolean: pydantic would also accept `on`, `y` and more."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("should be true or false")
    return value


Flag = Annotated[bool, BeforeValidator(_true_or_false)]
DryRun = Annotated[Flag, Query(description="Change nothing, and say what the call would do.")]
Limit = Annotated[
    int,
    Ge(1),
    Le(1000),
    BeforeValidator(whole),
    Query(description="The most items to return."),
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
    return whole_number(text, "Last-Event-ID", 0, MOST_INT64)
