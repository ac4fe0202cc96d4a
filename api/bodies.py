"""Bodies of requests: bounded before the call begins.

**Read when the caller is known.** A route finds out who calls, and only then awaits the body
(`arrive`). Who may not make the call has the answer before its body has come, and takes nothing of
the budget. An answer before the end of the body closes the connection, so nothing of the body is
taken for the next request.

**Bounded.** Only calls that name partitions have large bodies; others have at most `SMALL_BYTES`.
The limit of the size holds for bodies with a declared length and for chunked ones. A body is read
completely before the call begins, within a limited time: a slow sender keeps only its connection
busy.

All bodies together have a budget in bytes (`BodyBudget`), because many callers that each keep their
rate could fill the memory with bodies that wait for their turn. A body takes its declared length
before its first byte is read, a chunked one the limit, and gives it back when the answer begins.
One caller has at most a quarter of the budget, and all callers of one address have half of it
together: a flow is a caller, and one key may have many. Renewals of leases have no bodies and need
none.

**Parsed at once.** The largest body that is allowed holds the event loop for some milliseconds, and
a hostile one takes no longer (`api.requests`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.head import HEAD, Head
from api.metrics import Metrics
from api.problems import RequestRefused, of_defect, problem, shown
from api.rates import Rates
from broker.core.errors import Invalid

BODY_SECONDS = 10.0
SHARE_OF_ONE = 4
SHARE_OF_ADDRESS = 2
# The calls that name partitions. A queue may have the name of one of them.
_LARGE = re.compile(
    "POST /v1/queues(/[^/]+/(positions|flows/[^/]+/(commit|release|ready|children|conditions)))?"
)
# Where the scope of a request has its `Body`, if it has one.
BODY = "counterpoise.body"
# In the scope of a request whose body has been received.
COMPLETE = "counterpoise.complete"
# Of the bodies of other calls.
SMALL_BYTES = 65536


def may_be_large(method: str, path: str) -> bool:
    """Whether a body of this call may be larger than `SMALL_BYTES`."""
    return _LARGE.fullmatch(f"{method} {path}") is not None


class BodyBudget:
    """The bytes of all bodies that are read or wait for their turn."""

    def __init__(self, total: int, largest: int) -> None:
        """`largest`: the largest body; one of them always fits."""
        self.total = max(total, largest)
        self.share = max(self.total // SHARE_OF_ONE, largest)
        self.share_of_address = max(self.total // SHARE_OF_ADDRESS, largest)
        self.taken = 0
        self._by_caller: Counter[object] = Counter()
        self._by_address: Counter[object] = Counter()

    def take(self, head: Head, size: int) -> bool:
        """False if so much is not left, for this caller, for its address, or at all."""
        if (
            self.taken + size > self.total
            # A counter does not keep what it is only asked for.
            or self._by_caller[head.caller] + size > self.share
            or self._by_address[head.network] + size > self.share_of_address
        ):
            return False
        self._add(head, size)
        return True

    def give_back(self, head: Head, size: int) -> None:
        """So much of what the caller has taken is free again."""
        self._add(head, -size)

    def _add(self, head: Head, size: int) -> None:
        self.taken += size
        for counter, whose in ((self._by_caller, head.caller), (self._by_address, head.network)):
            counter[whose] += size
            if not counter[whose]:
                del counter[whose]


class _Answer:
    """Where the answer of a request goes: it gives back what the request holds when it begins."""

    __slots__ = ("_send", "body", "held", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.body: Body | None = None
        # 0: it has not begun.
        self.status = 0
        # Each gives back something that was taken.
        self.held: list[Callable[[], object]] = []

    async def __call__(self, message: Message) -> None:
        if not self.status:
            self.status = message["status"]
            self.give_back()
            if self.body is not None and not self.body.is_whole:
                # Where the next request begins is not known.
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)

    def give_back(self) -> None:
        """The request holds nothing any more; repeating it is harmless."""
        while self.held:
            self.held.pop()()


class Body:
    """The body of one request."""

    __slots__ = ("_answer", "_head", "_limits", "_receive", "content", "is_whole")

    def __init__(self, limits: Limits, head: Head, receive: Receive, answer: _Answer) -> None:
        self._limits = limits
        self._head = head
        self._receive = receive
        self._answer = answer
        self.is_whole = False
        self.content = b""

    async def arrive(self) -> None:
        """Returns when it is whole and the call may begin.

        Raises RequestRefused, ClientDisconnect.
        """
        if self.is_whole:
            return
        # Who sends slowly is not in progress meanwhile.
        self._answer.give_back()
        self.content = await self._limits.read(self._head, self._receive, self._answer)
        self.is_whole = True
        if not await self._limits.rates.begin(self._head, self._answer.held):
            raise await self._limits.too_many()


async def arrive(scope: Scope) -> None:
    """Returns when the body of this request, if it has one, has arrived. Its caller must be known.

    Raises RequestRefused.
    """
    body: Body | None = scope.get(BODY)
    if body is not None:
        await body.arrive()


class Limits:
    """ASGI middleware: see this module."""

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int,
        budget: BodyBudget,
        rates: Rates,
        metrics: Metrics,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`limit_bytes`: of a large body."""
        self.app = app
        self.limit_bytes = limit_bytes
        self.budget = budget
        self.rates = rates
        self.metrics = metrics
        self.body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        answer = _Answer(send)
        try:
            await self._admit(scope, receive, answer)
            await self.app(scope, receive, answer)
        except RequestRefused as refused:
            await refused.response(scope, receive, answer)
        except ClientDisconnect:
            pass
        except Exception as error:
            response = of_defect(scope, error)
            if answer.status:
                # Too late for another answer; the server cuts the connection.
                raise
            await response(scope, receive, answer)
        finally:
            if answer.held:
                answer.give_back()
            # They refer to each other.
            answer.body = None
            self.metrics.count(scope, started, answer.status or 500)

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Returns when the caller may be looked at; the body is still to come.

        Raises RequestRefused.
        """
        head = scope[HEAD] = Head(scope)
        if b"cookie" in head.fields:
            # FastAPI reads cookies for each call, and anybody may send them: Python's parser needs
            # eight seconds for 60 kB of quotes (before 3.11.10 and 3.12.6).
            scope["headers"] = [field for field in scope["headers"] if field[0] != b"cookie"]
        if head.has_body:
            scope[BODY] = answer.body = Body(self, head, receive, answer)
        if wait_seconds := self.rates.wait_seconds(head):
            raise await self.too_many(wait_seconds)
        if not self.rates.enter(head, answer.held):
            raise await self.too_many()
        if head.has_body:
            self._check(head)

    def _check(self, head: Head) -> None:
        """Raise RequestRefused for a body that the head shows to be of no use."""
        limit = self._most_bytes(head)
        if head.length > limit:
            raise _too_large(limit)
        media_type = head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            message = "Send the body as JSON with 'Content-Type: application/json'."
            raise RequestRefused(problem("unsupported_media_type", message))

    def _most_bytes(self, head: Head) -> int:
        if may_be_large(head.method, head.path):
            return self.limit_bytes
        return min(SMALL_BYTES, self.limit_bytes)

    async def read(self, head: Head, receive: Receive, answer: _Answer) -> bytes:
        """The whole body, which holds its part of the budget.

        Raises RequestRefused, ClientDisconnect.
        """
        limit = self._most_bytes(head)
        taken = limit if head.is_chunked else head.length
        if not self.budget.take(head, taken):
            self.rates.refused.labels("bodies").inc()
            raise await self.too_many()
        answer.held.append(partial(self.budget.give_back, head, taken))
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await _whole(receive, limit)
        except TimeoutError:
            message = f"The body did not arrive within {self.body_seconds:g} s; send it at once."
            raise RequestRefused(problem("body_timeout", message)) from None
        if len(body) < taken:
            self.budget.give_back(head, taken - len(body))
            answer.held[-1] = partial(self.budget.give_back, head, len(body))
        return body

    async def too_many(self, wait_seconds: float = 1.0) -> RequestRefused:
        """The answer 429, after a delay (`Rates.hold`)."""
        await self.rates.hold()
        seconds = max(1, math.ceil(wait_seconds))
        response = problem(
            "too_many_requests",
            f"This caller is over its rate, or the service is at its limit; try again in "
            f"{seconds} s, and ask for several partitions at once.",
            headers={"Retry-After": str(seconds)},
        )
        return RequestRefused(response)


async def _whole(receive: Receive, limit: int) -> bytes:
    """The body, joined from what arrives of it. Raises RequestRefused, ClientDisconnect."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large(limit: int) -> RequestRefused:
    message = f"The body of this request may have {limit} bytes; send fewer partitions at once."
    return RequestRefused(problem("too_large", message))


def read_body(request: Request) -> Any:
    """The decoded body; None if there is none. Raises `Invalid`."""
    arrived: Body | None = request.scope.get(BODY)
    body = b"" if arrived is None else arrived.content
    if arrived is not None:
        # So that its memory is free when it is parsed.
        arrived.content = b""
    if not body:
        return None
    try:
        return _loaded(body)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"not JSON: {error.msg} at character {error.pos}") from None


def _loaded(text: bytes) -> Any:
    """The value of the text. Raises `orjson.JSONDecodeError`, and `Invalid` if one of its objects
    has a field twice: which of the two is meant is not known.
    """
    value = orjson.loads(text)
    try:
        # Of two fields with one name only the last is left, so there are fewer colons. Those in
        # texts come back as they were, unless they are written as numbers.
        colons = orjson.dumps(value).count(b":")
    except orjson.JSONEncodeError:
        raise _invalid("too many objects or lists within each other") from None
    if text.count(b":") != colons or b"\\u003" in text:
        json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str)
    return value


def _once(fields: list[tuple[str, object]]) -> dict[str, object]:
    """An object of these fields. Raises `Invalid` if one is there twice."""
    value: dict[str, object] = {}
    for name, one in fields:
        if name in value:
            raise _invalid(f"an object has the field {shown(name)!r} twice")
        value[name] = one
    return value


def _invalid(message: str) -> Invalid:
    return Invalid(f"body: {message}", [("body", message)])
