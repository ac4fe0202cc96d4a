"""A TCP proxy that a test can cut and mend: what is behind it is away, and then back."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Listens on a port of its own and passes everything on, both ways."""

    def __init__(self, url: str) -> None:
        """`url` is of the server behind; `self.url` is the same by way of the proxy."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._cut = False
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and every new one at once."""
        with self._lock:
            self._cut = True
            for one in self._open:
                _break(one)
            self._open.clear()

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._cut = False

    def close(self) -> None:
        """The end."""
        self.cut()
        _break(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                incoming, _ = self._listener.accept()
                with self._lock:
                    if self._cut:
                        self.refused += 1
                        incoming.close()
                        continue
                    outgoing = socket.create_connection(self._target)
                    self._open |= {incoming, outgoing}
                for source, sink in ((incoming, outgoing), (outgoing, incoming)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            _break(one)
        with self._lock:
            self._open -= {source, sink}
        source.close()


def _break(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
