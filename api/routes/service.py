"""The calls on the service itself: health, readiness, metrics, the dashboard, the documentation.

A costly answer (`Cached`) is computed once and shared among simultaneous callers.
"""

import asyncio
import contextlib
import functools
import importlib.resources
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import orjson
from fastapi import APIRouter, FastAPI, HTTPException, Response
from starlette.requests import Request

from api import problems
from api.metrics import Lags, Metrics, installed_version
from api.routing import Route, in_time
from api.security import Also, allow, caller_of
from broker.calls.views import ReadyCheck
from broker.core.access import Right
from broker.core.errors import Unavailable
from broker.service import Broker
from counterpoise import headline, wire
from counterpoise.logs.address import kind_of

T = TypeVar("T")

ROUTER = APIRouter(route_class=Route, tags=["Service"])
# Beyond this number, queues are not exported one by one.
MOST_QUEUES_IN_METRICS = 1000
MOST_EXPOSITIONS = 100
# These calls are made all the time, and each costs a query of the database.
METRICS_SECONDS = 1.0
READY_SECONDS = 0.2
_PAGES = importlib.resources.files("api") / "dashboard"
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Only what carries this answer's nonce is run, and what that imports: text that gets into the page
# does nothing.
_POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}' 'strict-dynamic'; "
    "connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Cached(Generic[T]):
    """The result of `make`, at most `seconds` old when it is asked for; only one caller at a time
    computes it.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._monotonic = monotonic
        self._making = asyncio.Lock()
        self._cached: tuple[float, T] | None = None

    async def get(self) -> T:
        """Raises the errors of `make`; an error is not cached.

        It may be older when it comes: who waits for a slow `make` takes what that makes.
        """
        oldest = self._monotonic() - self._seconds
        async with self._making:
            if self._cached is None or self._cached[0] < oldest:
                self._cached = (self._monotonic(), await self._make())
            return self._cached[1]


def share_answers(app: FastAPI) -> None:
    """Share one answer of `/metrics`, `/readyz` and `/openapi.json` among callers."""
    state = app.state
    broker: Broker = state.broker

    metrics: Metrics = state.metrics
    lags = state.lags = Lags(broker)

    def exposition_for(patterns: tuple[str, ...]) -> Cached[bytes]:
        async def exposition() -> bytes:
            queues: tuple[wire.Queue, ...] | None = None
            with contextlib.suppress(Unavailable, TimeoutError):
                queues = await in_time(listed())
            # A log of an unknown kind never says how long it is: that would look like one away.
            found = await lags.of(one.name for one in queues or () if kind_of(one.log) is not None)
            return await metrics.exposition(queues, found, patterns)

        async def listed() -> tuple[wire.Queue, ...]:
            page = await broker.queues.list(MOST_QUEUES_IN_METRICS, None, patterns)
            if "*" in patterns and page.next_cursor is None:
                metrics.keep({queue.name for queue in page.items})
            return await broker.conditions.with_counts(page.items)

        return Cached(exposition, METRICS_SECONDS)

    # Callers who see the same queues share an answer.
    state.expositions = functools.lru_cache(MOST_EXPOSITIONS)(exposition_for)

    async def readiness() -> ReadyCheck:
        try:
            return await in_time(broker.ready_check())
        except TimeoutError:
            return ReadyCheck(False, False, "The database does not answer.")

    state.readiness = Cached(readiness, READY_SECONDS)

    async def description() -> bytes:
        for route in app.routes:
            if isinstance(route, Route):
                route.complete()
                await asyncio.sleep(0)
        # In a thread: it takes longer than other calls should wait.
        return await asyncio.to_thread(lambda: orjson.dumps(app.openapi()))

    state.description = Cached(description, math.inf)


@ROUTER.get(
    "/healthz",
    summary="Is the process alive?",
    response_description="The process is alive.",
)
@allow(Also.ANYONE)
async def healthz() -> wire.Health:
    """Answers as long as the process runs, also without a database."""
    return wire.Health("ok")


@ROUTER.get(
    "/readyz",
    summary="Can the service serve?",
    response_description="The database is reachable and its migrations are current.",
    responses=problems.document("unavailable"),
)
@allow(Also.ANYONE)
async def readyz(request: Request) -> wire.Readiness:
    """Whether this replica can serve: the database is reachable, its migrations are current."""
    check: ReadyCheck = await request.app.state.readiness.get()
    if not check.ready:
        raise Unavailable(check.problem or "The service is not ready.")
    return wire.Readiness("ready", check.identity)


@ROUTER.get(
    "/metrics",
    response_class=Response,
    summary="Metrics for Prometheus",
    response_description="Prometheus' text format.",
    responses={
        **problems.document("unauthorized", "forbidden", "unavailable"),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
@allow(Right.SEE, stale_may=True)
async def metrics(request: Request) -> Response:
    """Requests, and the queues that the caller may see, up to a second old, with their lag, which
    is older. Without a database, what queues are now is left out."""
    content = await request.app.state.expositions(caller_of(request).patterns).get()
    return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


@ROUTER.get("/", include_in_schema=False)
@allow(Also.ANYONE)
async def dashboard() -> Response:
    """The dashboard: queues, their status, the owners of their partitions."""
    return _page("index.html")


@ROUTER.get("/dashboard/{module}", include_in_schema=False)
@allow(Also.ANYONE)
async def dashboard_module(module: str) -> Response:
    """A JavaScript module of the dashboard."""
    source = _modules().get(module)
    if source is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return Response(source, media_type="text/javascript; charset=utf-8", headers=headers)


@functools.cache
def _modules() -> dict[str, bytes]:
    """The dashboard's modules, by name."""
    found = {one.name: one.read_bytes() for one in _PAGES.iterdir() if one.name.endswith(".js")}
    return {**found, "headline.js": _headline()}


def _headline() -> bytes:
    """The module with the words of the headline, which commands and the demo have from Python."""
    return b"".join(
        b"export const %s = %s;\n" % (name.encode(), orjson.dumps(getattr(headline, name)))
        for name in headline.TABLE
    )


@ROUTER.get("/docs", include_in_schema=False)
@allow(Also.ANYONE)
async def docs() -> Response:
    """Every call for readers; the page makes it from /openapi.json."""
    return _page("docs.html")


@ROUTER.get("/openapi.json", include_in_schema=False)
@allow(Also.ANYONE)
async def openapi(request: Request) -> Response:
    content = await request.app.state.description.get()
    return Response(content, media_type="application/json")


def _page(name: str) -> Response:
    """A page without data, with its style and the version, and a nonce for each `{{nonce}}`."""
    nonce = secrets.token_urlsafe(16)
    content = (_PAGES / name).read_text("utf-8").replace("{{nonce}}", nonce)
    content = content.replace("{{version}}", installed_version())
    content = content.replace("{{style.css}}", (_PAGES / "style.css").read_text("utf-8"))
    headers = {**_PAGE_HEADERS, "Content-Security-Policy": _POLICY.format(nonce)}
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)
