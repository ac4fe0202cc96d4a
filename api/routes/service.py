"""The calls on the service itself: health, readiness, metrics, the dashboard, the documentation."""

import contextlib
import importlib.resources

import orjson
from fastapi import APIRouter, Response
from starlette.datastructures import State
from starlette.requests import Request

from api.http import patience, problems
from api.http.cached import Cached
from api.http.metrics import Metrics
from api.http.openapi import document
from api.http.routing import Route
from api.http.security import Role, allow
from api.schemas import common
from broker.calls.views import QueueView, ReadyCheck
from broker.core.errors import Unavailable
from broker.service import Broker

ROUTER = APIRouter(route_class=Route, tags=["Service"])

# Beyond this number, queues are not exported one by one.
MOST_QUEUES_IN_METRICS = 1000
# These calls have no role, and each costs a query of the database.
METRICS_SECONDS = 1.0
READY_SECONDS = 0.2

_PAGES = importlib.resources.files("api") / "dashboard"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def share_probes(state: State) -> None:
    """Share one answer of `/metrics` and `/readyz` among simultaneous callers."""
    broker: Broker = state.broker

    async def exposition() -> bytes:
        queues: tuple[QueueView, ...] = ()
        with contextlib.suppress(Unavailable, TimeoutError):
            listed = patience.in_time(broker.queues.list(MOST_QUEUES_IN_METRICS, None))
            queues = (await listed).items
        metrics: Metrics = state.metrics
        return metrics.exposition(queues)

    state.exposition = Cached(exposition, METRICS_SECONDS)

    async def readiness() -> ReadyCheck:
        try:
            return await patience.in_time(broker.ready_check())
        except TimeoutError:
            return ReadyCheck(False, False, "The database does not answer.")

    state.readiness = Cached(readiness, READY_SECONDS)


@ROUTER.get(
    "/healthz",
    response_model=common.Health,
    summary="Is the process alive?",
    response_description="The process is alive.",
)
@allow(Role.ANYONE)
async def healthz() -> dict[str, str]:
    """Answers as long as the process runs, also without a database."""
    return {"status": "ok"}


@ROUTER.get(
    "/readyz",
    response_model=common.Health,
    summary="Can the service serve?",
    response_description="The database is reachable and its migrations are current.",
    responses=problems.document("unavailable"),
)
@allow(Role.ANYONE)
async def readyz(request: Request) -> dict[str, str]:
    """Whether this replica can serve: the database is reachable, its migrations are current."""
    check: ReadyCheck = await request.app.state.readiness.get()
    if not check.ready:
        raise Unavailable(check.problem or "The service is not ready.")
    return {"status": "ready"}


@ROUTER.get(
    "/metrics",
    response_class=Response,
    summary="Metrics for Prometheus",
    response_description="Prometheus' text format.",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@allow(Role.ANYONE)
async def metrics(request: Request) -> Response:
    """Requests, results and queues, up to a second old. Without a database the queues are left
    out."""
    content = await request.app.state.exposition.get()
    return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


@ROUTER.get("/", include_in_schema=False)
@allow(Role.ANYONE)
async def dashboard() -> Response:
    """The dashboard: queues, their status, the owners of their partitions."""
    return _page("index.html")


@ROUTER.get("/docs", include_in_schema=False)
@allow(Role.ANYONE)
async def docs() -> Response:
    """Every call for readers; the page makes it from /openapi.json."""
    return _page("docs.html")


@ROUTER.get("/openapi.json", include_in_schema=False)
@allow(Role.ANYONE)
async def openapi(request: Request) -> Response:
    return Response(orjson.dumps(document(request.app.routes)), media_type="application/json")


def _page(name: str) -> Response:
    content = (_PAGES / name).read_bytes()
    return Response(content, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)
