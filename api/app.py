"""The application: routes, errors, limits and metrics around one broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from api.connections.crowd import Crowd
from api.http import patience, problems
from api.http.limits import Budget, Limits
from api.http.metrics import Metrics
from api.http.rates import Rates
from api.http.streams import LATER, Later, OpenCalls
from api.routes import access, conditions, flows, lineage, queue_events, queues, scaling, service
from api.routes.polls import Polls
from api.tracing import telemetry
from broker.service import Broker
from broker.settings import Settings


class Application(FastAPI):
    """FastAPI whose layers end before a call waits (`api.http.streams`), or never begin
    (`api.routes.polls`).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        polls: Polls = self.state.polls
        poll = polls.begin(scope)
        if poll is not None:
            await poll.run(scope, receive, send)
            return
        calls: list[Later] = []
        # In a copy: what the layers add to the scope ends with them.
        await super().__call__({**scope, LATER: calls}, receive, send)
        for call in calls:
            await call.run(scope, receive, send)


def all_routes() -> list[BaseRoute]:
    """Every route, the most called first, because they are tried in order."""
    parts = (flows, queues, lineage, conditions, scaling, queue_events, service, access)
    return [route for part in parts for route in part.ROUTER.routes]


def create_app(broker: Broker, settings: Settings) -> FastAPI:
    """The HTTP service over `broker`, which starts and stops with it.

    Before it stops, and before it waits for open responses, the server must call
    `app.state.open_calls.end()` (`api.server` does).
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await broker.start()
        try:
            yield
        finally:
            await broker.stop()

    app = Application(
        title="Counterpoise",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=telemetry(),
    )
    # Without include_router, which would look every request up twice.
    app.router.routes.extend(all_routes())
    app.state.broker = broker
    app.state.settings = settings
    # Awaits what may call the database.
    app.state.answered = partial(patience.answered, is_reachable=broker.is_reachable)
    app.state.open_calls = OpenCalls()
    app.state.metrics = Metrics(app.state.open_calls, broker.tally)
    app.state.crowd = Crowd(settings.address_idle_connections, app.state.metrics.registry)
    app.state.rates = Rates(
        settings.flow_requests_per_second,
        settings.address_requests_per_second,
        app.state.metrics.registry,
        settings.request_limit_bytes,
    )
    app.state.polls = Polls(app)
    service.share_answers(app)
    problems.add_handlers(app)
    limit_bytes = settings.request_limit_bytes
    app.state.budget = Budget(settings.body_budget_bytes, limit_bytes)
    app.add_middleware(
        Limits,
        limit_bytes=limit_bytes,
        budget=app.state.budget,
        rates=app.state.rates,
        metrics=app.state.metrics,
    )
    return app
