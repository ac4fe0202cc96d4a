"""A Starlette application with one route, under the service's own server: the yardstick of a call.

Everything that the service adds to it is the service's: routing, limits, checks, Postgres.
"""

from __future__ import annotations

import socket

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.connections.crowd import Crowd
from api.http.streams import OpenCalls
from api.server import make_server
from broker.settings import load


async def answer(_: Request) -> Response:
    """A body as small as that of a heartbeat."""
    return Response(b'{"expires_at":"2026-01-01T00:00:00Z"}', media_type="application/json")


def serve() -> None:
    """Serve on any free port until SIGTERM; prints the address like the service does."""
    settings = load()
    app = Starlette(routes=[Route("/v1/bare", answer)])
    app.state.open_calls = OpenCalls()
    app.state.crowd = Crowd(settings.address_idle_connections, CollectorRegistry())
    listener = socket.create_server(("127.0.0.1", 0))
    make_server(app, settings, announce=True).run([listener])


if __name__ == "__main__":
    serve()
