"""`Client` and `AsyncClient`: every call of the service, blocking and with asyncio, on httpx.

Both only send the calls that `calls.py` builds. Every call is bounded in time: by
`timeout_seconds`, a long poll by its wait plus a grace period.
Consumers seldom need these clients: `Flow` binds, renews and follows updates by itself.

    with Client() as client:
        client.create_queue("flights", 32, rebalance_delay=2.0)
        print(client.rebalance_status("flights").status)

A service within this process (`counterpoise.testing`) is registered by its address: a client of
such an address sends its requests through the service's own transport, and no socket is opened.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from msgspec import to_builtins

from counterpoise import calls, tracing, wire
from counterpoise import conditions as condition_calls
from counterpoise.calls import Call, Listing, base_url, read_answer
from counterpoise.errors import (
    BadAnswer,
    InvalidSettings,
    Unreachable,
)
from counterpoise.event_stream import EventReader
from counterpoise.options import SHORTEST_SECONDS, check_seconds
from counterpoise.reading import Content, Listed, checked_token, token_in
from counterpoise.version import __version__

P = ParamSpec("P")
T = TypeVar("T")
# Below uvicorn's 5 s, so that the client never reuses a connection that uvicorn is closing.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=3.0)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Within(Protocol):
    """A service that is reached without a network."""

    def transport(self) -> httpx.BaseTransport:
        """A transport for one client."""
        ...

    def async_transport(self) -> httpx.AsyncBaseTransport:
        """A transport for one asyncio client."""
        ...


SERVICES: dict[str, Within] = {}
"""By address, without a path."""


def service_within(url: str) -> Within | None:
    """The service at a root of paths (`http://…/v1`), if it is within this process."""
    return SERVICES.get(url.removesuffix("/v1"))


def transport_within(url: str) -> httpx.BaseTransport | None:
    """For a blocking client of this root; None: the network."""
    service = service_within(url)
    return None if service is None else service.transport()


def async_transport_within(url: str) -> httpx.AsyncBaseTransport | None:
    """For an asyncio client of this root; None: the network."""
    service = service_within(url)
    return None if service is None else service.async_transport()


class _Quiet(logging.Filter):
    """Drops the line that httpx logs for each request, if the request is one of ours.

    A consumer makes several a second. The requests of the program itself stay in its log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.urls: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        asked = record.args[1:2] if isinstance(record.args, tuple) else ()
        return not str(*asked).startswith(tuple(self.urls))


logging.getLogger("httpx").addFilter(_QUIET := _Quiet())


def _trusted() -> ssl.SSLContext:
    """Trusts the system's authorities and certifi's, or only those that the environment names."""
    named = os.environ.get("SSL_CERT_FILE")
    try:
        context = httpx.create_ssl_context()
    except OSError as error:
        raise InvalidSettings(
            f"SSL_CERT_FILE must name a PEM file with the authority's certificate, not {named!r}: "
            f"{error}"
        ) from None
    if not named and not os.environ.get("SSL_CERT_DIR"):
        context.load_default_certs()
    return context


@contextmanager
def _with_proxies() -> Iterator[None]:
    """Raises InvalidSettings if a client cannot use the proxies that the environment names."""
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise InvalidSettings(
            "the proxy of the environment cannot be used, correct HTTP_PROXY, HTTPS_PROXY, "
            f"ALL_PROXY or NO_PROXY: {error}"
        ) from None


def token_of_environment() -> str | None:
    """The key in COUNTERPOISE_TOKEN, else in the file that COUNTERPOISE_TOKEN_FILE names.

    Raises InvalidSettings, which does not show it.
    """
    try:
        token = checked_token(os.environ.get("COUNTERPOISE_TOKEN"))
    except InvalidSettings as error:
        raise InvalidSettings(f"COUNTERPOISE_TOKEN: {error}") from None
    file = os.environ.get("COUNTERPOISE_TOKEN_FILE", "").strip()
    if token is not None or not file:
        return token
    try:
        return token_in(file)
    except InvalidSettings as error:
        raise InvalidSettings(f"COUNTERPOISE_TOKEN_FILE: {error}") from None


class Settings:
    """What both clients share: address, time limit, credential; checked, and shared with flows."""

    def __init__(self, url: str | None, token: str | None, timeout_seconds: float) -> None:
        self.url = base_url(url or os.environ.get("COUNTERPOISE_URL") or calls.DEFAULT_URL)
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidSettings(
                f"the service's address is not a URL: {self.url} ({error})"
            ) from None
        _QUIET.urls.add(self.url)
        check_seconds(SHORTEST_SECONDS, timeout_seconds=timeout_seconds)
        self.timeout_seconds = timeout_seconds
        self._token = checked_token(token) or token_of_environment()

    def transport(self) -> dict[str, Any]:
        """Arguments of the httpx clients."""
        parts = urlsplit(self.url)
        return {
            "headers": {
                "User-Agent": f"counterpoise/{__version__}",
                "Accept-Encoding": "identity",
            },
            # A proxy from the environment is for other machines, not for this one.
            "trust_env": (parts.hostname or "") not in _LOOPBACK and not service_within(self.url),
            # Without TLS there is nothing to verify, and loading the certificates takes time.
            "verify": parts.scheme == "https" and _trusted(),
        }

    def request(self, call: Call[Any]) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        token = checked_token(call.token) or self._token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        content = None
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            plain = to_builtins(call.body, enc_hook=_plain)
            content = json.dumps(plain, separators=(",", ":")).encode()
        return {
            "method": call.method,
            "url": self.url + call.path,
            "params": dict(call.query),
            "headers": headers,
            "content": content,
            "timeout": self.timeout(call),
        }

    @contextmanager
    def sending(self, call: Call[Any]) -> Iterator[tuple[dict[str, Any], tracing.CallSpan]]:
        """The request of a call and its span; raises as `trying`."""
        request = self.request(call)
        with tracing.call(call.method, self.url, call.path, request["headers"]) as span:
            with self.trying():
                yield request, span

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Raises `Unreachable` for httpx's errors."""
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, TimeoutError) as error:
            raise self.unreachable(error) from error

    def events(self, name: str) -> tuple[Call[None], dict[str, Any]]:
        """The call for a queue's event stream, and its request."""
        call: Call[None] = Call("GET", calls.events_path(name), lambda _: None)
        request = self.request(call)
        request["headers"]["Accept"] = "text/event-stream"
        request["timeout"] = httpx.Timeout(self.timeout_seconds, read=60.0)
        return call, request

    def ended(self) -> Unreachable:
        """For a stream of events, which has no end of its own."""
        return Unreachable(f"the service at {self.url.removesuffix('/v1')} ended the events")

    def timeout(self, call: Call[Any]) -> float:
        return self.timeout_seconds if call.timeout_seconds is None else call.timeout_seconds

    def unreachable(self, error: Exception | None) -> Unreachable:
        root = self.url.removesuffix("/v1")
        said = str(error)
        if "WRONG_VERSION_NUMBER" in said:
            address = root.removeprefix("https://")
            return Unreachable(f"what answers at {root} does not speak TLS: try http://{address}")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return Unreachable(
                f"the certificate of {root} is not accepted: {said}. The variable SSL_CERT_FILE "
                "names a file with its authority"
            )
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"no service answers at {root}: {error}")
        if error is None or isinstance(error, httpx.TimeoutException | TimeoutError):
            return Unreachable(f"the service at {root} did not answer in time")
        return Unreachable(f"the connection to {root} was cut: {said or type(error).__name__}")


def _plain(value: object) -> Any:
    """What msgspec does not know: kinds of those types, as pandas and NumPy have them."""
    if isinstance(value, datetime):
        return value.isoformat()
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} cannot be sent")


def _method(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return method


def _listing(
    build: Callable[P, Listing[T]],
) -> Callable[Concatenate[Client, P], list[T]]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        listing = build(*args, **kwargs)
        listed: Listed[T] = Listed(listing.max_items, listing.parts)
        while listed.add(self.send(listing.page(listed.cursor))):
            pass
        return listed.items

    return method


class Client:
    """The service, blocking. Thread-safe. Close it, or use it as a context manager.

    `url` defaults to COUNTERPOISE_URL or http://127.0.0.1:8640. With `dry_run` a call changes
    nothing and returns what it would do, mostly as a `Preview`. Every method may raise
    `ServiceUnavailable` (retry later) or a subclass of `Refused` (do not retry).
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self._settings = Settings(url, token, timeout_seconds)
        self._connections, self._process = self._connected(), os.getpid()

    def _connected(self) -> httpx.Client:
        here = transport_within(self._settings.url)
        options = self._settings.transport()
        with _with_proxies():
            return httpx.Client(limits=_LIMITS, transport=here, **options)

    @property
    def _http(self) -> httpx.Client:
        if self._process != os.getpid():
            # A forked child leaves its parent's connections alone: each would get the other's
            # answers.
            self._parents = self._connections
            self._connections, self._process = self._connected(), os.getpid()
        return self._connections

    @property
    def url(self) -> str:
        """The root all calls go to, with the base path."""
        return self._settings.url

    queues = _listing(calls.queues)
    create_queue = _method(calls.create_queue)
    queue = _method(calls.queue)
    change_queue = _method(calls.change_queue)
    delete_queue = _method(calls.delete_queue)
    rebalance_status = _method(calls.rebalance_status)
    measurements = _method(calls.measurements)
    rebalance_now = _method(calls.rebalance_now)
    pause_queue = _method(calls.pause_queue)
    resume_queue = _method(calls.resume_queue)
    pause_partition = _method(calls.pause_partition)
    resume_partition = _method(calls.resume_partition)
    pin_partition = _method(calls.pin_partition)
    unpin_partition = _method(calls.unpin_partition)
    partitions = _listing(calls.partitions)
    flows = _listing(calls.flows)
    rebalances = _listing(calls.rebalances)
    audit = _listing(calls.audit)
    list_keys = _listing(calls.list_keys)
    create_key = _method(calls.create_key)
    revoke_key = _method(calls.revoke_key)
    lineage = _listing(calls.graph)
    conditions = _listing(condition_calls.conditions)
    set_positions = _method(calls.set_positions)
    dead_letter = _method(calls.dead_letter)
    redrive = _method(calls.redrive)
    split_partition = _method(calls.split_partition)
    merge_partitions = _method(calls.merge_partitions)
    log_access = _method(calls.log_access)

    bind = _method(calls.bind)
    unbind = _method(calls.unbind)
    poll = _method(calls.poll)
    heartbeat = _method(calls.heartbeat)
    commit = _method(calls.commit)
    release = _method(calls.release)
    children = _method(calls.children)
    ready = _method(calls.ready)
    drain = _method(calls.drain)

    def send(self, call: Call[T]) -> T:
        """Send any call and read its answer."""
        deadline = time.monotonic() + self._settings.timeout(call)
        with (
            self._settings.sending(call) as (request, span),
            self._http.stream(**request) as response,
        ):
            content = self._content(response, deadline)
            span.answered(response.status_code)
        return read_answer(call, response.status_code, response.headers, content)

    def _content(self, response: httpx.Response, deadline: float) -> bytes:
        # httpx bounds each read; this bounds the sum, for servers that send very slowly.
        content = Content(response.headers)
        for chunk in response.iter_raw():
            content.add(chunk)
            if time.monotonic() > deadline:
                raise self._settings.unreachable(None)
        return content.all()

    def probe(self, path: str) -> wire.Probe:
        """GET of an address outside the base path (`/readyz`, `/metrics`), whatever its answer.

        Raises `Unreachable`, and `BadAnswer` for one that is too large.
        """
        request = self._settings.request(Call("GET", "", lambda _: None))
        request["url"] = self.url.removesuffix("/v1") + path
        request["headers"]["Accept"] = "*/*"
        deadline = time.monotonic() + self._settings.timeout_seconds
        with self._settings.trying(), self._http.stream(**request) as response:
            content = self._content(response, deadline)
        return wire.Probe(
            response.status_code, response.headers.get("date"), content.decode(errors="replace")
        )

    def events(self, name: str) -> Iterator[wire.Event]:
        """Every change of a queue as it is committed. Ends with `Unreachable`, also if the service
        stops or has told a `problem`.
        """
        call, request = self._settings.events(name)
        deadline = time.monotonic() + self._settings.timeout_seconds
        reader = EventReader()
        with self._settings.trying(), self._http.stream(**request) as response:
            if response.status_code != 200:
                content = self._content(response, deadline)
                read_answer(call, response.status_code, response.headers, content)
                raise BadAnswer(f"HTTP {response.status_code} for an event stream")
            Content(response.headers)
            for chunk in response.iter_raw():
                yield from reader.feed(chunk)
        raise self._settings.ended()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


# ------------------------------------------------------------------ asyncio


def _async_method(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


def _async_listing(
    build: Callable[P, Listing[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, list[T]]]:
    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        listing = build(*args, **kwargs)
        listed: Listed[T] = Listed(listing.max_items, listing.parts)
        while listed.add(await self.send(listing.page(listed.cursor))):
            pass
        return listed.items

    return method


async def _content(response: httpx.Response) -> bytes:
    content = Content(response.headers)
    async for chunk in response.aiter_raw():
        content.add(chunk)
    return content.all()


class AsyncClient:
    """The service, with asyncio: `Client` with await. For one event loop."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self._settings = Settings(url, token, timeout_seconds)
        here = async_transport_within(self._settings.url)
        options = self._settings.transport()
        with _with_proxies():
            self._http = httpx.AsyncClient(limits=_LIMITS, transport=here, **options)

    @property
    def url(self) -> str:
        """The root all calls go to, with the base path."""
        return self._settings.url

    queues = _async_listing(calls.queues)
    create_queue = _async_method(calls.create_queue)
    queue = _async_method(calls.queue)
    change_queue = _async_method(calls.change_queue)
    delete_queue = _async_method(calls.delete_queue)
    rebalance_status = _async_method(calls.rebalance_status)
    measurements = _async_method(calls.measurements)
    rebalance_now = _async_method(calls.rebalance_now)
    pause_queue = _async_method(calls.pause_queue)
    resume_queue = _async_method(calls.resume_queue)
    pause_partition = _async_method(calls.pause_partition)
    resume_partition = _async_method(calls.resume_partition)
    pin_partition = _async_method(calls.pin_partition)
    unpin_partition = _async_method(calls.unpin_partition)
    partitions = _async_listing(calls.partitions)
    flows = _async_listing(calls.flows)
    rebalances = _async_listing(calls.rebalances)
    audit = _async_listing(calls.audit)
    list_keys = _async_listing(calls.list_keys)
    create_key = _async_method(calls.create_key)
    revoke_key = _async_method(calls.revoke_key)
    lineage = _async_listing(calls.graph)
    conditions = _async_listing(condition_calls.conditions)
    set_positions = _async_method(calls.set_positions)
    dead_letter = _async_method(calls.dead_letter)
    redrive = _async_method(calls.redrive)
    split_partition = _async_method(calls.split_partition)
    merge_partitions = _async_method(calls.merge_partitions)
    log_access = _async_method(calls.log_access)

    bind = _async_method(calls.bind)
    unbind = _async_method(calls.unbind)
    poll = _async_method(calls.poll)
    heartbeat = _async_method(calls.heartbeat)
    commit = _async_method(calls.commit)
    release = _async_method(calls.release)
    children = _async_method(calls.children)
    ready = _async_method(calls.ready)
    drain = _async_method(calls.drain)

    async def send(self, call: Call[T]) -> T:
        """Send any call and read its answer."""
        # A command never needs it, and it takes as long to import as an empty Python to start.
        import asyncio

        with self._settings.sending(call) as (request, span):
            async with (
                asyncio.timeout(self._settings.timeout(call)),
                self._http.stream(**request) as response,
            ):
                content = await _content(response)
            span.answered(response.status_code)
        return read_answer(call, response.status_code, response.headers, content)

    async def events(self, name: str) -> AsyncIterator[wire.Event]:
        """Every change of a queue as it is committed. Ends with `Unreachable`, also if the service
        stops or has told a `problem`.
        """
        import asyncio

        call, request = self._settings.events(name)
        reader = EventReader()
        with self._settings.trying():
            async with self._http.stream(**request) as response:
                if response.status_code != 200:
                    async with asyncio.timeout(self._settings.timeout_seconds):
                        content = await _content(response)
                    read_answer(call, response.status_code, response.headers, content)
                    raise BadAnswer(f"HTTP {response.status_code} for an event stream")
                Content(response.headers)
                async for chunk in response.aiter_raw():
                    for event in reader.feed(chunk):
                        yield event
        raise self._settings.ended()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
