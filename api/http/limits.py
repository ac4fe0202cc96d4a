"""Limits of a request body, checked before the call begins: size, media type, time to arrive.

The limit of the size holds for bodies with a declared length and for chunked ones; at most this
much is read into memory. A body is read completely before the call begins, within a limited time:
a slow sender keeps only its connection busy.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import problem

BODY_SECONDS = 10.0


class _TooLarge(Exception):
    """The body went past the limit while it was being read."""


class _HungUp(Exception):
    """The caller disconnected before its body was complete."""


class RequestLimits:
    """ASGI middleware: 413 for bodies above `limit_bytes`, 415 for bodies that are not JSON, and
    408 for bodies that have not arrived after `body_seconds`."""

    def __init__(self, app: ASGIApp, limit_bytes: int, body_seconds: float = BODY_SECONDS) -> None:
        self.app = app
        self.limit_bytes = limit_bytes
        self.body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length, chunked, media_type = _body_headers(scope)
        if length == 0 and not chunked:
            await self.app(scope, receive, send)
            return
        if length > self.limit_bytes:
            await self._refuse(scope, receive, send)
            return
        if media_type != "application/json":
            response = problem(
                "unsupported_media_type",
                "Send the body as JSON with 'Content-Type: application/json'.",
            )
            await response(scope, receive, send)
            return
        await self._limited(scope, receive, send)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await self._body(receive)
        except _HungUp:
            return
        except _TooLarge:
            await self._refuse(scope, receive, send)
            return
        except TimeoutError:
            response = problem(
                "body_timeout",
                f"The body did not arrive within {self.body_seconds:g} s; send it at once.",
                headers={"Connection": "close"},
            )
            await response(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replayed, send)

    async def _body(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUp
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self.limit_bytes:
                raise _TooLarge
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem(
            "too_large",
            f"A request body may have {self.limit_bytes} bytes; send fewer partitions at once.",
            # The rest of the body is not read, so the connection cannot be used again.
            headers={"Connection": "close"},
        )
        await response(scope, receive, send)


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
