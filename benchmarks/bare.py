"""A Starlette application that does nothing, under the service's own server: a yardstick of calls.

One route answers at once, and one (`/v1/waiting`) when somebody calls a third (`/v1/tell`).
Everything that the service adds to it is the service's: routing, limits, checks, Postgres.
"""

from __future__ import annotations

import asyncio
import socket

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.connections import OpenConnections
from api.server import make_server
from api.streams import OpenCalls
from broker.settings import load


async def answer(_: Request) -> Response:
    """A body as small as that of a heartbeat."""
    return Response(b'{"expires_at":"2026-01-01T00:00:00Z"}', media_type="application/json")


class Waiting:
    """Calls that wait until all of them are told at once."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._count = 0

    async def wait(self, _: Request) -> Response:
        """A body as small as the update of a flow with two partitions."""
        self._count += 1
        await self._told.wait()
        return Response(bytes(400), media_type="application/json")

    async def tell(self, _: Request) -> Response:
        """Tells all who wait; says how many they are."""
        self._told.set()
        return Response(str(self._count).encode())


def serve() -> None:
    """Serve on any free port until SIGTERM; prints the address like the service does."""
    settings = load()
    waiting = Waiting()
    app = Starlette(
        routes=[
            Route("/v1/bare", answer),
            Route("/v1/waiting", waiting.wait),
            Route("/v1/tell", waiting.tell),
        ]
    )
    app.state.open_calls = OpenCalls()
    app.state.connections = OpenConnections(settings.address_idle_connections, CollectorRegistry())
    listener = socket.create_server(("127.0.0.1", 0))
    make_server(app, settings, announce=True).run([listener])


if __name__ == "__main__":
    serve()
