"""Runs the application under uvicorn: prints its address and stops on a signal."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading

import structlog
import uvicorn
from starlette.applications import Starlette

from api.app import create_app
from api.connections import (
    HEAD_SECONDS,
    RESERVED_FILES,
    Acceptor,
    Connection,
    OpenConnections,
    raise_file_limit,
)
from broker.certificate import Certificate, certificate_of
from broker.service import Broker
from broker.settings import Settings

log = structlog.get_logger("api")

# How often the collector scans new objects, those that it has scanned once, and all objects. A scan
# blocks all calls for as long as it takes, and a call that names thousands of partitions makes
# hundreds of thousands of objects. So a scan of new objects is of 2,000, one of those that survived
# it is of at most 40,000 (both while they are in the processor's cache), and all objects are
# scanned after 40 million new ones; by Python's defaults, that takes half of a large call's time.
COLLECTIONS = (2_000, 20, 1_000)


class Server(uvicorn.Server):
    """uvicorn that ends open calls when it stops; plain uvicorn would wait for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: Starlette,
        certificate: Certificate | None,
        *,
        announce: bool,
    ) -> None:
        super().__init__(config)
        self._application = app
        self._certificate = certificate
        self._announce = announce
        self.head_seconds = HEAD_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._renew)
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            # uvicorn has logged the reason; its exit code has another meaning in `broker.launch`.
            raise SystemExit(1)
        scheme, context = "http", None
        if self._certificate is not None:
            scheme, context = "https", self._certificate.context
        connections: OpenConnections = self._application.state.connections
        listeners = sockets or ()
        # uvicorn closes them and waits for them, nothing else.
        self.servers = [
            Acceptor(listener, connections, self._connection, context, self.head_seconds)  # type: ignore[misc]
            for listener in listeners
        ]
        for listener in listeners:
            address = address_of(listener, scheme)
            if self._announce:
                # The one line on stdout; everything else is a log record on stderr. Nobody need
                # read it, and what is not in a buffer does not fail again at the end.
                with contextlib.suppress(OSError):
                    os.write(sys.stdout.fileno(), f"Counterpoise listens on {address}\n".encode())
            log.info("serving", address=address)
        self.started = True

    def _renew(self) -> None:
        """On SIGHUP."""
        if self._certificate is not None:
            self._certificate.renew()
        else:
            log.info("SIGHUP: this service has no certificate, and nothing else is read again")

    def _connection(self, host: str) -> Connection:
        connections: OpenConnections = self._application.state.connections
        return Connection(
            self.config,
            self.server_state,
            self.lifespan.state,
            connections,
            host,
            self.head_seconds,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        open_calls = self._application.state.open_calls
        log.info("stopping", open_calls=len(open_calls))
        open_calls.end()
        await super().shutdown(sockets)


def make_server(
    app: Starlette,
    settings: Settings,
    *,
    announce: bool = False,
    certificate: Certificate | None = None,
) -> Server:
    """A server for `app`; the caller passes it a bound socket. HTTPS with a `certificate`."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        http=Connection,
        ws="none",
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
        # Longer than a long poll, and longer than proxies usually keep idle connections.
        timeout_keep_alive=75,
    )
    return Server(config, app, certificate, announce=announce)


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def run(settings: Settings, listener: socket.socket) -> None:
    """Serve on `listener` until SIGTERM or SIGINT. Call it from the main thread.

    Raises `SettingsError`.
    """
    gc.set_threshold(*COLLECTIONS)
    app = create_app(Broker(settings), settings)
    # As late as possible: a SIGHUP is heeded from the server's start on.
    certificate = certificate_of(settings)
    files = raise_file_limit()
    reserved = RESERVED_FILES + 2 * settings.database_pool_size
    app.state.connections.most = max(files - reserved, files // 2)
    make_server(app, settings, announce=True, certificate=certificate).run([listener])
