"""One connection: uvicorn's protocol with limits.

A head (request line and fields) has at most `MOST_HEAD_BYTES` and `MOST_FIELDS`, and arrives within
`HEAD_SECONDS` of its first byte. A new connection has as long for its first byte. Then a connection
may be idle for as long as uvicorn keeps it (`timeout_keep_alive`).

An answer that nobody reads is given up when a whole `timeout_keep_alive` has taken none of it.

The answer of a long poll is one write (`_write_whole`), because one change is told to thousands of
flows: uvicorn writes head and body one after the other, each with a system call.

A connection is small, because thousands of them wait for long: what uvicorn makes in advance for
rare cases is made here when the case comes.

A chunked body has few small chunks (`MOST_CHUNKS`), because each costs more than its bytes, and at
most `MOST_BODY_OVERHEAD_BYTES` that are no body: heads of chunks, extensions, trailers. Trailers
are dropped. uvicorn would add them to the head of the request, which has been checked already and
which a proxy in front has seen without them.

Pipelined requests are answered one after another; at most `MOST_PIPELINED` may be ahead, because
the parser makes requests of all that one read brings, and holds the event loop meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from api.connections.crowd import Crowd
from api.http.problems import CODES, DETAILS, MEDIA_TYPE, problem_body
from api.http.streams import WHOLE

MOST_HEAD_BYTES = 65536
MOST_FIELDS = 100
MOST_PIPELINED = 16
HEAD_SECONDS = 10.0
# Chunks of fewer bytes than this on average are too small if there are more than so many.
MOST_CHUNKS = 1_000
CHUNK_BYTES = 64
# Heads of chunks, their extensions and trailers, beyond what chunks of a usual size take.
MOST_BODY_OVERHEAD_BYTES = 65536


class _Refused(Exception):
    """The request is refused while its head is being read; the argument is the problem's code."""


class _Event:
    """An event of asyncio, which is made when somebody waits for it: it takes 0.7 KB."""

    __slots__ = ("_event", "_is_set")

    def __init__(self, is_set: bool = False) -> None:
        self._is_set = is_set
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self._is_set = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> bool:
        if not self._is_set:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()
        return True


class _Few(list[Any]):
    """A deque of few: an empty one of Python takes 0.7 KB."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class Connection(HttpToolsProtocol):
    """One connection of a `Crowd`."""

    # Python keeps attributes in a dictionary of its own for each object that has more than 30.
    __slots__ = (
        "_answered",
        "_body_bytes",
        "_chunks",
        "_crowd",
        "_head_begun",
        "_head_bytes",
        "_head_seconds",
        "_head_timer",
        "_in_body",
        "_made",
        "_received_bytes",
        "_refusal",
        "_unread",
        "host",
        "opening",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        crowd: Crowd,
        host: str,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        """`host`: the peer's address."""
        super().__init__(config, server_state, app_state)
        self.pipeline = _Few()  # type: ignore[assignment]
        self.host = host
        self._crowd = crowd
        self._head_seconds = head_seconds
        self._made = False
        self._answered = True
        self._head_begun = False
        self._head_bytes = 0
        self._in_body = False
        # Of the present body: what has arrived since its head, and how much of it is body.
        self._received_bytes = self._body_bytes = self._chunks = 0
        self._refusal = ""
        self._head_timer: asyncio.TimerHandle | None = None
        # What the peer had not read when an idle time began.
        self._unread = 0
        self.opening: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """End the connection at once, also amid its handshake."""
        if self._made:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    # The connection's life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._made = True
        super().connection_made(transport)
        self.flow._is_writable_event = _Event(is_set=True)  # type: ignore[assignment]
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leaves(self)
        self._forget_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._forget_head()
        super().shutdown()

    # What arrives

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # There is nothing to upgrade to; the request is served as it is.
            pass
        except httptools.HttpParserError:
            self._refuse(self._refusal or "malformed")
            return
        if self._in_body:
            self._received_bytes += len(data)
            overhead = self._received_bytes - self._body_bytes
            if overhead > MOST_BODY_OVERHEAD_BYTES + self._body_bytes:
                self._refuse("malformed")
        elif self._head_begun:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse("head_too_large")
            elif self._head_timer is None:
                self._expect_head()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = "malformed"
            raise _Refused
        self._unset_keepalive_if_required()
        self._head_begun, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MOST_HEAD_BYTES or len(self.headers) > MOST_FIELDS:
            self._refusal = "head_too_large"
            raise _Refused
        self._head_begun, self._in_body = False, True
        self._received_bytes = self._body_bytes = self._chunks = 0
        self._forget_head()
        self._unset_keepalive_if_required()
        self._answered = False
        super().on_headers_complete()
        self.cycle.message_event = _Event()  # type: ignore[assignment]
        # The application begins later, in a task.
        self.scope[WHOLE] = self._write_whole  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """A chunk begins; httptools calls it."""
        self._chunks += 1
        if self._chunks > MOST_CHUNKS + self._body_bytes // CHUNK_BYTES:
            self._refusal = "malformed"
            raise _Refused

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._crowd.works(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._answered = self.cycle.response_complete
        if self.transport.is_closing():
            self._unread = self.transport.get_write_buffer_size()
            if self._unread:
                self._expect_reader()
        elif self._answered:
            self._crowd.waits(self)

    def _write_whole(
        self, scope: Scope, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Answers the request of this scope; `headers` say how long the body is. False: it is a
        rare case, which is left to uvicorn.
        """
        cycle = self.cycle
        if (
            cycle.scope is not scope
            or cycle.response_started
            or cycle.disconnected
            or cycle.flow.write_paused
            or not cycle.keep_alive
            or scope["method"] == "HEAD"
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        head = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            head += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*head, b"\r\n", body)))
        cycle.message_event.set()
        cycle.on_response()
        return True

    # What does not arrive

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_begun:
            self._refuse("head_timeout")
        elif not self.transport.is_closing():
            self.transport.close()

    def _expect_reader(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come for so long; the peer may still read."""
        unread, before = self.transport.get_write_buffer_size(), self._unread
        if not unread:
            self.transport.close()
        elif before and unread >= before:
            self.transport.abort()
        else:
            self._unread = unread
            self._expect_reader()

    # What is refused before there is a request

    def _refuse(self, code: str) -> None:
        """Answer with a problem and close; without an answer if another one is on its way."""
        self._crowd.ended.labels(code).inc()
        self._forget_head()
        if self.transport.is_closing():
            return
        if not self._answered and (
            self.cycle.response_started or self.pipeline or not self._in_body
        ):
            self.transport.abort()
            return
        body = problem_body(code, DETAILS[code])
        self.transport.write(
            STATUS_LINE[CODES[code][0]]
            + f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n".encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        self.transport.close()
