"""Calls that stay open: long polls and event streams.

A request goes through a dozen layers: limits, metrics, errors, routing, permissions. Together they
keep some twenty kilobytes for as long as the call is under way. A long poll waits most of its time,
and thousands of flows wait at once. So its handler returns a `DeferredCall`: the layers end without
an answer, and only then the application lets the call wait (`api.app.Application`). What the layers
do with an answer, the `DeferredCall` does itself: an error becomes a problem document, and the
request is counted when it ends.

An event stream sends each item of its source immediately. There is no queue per connection, so a
slow reader gets only the latest state. While there are no events, the stream sends a comment from
time to time, so that proxies and readers know that the connection is alive.

Each open stream keeps a connection and some ten kilobytes, for as long as its reader likes. So the
streams of one key, of one flow and of one address are bounded (`OpenStreams`), and where no file is
left for another connection they make room, after those that wait for a request.

uvicorn waits for open responses when it stops. So the service ends them itself before that:
`OpenCalls.end` cancels pending calls, and `OpenCalls.waiting` turns this into an ordinary end of
the call.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Gauge
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.head import HEAD, Head
from api.problems import RequestRefused, of_broker_error, of_defect, problem
from api.rates import Rates
from broker import tracing
from broker.calls.updates import NOT_RENEWED
from broker.core.errors import BrokerError, Invalid, Unauthorized, Unavailable
from broker.tasks import disregard

T = TypeVar("T")

log = structlog.get_logger("api")

# Where the scope of a request has the call that waits.
DEFERRED = "counterpoise.later"
# Where it has what writes a whole answer at once, if it does not leave it to `send`.
WRITE_WHOLE = "counterpoise.whole"
# Where it has what ends its connection at once.
ABORT = "counterpoise.abort"
# There if the answer has a head and no body.
IS_HEAD = "counterpoise.is_head"
KEEP_ALIVE_SECONDS = 15.0
# A reader that lost its connection tries again after this long.
RETRY_MILLISECONDS = 1000
STOPS = "The service stops; try again."
# Who is over a limit of streams may try again after this long; until then it has to close some.
FULL_SECONDS = 5
_KIND = Literal["key", "flow", "address"]
_TO_DO: Mapping[_KIND, str] = {
    "key": "close some, or give each program a key of its own",
    "flow": "close those that nobody reads; a flow needs one",
    "address": "close some; callers behind one proxy share its address",
}


class OpenCalls:
    """The calls of one application that wait for an event."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    async def waiting(self, call: Coroutine[Any, Any, T], *, renews: bool = False) -> T | None:
        """The result of `call`, or None if the service ends first.

        A call that `renews` a lease raises Unavailable if the service ends before it has: the
        answer that there is nothing new would tell the flow that it has.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._ended.is_set():
            call.close()
            if renews:
                raise Unavailable(STOPS)
            return None
        self._tasks.add(task)
        try:
            return await call
        except asyncio.CancelledError as cancelled:
            if not self._ended.is_set() or task.uncancel() > 0:
                raise
            if renews and NOT_RENEWED in cancelled.args:
                raise Unavailable(STOPS) from None
            return None
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End every open call and every later one. Call it in the event loop."""
        if not self._ended.is_set():
            self._ended.set()
            for task in self._tasks:
                task.cancel()


class StreamHolder(NamedTuple):
    """Whose streams are counted together."""

    kind: _KIND
    id: object


class OpenStreams:
    """The event streams of one application, by their holders."""

    def __init__(
        self,
        of_a_key: int,
        of_a_flow: int,
        of_an_address: int,
        rates: Rates,
        registry: CollectorRegistry,
    ) -> None:
        """How many streams each may have. `rates` counts and delays refusals."""
        self._most: Mapping[_KIND, int]
        self._most = {"key": of_a_key, "flow": of_a_flow, "address": of_an_address}
        self._rates = rates
        # What ends each stream's connection, the longest open first.
        self._by_holder: dict[StreamHolder, dict[object, Callable[[], object]]] = {}
        self._holders: dict[object, tuple[StreamHolder, ...]] = {}
        gauge = Gauge(
            "counterpoise_http_open_streams", "Event streams that are open.", registry=registry
        )
        gauge.set_function(lambda: len(self._holders))

    def __len__(self) -> int:
        return len(self._holders)

    @contextlib.asynccontextmanager
    async def holding(self, scope: Scope, holder: StreamHolder | None) -> AsyncIterator[None]:
        """While the stream of this request is open; it counts for `holder` and for its address.

        Raises RequestRefused for one too many.
        """
        head: Head = scope[HEAD]
        holders = [StreamHolder("address", head.network), *([] if holder is None else [holder])]
        for each in reversed(holders):
            most = self._most[each.kind]
            if len(self._by_holder.get(each, ())) >= most:
                raise RequestRefused(await self._refusal(each.kind, most))
        place = object()
        self._holders[place] = (*holders,)
        for each in holders:
            self._by_holder.setdefault(each, {})[place] = scope.get(ABORT, _nothing)
        try:
            yield
        finally:
            self._forget(place)

    def _forget(self, place: object) -> None:
        for each in self._holders.pop(place, ()):
            of_holder = self._by_holder[each]
            del of_holder[place]
            if not of_holder:
                del self._by_holder[each]

    async def _refusal(self, kind: _KIND, most: int) -> Response:
        """The answer for one stream too many, after a delay."""
        self._rates.refused.labels(f"{kind}_streams").inc()
        await self._rates.hold()
        return problem(
            "too_many_requests",
            f"This {kind} has {most} event streams open, and may not have more: {_TO_DO[kind]}. "
            f"The setting COUNTERPOISE_{kind.upper()}_STREAMS is the limit.",
            headers={"Retry-After": str(FULL_SECONDS)},
        )

    def make_room(self) -> bool:
        """End the longest open stream of the address that has the most; False without any."""
        of_addresses = [
            places for holder, places in self._by_holder.items() if holder.kind == "address"
        ]
        if not of_addresses:
            return False
        place, abort = next(iter(max(of_addresses, key=len).items()))
        self._forget(place)
        abort()
        return True


def _nothing() -> None:
    """Ends no connection: there is none."""


class DeferredCall(Response):
    """The answer of a call that waits for it."""

    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, T]],
        answer: Callable[[T], Response],
    ) -> None:
        """`wait` may raise BrokerError; `answer` makes the response of its result."""
        self.background = None
        self._wait = wait
        self._answer = answer
        # Called with the status at the end.
        self.count: Callable[[int], object] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The span of a traced request is one of the layers, so they stay.
        if DEFERRED in scope and tracing.api() is None:
            scope[DEFERRED].append(self)
        else:
            await self.run(scope, receive, send)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, and answer."""
        status = 500
        try:
            try:
                response = self._answer(await self._wait())
            except BrokerError as error:
                response = of_broker_error(error)
            except Exception as error:
                response = of_defect(scope, error)
            status = response.status_code
            write = scope.get(WRITE_WHOLE)
            if write is None or not write(scope, status, response.raw_headers, response.body):
                await response(scope, receive, send)
        finally:
            if self.count is not None:
                self.count(status)


def event(name: str, data: bytes, id_: int | Literal[""] | None = None) -> bytes:
    """One server-sent event; `data` has no line breaks. An empty id clears that of the reader."""
    head = b"" if id_ is None else b"id: %s\n" % str(id_).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


class EventStream(Response, Generic[T]):
    """Sends the encoded items of `source` as `text/event-stream` until either side ends it.

    A `BrokerError` of the source becomes a last event named `problem`, the problem document its
    data.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[T],
        encode: Callable[[T], bytes],
        open_calls: OpenCalls,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        until: Callable[[], Coroutine[Any, Any, None]] | None = None,
        open_streams: OpenStreams | None = None,
        holder: StreamHolder | None = None,
    ) -> None:
        """`until` returns when the reader's credential ends, and the stream with it.

        The stream is one of `open_streams`, and counts for its `holder`. Beyond a limit it is
        refused.
        """
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._source = source
        self._encode = encode
        self._open_calls = open_calls
        self._keep_alive_seconds = keep_alive_seconds
        self._until = until
        self._open_streams = open_streams
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open_streams is None:
            await self._stream(scope, receive, send)
            return
        async with self._open_streams.holding(scope, self._holder):
            await self._stream(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if IS_HEAD not in scope:
            await self._follow(receive, send)
        with contextlib.suppress(OSError):
            await _body(send, b"", more=False)

    async def _follow(self, receive: Receive, send: Send) -> None:
        hang_up = asyncio.ensure_future(_hang_up(receive))
        ended = asyncio.ensure_future(self._until()) if self._until else None
        try:
            await self._open_calls.waiting(self._send_events(send, hang_up, ended))
        finally:
            hang_up.cancel()
            if ended is not None:
                ended.cancel()

    async def _send_events(
        self, send: Send, hang_up: asyncio.Future[None], ended: asyncio.Future[None] | None
    ) -> None:
        upcoming: asyncio.Future[T] | None = None
        try:
            await _body(send, b"retry: %d\n\n" % RETRY_MILLISECONDS)
            while True:
                if upcoming is None:
                    upcoming = asyncio.ensure_future(anext(self._source))
                    disregard(upcoming)
                await asyncio.wait(
                    [each for each in (upcoming, hang_up, ended) if each is not None],
                    timeout=self._keep_alive_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if hang_up.done():
                    return
                if ended is not None and ended.done():
                    raise Unauthorized("The credential of this stream has ended.")
                if not upcoming.done():
                    await _body(send, b":\n\n")
                    continue
                item, upcoming = upcoming.result(), None
                await _body(send, self._encode(item))
        except StopAsyncIteration:
            return
        except BrokerError as error:
            # Else a browser would try to resume after the same id for ever.
            forget: Literal[""] | None = "" if isinstance(error, Invalid) else None
            await _body(send, event("problem", bytes(of_broker_error(error).body), forget))
        except Exception:
            log.exception("defect in an event stream")
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                await asyncio.wait((upcoming,))
            # The traceback of its error refers to this frame: a cycle.
            del upcoming
            aclose = getattr(self._source, "aclose", None)
            if aclose is not None:
                await aclose()


async def _body(send: Send, chunk: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _hang_up(receive: Receive) -> None:
    """Returns when the reader is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
