"""Accepting connections: counted by address before their first byte, and when files run out.

asyncio's servers know an address only after the handshake of TLS, and uvloop's does not tell when
the process may open no more files: it takes and drops connections silently. So connections are
accepted here, and given to the loop one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import resource
import socket
import ssl
from collections.abc import Callable

import structlog

from api.connections.crowd import Crowd
from api.connections.protocol import HEAD_SECONDS, Connection

log = structlog.get_logger("api")

# Each connection costs some ten kilobytes, so more of them would be memory for gigabytes.
MOST_FILES = 65536
# For everything but connections of callers: databases, logs, the certificate.
RESERVED_FILES = 128
# Accepted at once, before requests have their turn.
MOST_AT_ONCE = 64
PAUSE_SECONDS = 0.1

_NO_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def raise_file_limit(most: int = MOST_FILES) -> int:
    """Let this process open as many files as it may, at most `most`. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return min(soft, most) if soft != resource.RLIM_INFINITY else most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays as it is", limit=soft, error=str(error))
        return soft
    return wanted


class Acceptor:
    """Accepts on one listening socket, in the place of the loop's own server."""

    def __init__(
        self,
        listener: socket.socket,
        crowd: Crowd,
        connect: Callable[[str], Connection],
        tls: ssl.SSLContext | None,
        handshake_seconds: float = HEAD_SECONDS,
    ) -> None:
        """`connect` makes the protocol of a peer, by its address."""
        self._handshake_seconds = handshake_seconds
        self._listener = listener
        self._crowd = crowd
        self._connect = connect
        self._tls = tls
        self.loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self.loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Connections that are open go on."""
        if self._listener.fileno() >= 0:
            self.loop.remove_reader(self._listener.fileno())
        if self._resuming is not None:
            self._resuming.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when no handshake is under way any more."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                peer, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._out_of_files(error)
                return
            peer.setblocking(False)
            connection = self._connect(address[0] if isinstance(address, tuple) else "")
            if not self._crowd.joins(connection):
                peer.close()
                continue
            task = self.loop.create_task(self._open(connection, peer))
            connection.opening = task
            self._opening.add(task)
            # Not within the task: one that is ended before it begins never runs.
            task.add_done_callback(functools.partial(self._opened, connection, peer))

    async def _open(self, connection: Connection, peer: socket.socket) -> None:
        # Small answers must not wait for acknowledgements.
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self.loop.connect_accepted_socket(
            lambda: connection,
            peer,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._handshake_seconds,
        )

    def _opened(
        self, connection: Connection, peer: socket.socket, task: asyncio.Task[None]
    ) -> None:
        self._opening.discard(task)
        connection.opening = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        self._crowd.leaves(connection)
        peer.close()
        if isinstance(error, OSError):
            # No handshake, or gone already: a stranger's fault is not worth a line in the log.
            self._crowd.ended.labels("handshake").inc()
        elif not task.cancelled():
            log.error("defect while a connection was opened", exc_info=error)

    def _out_of_files(self, error: OSError) -> None:
        """Make room, and let those who wait for being accepted wait a moment longer."""
        self._crowd.out_of_files(str(error))
        for _ in range(MOST_AT_ONCE):
            self._crowd.make_room()
        self.loop.remove_reader(self._listener.fileno())
        self._resuming = self.loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self.loop.add_reader(self._listener.fileno(), self._accept)
