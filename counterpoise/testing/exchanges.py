"""Requests to a service in memory: httpx's transports for blocking clients and for asyncio.

A flow can be killed (`Flows.kill`). From then on nothing that its program sends arrives, and what
it sends or waits for ends the thread or task that does, like the end of its process would.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import unquote

import httpx

Sent = Mapping[str, Any] | None
_KILLED: Mapping[str, Any] = {"type": "killed"}


class Killed(SystemExit):
    """The flow's process was killed, as far as a thread can be."""


class InProcessServer(Protocol):
    """The service, as the server's wheel has it (`api.testing.MemoryServer`)."""

    def exchange(
        self, scope: Mapping[str, Any], body: bytes, sent: Callable[[Sent], object]
    ) -> Any:
        """Hand in a request; `sent` is called with each message of the answer (ASGI), then None."""
        ...

    def hang_up(self, exchange: Any) -> None:
        """The caller of the request waits no longer."""
        ...


class Flows:
    """Which flows have polled, which were killed, and their requests that wait. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._polling: dict[str, None] = {}
        self._killed: set[str] = set()
        self._waiting: defaultdict[str, list[Callable[[Sent], object]]] = defaultdict(list)

    def renews(self, flow_id: str, has_binder: bool) -> bool:
        """Whether this flow renews its lease by itself. One that a running client has bound does,
        also before its first poll.
        """
        with self._lock:
            return flow_id in self._polling or (has_binder and flow_id not in self._killed)

    def keep_alive(self, flow_id: str) -> None:
        """This flow renews its lease from now on."""
        with self._lock:
            if flow_id not in self._killed:
                self._polling[flow_id] = None

    def kill(self, flow_id: str) -> None:
        """Nothing of this flow arrives any more."""
        with self._lock:
            self._killed.add(flow_id)
            self._polling.pop(flow_id, None)
            waiting = list(self._waiting.pop(flow_id, ()))
        for sent in waiting:
            sent(_KILLED)

    @contextmanager
    def asking(self, method: str, path: str, sent: Callable[[Sent], object]) -> Iterator[bool]:
        """While a request of this path waits. Gives False if its flow was killed."""
        # The last one: a queue may be called `flows`.
        _, _, rest = path.rpartition("/flows/")
        flow_id, _, verb = rest.partition("/")
        with self._lock:
            if flow_id in self._killed:
                yield_alive = False
            else:
                yield_alive = True
                if verb == "updates":
                    self._polling[flow_id] = None
                elif method == "DELETE":
                    self._polling.pop(flow_id, None)
                if flow_id:
                    self._waiting[flow_id].append(sent)
        try:
            yield yield_alive
        finally:
            with self._lock:
                if sent in self._waiting.get(flow_id, ()):
                    self._waiting[flow_id].remove(sent)


def _scope(request: httpx.Request) -> dict[str, Any]:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 1),
        "server": (request.url.host, 80),
        "state": {},
    }


def _limit(request: httpx.Request) -> tuple[float | None, bool]:
    """The real seconds to wait for an answer, and whether there is then nothing new (a poll)."""
    wait = float(request.url.params.get("wait", 0))
    if request.url.path.endswith("/updates") and wait > 0:
        return wait, True
    return request.extensions.get("timeout", {}).get("read"), False


def _nothing_new(request: httpx.Request) -> httpx.Response:
    return httpx.Response(204, stream=httpx.ByteStream(b""), request=request)


def _checked(message: Sent, request: httpx.Request) -> Mapping[str, Any]:
    if message is None:
        raise httpx.RemoteProtocolError("the service hung up", request=request)
    if message["type"] == "http.failed":
        raise httpx.RemoteProtocolError(f"the service failed: {message['error']!r}")
    return message


class BlockingTransport(httpx.BaseTransport):
    """Requests of one blocking client."""

    def __init__(self, server: InProcessServer, flows: Flows) -> None:
        self._server, self._flows = server, flows

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        inbox: queue.SimpleQueue[Sent] = queue.SimpleQueue()
        seconds, is_poll = _limit(request)
        with self._flows.asking(request.method, request.url.path, inbox.put) as alive:
            if not alive:
                raise Killed
            exchange = self._server.exchange(_scope(request), request.read(), inbox.put)
            try:
                head = _checked(inbox.get(timeout=seconds), request)
            except queue.Empty:
                self._server.hang_up(exchange)
                if is_poll:
                    return _nothing_new(request)
                raise httpx.ReadTimeout("no answer in time", request=request) from None
        if head is _KILLED:
            self._server.hang_up(exchange)
            raise Killed
        body = _Body(inbox, lambda: self._server.hang_up(exchange), seconds, request)
        return httpx.Response(head["status"], headers=head["headers"], stream=body)


class _Body(httpx.SyncByteStream):
    def __init__(
        self,
        inbox: queue.SimpleQueue[Sent],
        hang_up: Callable[[], object],
        seconds: float | None,
        request: httpx.Request,
    ) -> None:
        self._inbox, self._hang_up = inbox, hang_up
        self._seconds, self._request = seconds, request
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while not self._ended:
            try:
                message = _checked(self._inbox.get(timeout=self._seconds), self._request)
            except queue.Empty:
                raise httpx.ReadTimeout("no answer in time", request=self._request) from None
            self._ended = not message.get("more_body")
            yield message.get("body", b"")

    def close(self) -> None:
        if not self._ended:
            self._hang_up()


class AsyncTransport(httpx.AsyncBaseTransport):
    """Requests of one asyncio client."""

    def __init__(self, server: InProcessServer, flows: Flows) -> None:
        self._server, self._flows = server, flows

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Sent]()

        def sent(message: Sent) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(inbox.put_nowait, message)

        seconds, is_poll = _limit(request)
        body = await request.aread()
        with self._flows.asking(request.method, request.url.path, sent) as alive:
            if not alive:
                raise asyncio.CancelledError("killed")
            exchange = self._server.exchange(_scope(request), body, sent)
            try:
                async with asyncio.timeout(seconds):
                    head = _checked(await inbox.get(), request)
            except TimeoutError:
                self._server.hang_up(exchange)
                if is_poll:
                    return _nothing_new(request)
                raise httpx.ReadTimeout("no answer in time", request=request) from None
            except asyncio.CancelledError:
                self._server.hang_up(exchange)
                raise
        if head is _KILLED:
            self._server.hang_up(exchange)
            raise asyncio.CancelledError("killed")
        stream = _AsyncBody(inbox, lambda: self._server.hang_up(exchange), request)
        return httpx.Response(head["status"], headers=head["headers"], stream=stream)


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(
        self,
        inbox: asyncio.Queue[Sent],
        hang_up: Callable[[], object],
        request: httpx.Request,
    ) -> None:
        self._inbox, self._hang_up, self._request = inbox, hang_up, request
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = _checked(await self._inbox.get(), self._request)
            self._ended = not message.get("more_body")
            yield message.get("body", b"")

    async def aclose(self) -> None:
        if not self._ended:
            self._hang_up()
