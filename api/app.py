"""The application: routes, errors, limits and metrics around one broker.

FastAPI makes the spans of requests by itself; `telemetry` is its setting. FastAPI's traces need a
version that the extra `otel` of the server's wheel brings; earlier versions ignore the setting.
`broker.tracing` has what is traced below a request.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypedDict

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from api import openapi, problems, routing
from api.bodies import BodyBudget, Limits
from api.connections import OpenConnections
from api.metrics import Metrics
from api.rates import Rates
from api.routes import service
from api.routes.polls import Polls
from api.streams import DEFERRED, IS_HEAD, DeferredCall, OpenCalls, OpenStreams
from broker import tracing
from broker.service import Broker
from broker.settings import Settings

# The exporter that the extra brings.
EXPORTER = "opentelemetry.exporter.otlp.proto.http"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Telemetry(TypedDict, total=False):
    """Of FastAPI's settings the ones that are set here."""

    metrics: bool
    logs: bool
    operation_spans: bool
    auto_configure: bool
    exclude: Any


def telemetry() -> Any:
    """FastAPI's setting `telemetry`: spans of calls, sent to where the environment says.

    If the process has a tracer provider already (`opentelemetry-instrument` makes one), nothing
    else is sent anywhere.
    """
    wanted = any(os.environ.get(name) for name in ENDPOINTS) and tracing.api() is None
    if wanted:
        os.environ.setdefault("OTEL_SERVICE_NAME", "counterpoise")
    return Telemetry(
        metrics=False,  # Prometheus asks for them
        logs=False,
        operation_spans=False,
        auto_configure=wanted and _has_exporter(),
        exclude=_excluded,
    )


def _has_exporter() -> bool:
    try:
        return find_spec(EXPORTER) is not None
    except ModuleNotFoundError:
        return False


async def _send_last_spans(seconds: float) -> None:
    """The spans that wait are sent, within so many seconds.

    FastAPI would wait ten for each few hundred of them, if nobody answers: longer than a service
    may take to stop.
    """
    if (trace := tracing.api()) is not None:
        provider = trace.get_tracer_provider()
        sending = threading.Thread(target=provider.shutdown, daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, seconds)


def _excluded(scope: MutableMapping[str, Any]) -> bool:
    """Probes, metrics and pages."""
    return not str(scope["path"]).startswith("/v1/")


class Application(FastAPI):
    """FastAPI whose layers end before a call waits (`api.streams`), or never begin
    (`api.routes.polls`).
    """

    def openapi(self) -> dict[str, Any]:
        """The document that describes every call."""
        return openapi.document(self.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # Answered as GET is; uvicorn, whose scope is another, sends no body.
            scope = {**scope, "method": "GET", IS_HEAD: True}
        polls: Polls = self.state.polls
        poll = polls.begin(scope)
        if poll is not None:
            await poll.run(scope, receive, send)
            return
        calls: list[DeferredCall] = []
        # In a copy: what the layers add to the scope ends with them.
        await super().__call__({**scope, DEFERRED: calls}, receive, send)
        for call in calls:
            await call.run(scope, receive, send)


def create_app(broker: Broker, settings: Settings) -> FastAPI:
    """The HTTP service over `broker`, which starts and stops with it.

    Before it stops, and before it waits for open responses, the server must call
    `app.state.open_calls.end()` (`api.server` does).
    """

    traced = telemetry()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await broker.start()
        try:
            yield
        finally:
            await broker.stop()
            if traced["auto_configure"]:
                await _send_last_spans(max(1.0, settings.shutdown_seconds))

    app = Application(
        title="Counterpoise",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=traced,
    )
    # Without include_router, which would look every request up twice.
    app.router.routes.extend(openapi.all_routes())
    app.state.broker = broker
    app.state.settings = settings
    # Awaits what may call the database.
    app.state.answered = partial(routing.while_reachable, is_reachable=broker.is_reachable)
    app.state.open_calls = OpenCalls()
    app.state.metrics = Metrics(app.state.open_calls, broker.tally)
    registry = app.state.metrics.registry
    app.state.rates = Rates(
        settings.flow_requests_per_second,
        settings.address_requests_per_second,
        registry,
        settings.request_limit_bytes,
    )
    app.state.open_streams = OpenStreams(
        settings.key_streams,
        settings.flow_streams,
        settings.address_streams,
        app.state.rates,
        registry,
    )
    app.state.connections = OpenConnections(
        settings.address_idle_connections, registry, app.state.open_streams.make_room
    )
    app.state.polls = Polls(app)
    service.share_answers(app)
    problems.add_handlers(app)
    limit_bytes = settings.request_limit_bytes
    app.state.budget = BodyBudget(settings.body_budget_bytes, limit_bytes)
    app.add_middleware(
        Limits,
        limit_bytes=limit_bytes,
        budget=app.state.budget,
        rates=app.state.rates,
        metrics=app.state.metrics,
    )
    return app
