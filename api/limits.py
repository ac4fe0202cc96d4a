"""What a request may be, checked before anything reads it: its size and its media type.

The limit holds for bodies that declare their length and for chunked ones alike; no more than the
limit is ever read into memory.
"""

import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem


class _TooLarge(Exception):
    """The body went past the limit while it was being read."""


class RequestLimits:
    """ASGI middleware: 413 for bodies above `limit_bytes`, 415 for ones that are not JSON."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self.app = app
        self.limit_bytes = limit_bytes

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
        seen_bytes = 0
        too_large = started = False

        async def counted() -> Message:
            nonlocal seen_bytes, too_large
            message = await receive()
            seen_bytes += len(message.get("body", b""))
            if seen_bytes > self.limit_bytes:
                too_large = True
                raise _TooLarge
            return message

        async def guarded(message: Message) -> None:
            # Whatever the application makes of the failed read, this answer is the true one.
            nonlocal started
            if not too_large:
                started = True
                await send(message)

        with contextlib.suppress(_TooLarge):
            await self.app(scope, counted, guarded)
        if too_large and not started:
            await self._refuse(scope, receive, send)

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
