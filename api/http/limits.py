"""The one layer around every call: it limits, counts, and answers for what goes wrong.

A request passes, in this order,

1. the rate of its caller (`api.http.rates`): 429;
2. the limits of its body: 413, 415, 429, 408;
3. the limit of requests in progress: 429;
4. the application. An error that nobody expected is logged once, and answered without its details.

What it takes on its way (bytes of the budget, a place among the requests in progress) it gives back
when its answer begins.

**Bodies.** Only calls that name partitions have large bodies; others have at most `SMALL_BYTES`.
The limit of the size holds for bodies with a declared length and for chunked ones. A body is read
completely before the call begins, within a limited time: a slow sender keeps only its connection
busy.

All bodies together have a **budget** in bytes (`Budget`), because many callers that each keep their
rate could fill the memory with bodies that wait for their turn. A body takes its declared length
before its first byte is read, a chunked one the limit. One caller has at most a quarter of the
budget. Renewals of leases have no bodies and need none.
"""

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.bodies import BODY, SMALL_BYTES
from api.http.head import HEAD, Head
from api.http.metrics import Metrics
from api.http.problems import of_defect, problem
from api.http.rates import Rates

BODY_SECONDS = 10.0
SHARE_OF_ONE = 4
# What is not read whole leaves the connection of no further use.
_CLOSE = {"Connection": "close"}
# The calls that name partitions. A queue may have the name of one of them.
_LARGE = re.compile(
    "/v1/queues/[^/]+/(positions|flows/[^/]+/(commit|release|ready|children|conditions))"
)


def may_be_large(path: str) -> bool:
    """Whether a body of this call may be larger than `SMALL_BYTES`."""
    return _LARGE.fullmatch(path) is not None


class Budget:
    """The bytes of all bodies that are read or wait for their turn."""

    def __init__(self, total: int, largest: int) -> None:
        """`largest`: the largest body; one of them always fits."""
        self.total = max(total, largest)
        self.share = max(self.total // SHARE_OF_ONE, largest)
        self.taken = 0
        self._by_caller: Counter[object] = Counter()

    def take(self, caller: object, size: int) -> bool:
        """False if so much is not left, for this caller or at all."""
        if self.taken + size > self.total or self._by_caller[caller] + size > self.share:
            if not self._by_caller[caller]:
                del self._by_caller[caller]
            return False
        self.taken += size
        self._by_caller[caller] += size
        return True

    def give_back(self, caller: object, size: int) -> None:
        """So much of what the caller has taken is free again."""
        self.taken -= size
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]


class _Refused(Exception):
    """The request gets this answer, and is not carried out."""

    def __init__(self, response: Response) -> None:
        self.response = response


class _HungUp(Exception):
    """The caller disconnected before its body was complete."""


class _Answer:
    """Where the answer of a request goes: it gives back what the request holds when it begins."""

    __slots__ = ("_send", "held", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        # 0: it has not begun.
        self.status = 0
        # Each gives back something that was taken.
        self.held: list[Callable[[], object]] = []

    async def __call__(self, message: Message) -> None:
        if not self.status:
            self.status = message["status"]
            self.give_back()
        await self._send(message)

    def give_back(self) -> None:
        """The request holds nothing any more; repeating it is harmless."""
        while self.held:
            self.held.pop()()


class Limits:
    """ASGI middleware: see this module."""

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int,
        budget: Budget,
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
        except _Refused as refused:
            await refused.response(scope, receive, answer)
        except _HungUp:
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
            self.metrics.count(scope, started, answer.status or 500)

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Returns when the call may begin; its body is in the scope. Raises _Refused, _HungUp."""
        head = scope[HEAD] = Head(scope)
        if wait_seconds := self.rates.wait_seconds(head):
            raise await self._too_many(wait_seconds, _CLOSE if head.has_body else {})
        if head.has_body:
            scope[BODY] = await self._read(head, receive, answer)
        if not await self.rates.begin(head, answer.held):
            raise await self._too_many()

    async def _read(self, head: Head, receive: Receive, answer: _Answer) -> bytes:
        """The whole body, which holds its part of the budget."""
        is_large = may_be_large(head.path)
        limit = self.limit_bytes if is_large else min(SMALL_BYTES, self.limit_bytes)
        if head.length > limit:
            raise _too_large(limit)
        media_type = head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            message = "Send the body as JSON with 'Content-Type: application/json'."
            raise _Refused(problem("unsupported_media_type", message, headers=_CLOSE))
        taken = limit if head.is_chunked else head.length
        if not self.budget.take(head.caller, taken):
            self.rates.refused.labels("bodies").inc()
            raise await self._too_many(headers=_CLOSE)
        answer.held.append(partial(self.budget.give_back, head.caller, taken))
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await _whole(receive, limit)
        except TimeoutError:
            message = f"The body did not arrive within {self.body_seconds:g} s; send it at once."
            raise _Refused(problem("body_timeout", message, headers=_CLOSE)) from None
        if len(body) < taken:
            self.budget.give_back(head.caller, taken - len(body))
            answer.held[-1] = partial(self.budget.give_back, head.caller, len(body))
        return body

    async def _too_many(
        self, wait_seconds: float = 1.0, headers: dict[str, str] | None = None
    ) -> _Refused:
        """The answer 429, after a delay (`Rates.hold`)."""
        await self.rates.hold()
        seconds = max(1, math.ceil(wait_seconds))
        response = problem(
            "too_many_requests",
            f"This caller is over its rate, or the service is at its limit; try again in "
            f"{seconds} s, and ask for several partitions at once.",
            headers={**(headers or {}), "Retry-After": str(seconds)},
        )
        return _Refused(response)


async def _whole(receive: Receive, limit: int) -> bytes:
    """The body, joined from what arrives of it. Raises _Refused, _HungUp."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _too_large(limit: int) -> _Refused:
    message = f"The body of this request may have {limit} bytes; send fewer partitions at once."
    return _Refused(problem("too_large", message, headers=_CLOSE))
