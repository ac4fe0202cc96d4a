"""The calls on the service itself: health, readiness, metrics, the dashboard, the documentation."""

import contextlib
import importlib.resources

import orjson
from fastapi import APIRouter, Response
from starlette.requests import Request

from api import problems, schemas
from api.openapi import document
from api.queues import broker_of
from api.routing import Route
from api.security import Role, allow
from broker.core.errors import Unavailable
from broker.views import QueueView

ROUTER = APIRouter(route_class=Route, tags=["Service"])

# More than this many queues are not exported one by one.
MOST_QUEUES_IN_METRICS = 1000

_PAGES = importlib.resources.files("api") / "dashboard"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@ROUTER.get(
    "/healthz",
    response_model=schemas.Health,
    summary="Is the process alive?",
    response_description="It is.",
)
@allow(Role.ANYONE)
async def healthz() -> dict[str, str]:
    """Answers as long as the process does, also without a database."""
    return {"status": "ok"}


@ROUTER.get(
    "/readyz",
    response_model=schemas.Health,
    summary="Can the service serve?",
    response_description="The database is reachable and its migrations are current.",
    responses=problems.document("unavailable"),
)
@allow(Role.ANYONE)
async def readyz(request: Request) -> dict[str, str]:
    """Whether this replica can serve: the database is reachable, its migrations are current."""
    check = await broker_of(request).ready_check()
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
    """Requests, results and queues. Without a database the queues are left out."""
    queues: tuple[QueueView, ...] = ()
    with contextlib.suppress(Unavailable):
        queues = (await broker_of(request).list_queues(MOST_QUEUES_IN_METRICS, None)).items
    content = request.app.state.metrics.exposition(queues)
    return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


@ROUTER.get("/", include_in_schema=False)
@allow(Role.ANYONE)
async def dashboard() -> Response:
    """The dashboard: queues, their status, who owns what."""
    return _page("index.html")


@ROUTER.get("/docs", include_in_schema=False)
@allow(Role.ANYONE)
async def docs() -> Response:
    """Every call, readable: made from /openapi.json by the page itself."""
    return _page("docs.html")


@ROUTER.get("/openapi.json", include_in_schema=False)
@allow(Role.ANYONE)
async def openapi(request: Request) -> Response:
    return Response(orjson.dumps(document(request.app.routes)), media_type="application/json")


def _page(name: str) -> Response:
    content = (_PAGES / name).read_bytes()
    return Response(content, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)
