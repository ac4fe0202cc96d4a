"""Limits of a request body, checked before the call begins: size, media type, time to arrive.

Only calls that name partitions have large bodies; others have at most `SMALL_BYTES`. The limit of
the size holds for bodies with a declared length and for chunked ones. A body is read completely
before the call begins, within a limited time: a slow sender keeps only its connection busy.

All bodies together have a **budget** in bytes (`Budget`), because many callers that each keep their
rate could fill the memory with bodies that wait for their turn. A body takes its declared length
before its first byte is read, a chunked one the limit, and gives it back when the answer begins.
One caller has at most a quarter of the budget. Renewals of leases have no bodies and need none.
"""

import asyncio
import re
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.bodies import SMALL_BYTES
from api.http.problems import problem
from api.http.rates import Rates, refusal

BODY_SECONDS = 10.0
SHARE_OF_ONE = 4
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


class _TooLarge(Exception):
    """The body went past the limit while it was being read."""


class _HungUp(Exception):
    """The caller disconnected before its body was complete."""


class RequestLimits:
    """ASGI middleware: 413 for bodies above `limit_bytes`, 415 for bodies that are not JSON, 429
    for bodies beyond the budget, and 408 for bodies that have not arrived after `body_seconds`."""

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int,
        budget: Budget,
        rates: Rates,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.app = app
        self.limit_bytes = limit_bytes
        self.budget = budget
        self.rates = rates
        self.body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length, chunked, media_type = _body_headers(scope)
        if length == 0 and not chunked:
            await self.app(scope, receive, send)
            return
        is_large = may_be_large(scope["path"])
        limit = self.limit_bytes if is_large else min(SMALL_BYTES, self.limit_bytes)
        if length > limit:
            await self._refuse(limit, scope, receive, send)
            return
        if media_type != "application/json":
            response = problem(
                "unsupported_media_type",
                "Send the body as JSON with 'Content-Type: application/json'.",
                # The body is not read, so the connection cannot be used again.
                headers={"Connection": "close"},
            )
            await response(scope, receive, send)
            return
        caller = self.rates.caller(scope)
        taken = limit if chunked else length
        if not self.budget.take(caller, taken):
            self.rates.refused.labels("bodies").inc()
            response = await refusal(self.rates, 1.0, {"Connection": "close"})
            await response(scope, receive, send)
            return

        def give_back(size: int) -> None:
            nonlocal taken
            taken -= size
            if size:
                self.budget.give_back(caller, size)

        async def answered(message: Message) -> None:
            give_back(taken)
            await send(message)

        try:
            whole = await self._read(limit, scope, receive, send)
            if whole is not None:
                give_back(max(0, taken - len(whole[0]["body"])))
                await self.app(scope, _replayed(whole, receive), answered)
        finally:
            give_back(taken)

    async def _read(
        self, limit: int, scope: Scope, receive: Receive, send: Send
    ) -> list[Message] | None:
        """The body as one message, to be taken out; None if it was refused."""
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await self._body(receive, limit)
                return [{"type": "http.request", "body": body, "more_body": False}]
        except _HungUp:
            return None
        except _TooLarge:
            await self._refuse(limit, scope, receive, send)
        except TimeoutError:
            response = problem(
                "body_timeout",
                f"The body did not arrive within {self.body_seconds:g} s; send it at once.",
                headers={"Connection": "close"},
            )
            await response(scope, receive, send)
        return None

    async def _body(self, receive: Receive, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUp
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise _TooLarge
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _refuse(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem(
            "too_large",
            f"The body of this request may have {limit} bytes; send fewer partitions at once.",
            # The rest of the body is not read, so the connection cannot be used again.
            headers={"Connection": "close"},
        )
        await response(scope, receive, send)


def _replayed(whole: list[Message], receive: Receive) -> Receive:
    """Gives the body once. It is not kept here, so that its memory is free when it was parsed."""

    async def replayed() -> Message:
        return whole.pop() if whole else await receive()

    return replayed


def _body_headers(scope: Scope) -> tuple[int, bool, str]:
    """The declared length (0 if none), whether the body is chunked, and its media type."""
    length, chunked, media_type = 0, False, ""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            length = int(value)
        elif name == b"transfer-encoding":
            chunked = True
        elif name == b"content-type":
            media_type = value.decode("latin-1").partition(";")[0].strip().lower()
    return length, chunked, media_type
