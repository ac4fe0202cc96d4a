"""The service's connections: accepted, bounded in number, size and time, and ended.

uvicorn speaks HTTP with httptools, which has no limits. Its other parser, h11, is written in Python
and bounds the size of a head. Neither bounds the time of a head or the number of idle connections.
So these limits are here:

- `OpenConnections`: all connections, and how many may wait.
- `Connection`: one connection. A head has a size, a number of fields and a time.
- `Acceptor`: where connections come from.

**All connections.** A connection *waits* from its beginning, or the end of an answer, until a whole
request has arrived: with its handshake, its head and its body. It waits, too, while its peer does
not read what was written. A stranger can bring a connection no further than this. So the
connections that wait are bounded for each address, and so is what they have not read
(`MOST_UNREAD_BYTES`: an answer may have megabytes). Beyond a bound the
connection that waits longest is ended. An honest client hardly notices: it opens another one. All
connections together are bounded by the files that the process may open. Where no file is left, the
connection that waits longest, of the address of which most wait, makes room; if none waits, an
event stream does (`api.streams.OpenStreams`).

**One connection** is uvicorn's protocol with limits. A head (request line and fields) has at most
`MOST_HEAD_BYTES` and `MOST_FIELDS`, and arrives within `HEAD_SECONDS` of its first byte. A new
connection has as long for its first byte. Then a connection may be idle for as long as uvicorn
keeps it (`timeout_keep_alive`). An answer that nobody reads, also an event stream, is given up when
a whole `timeout_keep_alive` has taken none of it. Pipelined requests are answered one after
another; at most `MOST_PIPELINED` may be ahead, because the parser makes requests of all that one
read brings, and holds the event loop meanwhile.

Two things are made for many waiting flows. The answer of a long poll is one write (`_write_whole`),
because one change goes to thousands of flows, and uvicorn writes head and body one after the other,
each with a system call. And a connection is small: what uvicorn makes in advance for rare cases is
made here when the case comes.

**Accepting.** A connection is counted by its address before its first byte and before the handshake
of TLS. asyncio's servers know an address only after the handshake, and uvloop's do not report that
the process may open no more files: they take and drop connections silently. So connections are
accepted here, and given to the loop one by one. Running out of files is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import resource
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import httptools
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from api.bodies import COMPLETE
from api.head import network_of
from api.problems import CODES, DETAILS, MEDIA_TYPE, problem_body
from api.streams import ABORT, WRITE_WHOLE

log = structlog.get_logger("api")

LOG_SECONDS = 10.0
MOST_HEAD_BYTES = 65536
MOST_FIELDS = 100
VERSIONS = ("1.1", "1.0")
# Fields that decide who calls: of two, a proxy and the service might each take another one.
FIELDS_ONCE = frozenset((b"authorization", b"host", b"origin", b"sec-fetch-site"))
MOST_PIPELINED = 16
# They say that a body follows, and how long it is.
_OF_BODIES = frozenset((b"content-length", b"transfer-encoding"))
# Of all connections of one address whose peers do not read.
MOST_UNREAD_BYTES = 64 * 2**20
HEAD_SECONDS = 10.0
# Chunks of fewer bytes than this on average are too small if there are more than so many.
MOST_CHUNKS = 1_000
CHUNK_BYTES = 64
# Heads of chunks, their extensions and trailers, beyond what chunks of a usual size take.
MOST_BODY_OVERHEAD_BYTES = 65536
# Each connection costs some ten kilobytes, so more of them would be memory for gigabytes.
MOST_FILES = 65536
# For everything but connections of callers: databases, logs, the certificate.
RESERVED_FILES = 128
# Accepted at once, before requests have their turn.
MOST_AT_ONCE = 64
PAUSE_SECONDS = 0.1
_NO_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class OpenConnections:
    """The connections of one application."""

    def __init__(
        self,
        most_waiting_an_address: int,
        registry: CollectorRegistry,
        end_a_stream: Callable[[], bool] = lambda: False,
    ) -> None:
        """`end_a_stream` ends one more connection, if it can."""
        self.most_waiting_an_address = most_waiting_an_address
        self._end_a_stream = end_a_stream
        # All connections together; the server sets it when it knows how many files it may open.
        self.most = 2**31
        self._logged_at = -LOG_SECONDS
        self._open: set[Connection] = set()
        # Of each address, the longest waiting first.
        self._waiting: dict[str, OrderedDict[Connection, None]] = {}
        # What their peers had not read when they began to wait for that.
        self._unread: dict[str, dict[Connection, int]] = {}
        self.ended = Counter(
            "counterpoise_http_connections_ended",
            "Connections that the service has ended or not taken: too many of one address wait for "
            "a request, or have too much unread; no files are left; the head of a request was too "
            "large or too slow; or what came was no HTTP.",
            ("reason",),
            registry=registry,
        )
        gauge = Gauge("counterpoise_http_connections", "Open connections.", registry=registry)
        gauge.set_function(lambda: len(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def joins(self, connection: Connection) -> bool:
        """A connection was accepted, and waits. False if there is no room for it."""
        if len(self._open) >= self.most:
            self.out_of_files("the limit of connections is reached")
            if not self.make_room():
                return False
        self._open.add(connection)
        self.waits(connection)
        return True

    def waits(self, connection: Connection) -> None:
        """The connection waits for its next request, or for its peer to read."""
        of_address = self._waiting.setdefault(network_of(connection.host), OrderedDict())
        of_address[connection] = None
        if len(of_address) > self.most_waiting_an_address:
            self.ended.labels("address").inc()
            self._end(next(iter(of_address)))

    def works(self, connection: Connection) -> None:
        """A whole request has arrived on the connection."""
        network = network_of(connection.host)
        of_address = self._waiting.get(network)
        if of_address is None or connection not in of_address:
            return
        del of_address[connection]
        if not of_address:
            del self._waiting[network]

    def unread(self, connection: Connection, size: int) -> None:
        """The connection waits for its peer to read so many bytes."""
        self.waits(connection)
        of_address = self._unread.setdefault(network_of(connection.host), {})
        of_address[connection] = size
        while len(of_address) > 1 and sum(of_address.values()) > MOST_UNREAD_BYTES:
            self.ended.labels("unread").inc()
            self._end(next(iter(of_address)))

    def has_read(self, connection: Connection) -> None:
        """The peer has read nearly all of it; repeating it is harmless."""
        network = network_of(connection.host)
        of_address = self._unread.get(network, {})
        if of_address.pop(connection, 0) and not of_address:
            del self._unread[network]

    def leaves(self, connection: Connection) -> None:
        """The connection has ended; repeating it is harmless."""
        self.works(connection)
        self.has_read(connection)
        self._open.discard(connection)

    def out_of_files(self, error: str) -> None:
        """Say that a connection could not be accepted for lack of files; often is said once."""
        self.ended.labels("files").inc()
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.error(
                "too many files are open: connections that wait for a request, and event streams, "
                "make room",
                connections=len(self._open),
                limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                error=error,
            )

    def make_room(self) -> bool:
        """End the connection that waits longest, of the address of which most wait, or a stream's;
        False without any."""
        most = max(self._waiting.values(), key=len, default=None)
        if most is None:
            return self._end_a_stream()
        self._end(next(iter(most)))
        return True

    def _end(self, connection: Connection) -> None:
        self.leaves(connection)
        connection.abort()


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
    """One of the `OpenConnections`."""

    # Python keeps attributes in a dictionary of its own for each object that has more than 30.
    __slots__ = (
        "_answered",
        "_body_bytes",
        "_chunks",
        "_head_begun",
        "_head_bytes",
        "_head_seconds",
        "_head_timer",
        "_in_body",
        "_made",
        "_open_connections",
        "_reader_timer",
        "_received_bytes",
        "_refusal",
        "_running",
        "_unread",
        "host",
        "opening",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        open_connections: OpenConnections,
        host: str,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        """`host`: the peer's address."""
        super().__init__(config, server_state, app_state)
        self.pipeline = _Few()  # type: ignore[assignment]
        self.host = host
        self._open_connections = open_connections
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
        self._reader_timer: asyncio.TimerHandle | None = None
        # What the peer had not read when an idle time began.
        self._unread = 0
        self.opening: asyncio.Task[None] | None = None
        # The request that the application serves, or has served last: pipelined ones come after it.
        self._running: RequestResponseCycle | None = None

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
        self._open_connections.leaves(self)
        self._forget_head()
        self._forget_reader()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._leave_requests()

    def _leave_requests(self) -> None:
        """The request that is served is told that its peer is gone: of pipelined ones uvicorn tells
        only the last. After that the connection refers to no request: the scope of each refers to
        the connection, and what is in a reference cycle may stay for ever (`broker.replica.replica`
        says why).
        """
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        self._running = self.cycle = self.scope = None  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, _without_chunks(app, cycle) if is_old else app)

    def shutdown(self) -> None:
        self._forget_head()
        super().shutdown()

    # What arrives

    def data_received(self, data: bytes) -> None:
        rest = data
        try:
            while rest:
                rest = self._parse(rest)
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

    def _parse(self, data: bytes) -> bytes:
        """Parse what has arrived. Returns what is left behind the head of a request that asks for
        an upgrade: there is nothing to upgrade to, so it is served like others.

        The parser takes what follows for another protocol, also the body. So another parser reads
        that, which is told how long it is.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._in_body:
                fields = [b"%s: %s\r\n" % field for field in self.headers if field[0] in _OF_BODIES]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(fields))
            return data[upgrade.args[0] :]
        return b""

    def on_message_begin(self) -> None:
        if self._in_body:
            # Of the present request; only its body is parsed.
            return
        if len(self.pipeline) >= MOST_PIPELINED:
            raise self._refused("malformed")
        self._unset_keepalive_if_required()
        self._head_begun, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._in_body:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MOST_HEAD_BYTES or len(self.headers) > MOST_FIELDS:
            raise self._refused("head_too_large")
        once = [name for name, _ in self.headers if name in FIELDS_ONCE]
        version = self.parser.get_http_version()
        is_named = b"host" in once or version == "1.0"
        if len(once) > len(set(once)) or version not in VERSIONS or not is_named:
            raise self._refused("malformed")
        # Of an HTTP/1.0 client that is no expectation (RFC 9110, 10.1.1).
        self.expect_100_continue &= version == "1.1"
        self._head_begun, self._in_body = False, True
        self._received_bytes = self._body_bytes = self._chunks = 0
        self._forget_head()
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self._answered = False
        self.cycle.message_event = _Event()  # type: ignore[assignment]
        # The application begins later, in a task.
        self.scope[WRITE_WHOLE] = self._write_whole  # type: ignore[literal-required]
        self.scope[ABORT] = self.abort  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """A chunk begins; httptools calls it."""
        self._chunks += 1
        if self._chunks > MOST_CHUNKS + self._body_bytes // CHUNK_BYTES:
            raise self._refused("malformed")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and any(name in _OF_BODIES for name, _ in self.headers):
            # The body is still to come.
            return
        self._in_body = False
        self.scope[COMPLETE] = True  # type: ignore[literal-required]
        super().on_message_complete()
        if not self.cycle.response_complete and not self.flow.write_paused:
            self._open_connections.works(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._answered = self.cycle.response_complete
        if self.transport.is_closing():
            self._unread = self.transport.get_write_buffer_size()
            if self._unread:
                self._expect_reader()
                self._open_connections.waits(self)
        elif self._answered:
            self._open_connections.waits(self)

    def _write_whole(
        self, scope: Scope, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Answers the request of this scope; `headers` say how long the body is. False: it is a
        rare case, which is left to uvicorn.
        """
        cycle = self._running
        if (
            cycle is None  # the connection is lost
            or cycle.scope is not scope
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

    def pause_writing(self) -> None:
        super().pause_writing()
        unread = self.transport.get_write_buffer_size()
        self._watch_reader(unread)
        self._open_connections.unread(self, unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()
        self._open_connections.has_read(self)
        if not self._answered:
            self._open_connections.works(self)

    def _watch_reader(self, unread: int) -> None:
        self._reader_timer = self.loop.call_later(
            self.timeout_keep_alive, self._reader_is_late, unread
        )

    def _reader_is_late(self, before: int) -> None:
        """Nothing was written for so long, because the peer reads too little."""
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self._reader_timer = None
            self.transport.abort()
        else:
            self._watch_reader(unread)

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    # What is refused before there is a request

    def _refused(self, code: str) -> httptools.HttpParserError:
        """For a callback of the parser, which raises another error in its place."""
        self._refusal = code
        return httptools.HttpParserError(code)

    def _refuse(self, code: str) -> None:
        """Answer with a problem and close; without an answer if another one is on its way."""
        self._open_connections.ended.labels(code).inc()
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


def _without_chunks(app: Any, cycle: RequestResponseCycle) -> Any:
    """The application for an HTTP/1.0 client, which knows no chunks: a body whose length is not
    given ends with the connection (RFC 9112, 6.1 and 6.3).
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        is_sized = False

        async def sending(message: Message) -> None:
            nonlocal is_sized
            if message["type"] == "http.response.start":
                is_sized = any(name == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if is_sized else False
            elif not is_sized:
                # Else uvicorn compares the body with the length.
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, sending)

    return run


def raise_file_limit(most: int = MOST_FILES) -> int:
    """Let this process open as many files as it may, at most `most`. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return min(soft, most) if soft != resource.RLIM_INFINITY else most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays as it is", limit=soft, error=str(error))
        return soft
    return wanted


class Acceptor:
    """Accepts on one listening socket, in the place of the loop's own server."""

    def __init__(
        self,
        listener: socket.socket,
        open_connections: OpenConnections,
        connect: Callable[[str], Connection],
        tls: ssl.SSLContext | None,
        handshake_seconds: float = HEAD_SECONDS,
    ) -> None:
        """`connect` makes the protocol of a peer, by its address."""
        self._handshake_seconds = handshake_seconds
        self._listener = listener
        self._open_connections = open_connections
        self._connect = connect
        self._tls = tls
        self.loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self.loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Connections that are open go on."""
        if self._listener.fileno() >= 0:
            self.loop.remove_reader(self._listener.fileno())
        if self._resuming is not None:
            self._resuming.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when no handshake is under way any more."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                peer, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._out_of_files(error)
                return
            peer.setblocking(False)
            connection = self._connect(address[0] if isinstance(address, tuple) else "")
            if not self._open_connections.joins(connection):
                peer.close()
                continue
            task = self.loop.create_task(self._open(connection, peer))
            connection.opening = task
            self._opening.add(task)
            # Not within the task: one that is ended before it begins never runs.
            task.add_done_callback(functools.partial(self._opened, connection, peer))

    async def _open(self, connection: Connection, peer: socket.socket) -> None:
        # Small answers must not wait for acknowledgements.
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self.loop.connect_accepted_socket(
            lambda: connection,
            peer,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._handshake_seconds,
        )

    def _opened(
        self, connection: Connection, peer: socket.socket, task: asyncio.Task[None]
    ) -> None:
        self._opening.discard(task)
        connection.opening = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        self._open_connections.leaves(connection)
        if connection._made:
            # It was ended in the turn that made it: uvloop closes it and tells nobody.
            connection.connection_lost(None)
        peer.close()
        if isinstance(error, OSError):
            # No handshake, or gone already: a stranger's fault is not worth a line in the log.
            self._open_connections.ended.labels("handshake").inc()
        elif not task.cancelled():
            log.error("defect while a connection was opened", exc_info=error)

    def _out_of_files(self, error: OSError) -> None:
        """Make room, and let those who wait for being accepted wait a moment longer."""
        self._open_connections.out_of_files(str(error))
        for _ in range(MOST_AT_ONCE):
            self._open_connections.make_room()
        self.loop.remove_reader(self._listener.fileno())
        self._resuming = self.loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self.loop.add_reader(self._listener.fileno(), self._accept)
