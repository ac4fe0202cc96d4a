"""Runs the application under uvicorn: prints its address and stops on a signal."""

import gc
import socket

import structlog
import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.http.security import is_loopback
from broker.service import Broker
from broker.settings import Settings

log = structlog.get_logger("api")

# A call that names thousands of partitions makes hundreds of thousands of objects that live as long
# as the call. With Python's default of 700 the collector would scan them, and all other objects of
# the service, again and again. That takes half of such a call's time, and blocks all other calls.
OBJECTS_A_COLLECTION = 100_000


class Server(uvicorn.Server):
    """uvicorn that ends open calls when it stops; plain uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, announce: bool) -> None:
        super().__init__(config)
        self._application = app
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            # uvicorn has logged the reason; its exit code has another meaning in `broker.launch`.
            raise SystemExit(1) from None
        for listener in sockets or ():
            address = address_of(listener)
            if self._announce:
                # The one line on stdout; everything else is a log record on stderr.
                print(f"Counterpoise listens on {address}", flush=True)  # noqa: T201
            log.info("serving", address=address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        open_calls = self._application.state.open_calls
        log.info("stopping", open_calls=len(open_calls))
        open_calls.end()
        await super().shutdown(sockets)


def make_server(app: FastAPI, settings: Settings, *, announce: bool = False) -> Server:
    """A server for `app`; the caller passes it a bound socket."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
        # Longer than a long poll, and longer than proxies usually keep idle connections.
        timeout_keep_alive=75,
    )
    return Server(config, app, announce=announce)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve on `listener` until SIGTERM or SIGINT. Call it from the main thread."""
    if not settings.trusted_network and not is_loopback(settings.host):
        log.warning(
            "this service has no administrator: it listens beyond this machine and has no API "
            "keys; if every caller that reaches it may administer it, start it with "
            "--trusted-network",
            address=address_of(listener),
        )
    gc.set_threshold(OBJECTS_A_COLLECTION, 20, 20)
    app = create_app(Broker(settings), settings)
    make_server(app, settings, announce=True).run([listener])
