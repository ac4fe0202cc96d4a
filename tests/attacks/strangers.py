"""Strangers at a Postgres: connections whose login never ends, or that come and go."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

ANSWER_SECONDS = 240.0


def _startup(name: bytes) -> bytes:
    body = struct.pack("!i", 3 << 16) + b"user\0" + name + b"\0database\0" + name + b"\0\0"
    return struct.pack("!i", len(body) + 4) + body


_LOGIN = _startup(b"counterpoise")
# What is sent before the silence.
FIRST: dict[str, bytes] = {
    "nothing": b"",
    "half a packet": _LOGIN[:7],
    "a request for TLS": struct.pack("!ii", 8, 80877103),
    "a login without its proof": _LOGIN,
    "a login with long names": _startup(b"n" * 2000),
}


class Strangers:
    """Connections that are held open, from the first to the last."""

    def __init__(self, url: str, first: bytes) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._first = first
        self.held: list[socket.socket] = []

    def open(self, count: int) -> None:
        for _ in range(count):
            one = socket.create_connection(self._address, ANSWER_SECONDS)
            self.held.append(one)
            with contextlib.suppress(ConnectionError):
                one.sendall(self._first)

    def ended(self) -> list[bool]:
        """Which of them the server has closed."""
        return [_is_closed(one) for one in self.held]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in self.held:
            one.close()
        self.held.clear()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


class Siege:
    """As many connections as `count` all the time, in a thread: each that ends begins again.

    `hold`: they are held until the server ends them; else they end at once.
    """

    def __init__(self, url: str, first: bytes, count: int, *, hold: bool = True) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._first = first
        self._hold = hold
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self.begun = 0
        for _ in range(count):
            self._begin()
        self._thread = threading.Thread(target=self._run, name="siege")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._end(key.fileobj)
        self._selector.close()

    def _begin(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self._address)
        self._selector.register(one, selectors.EVENT_WRITE)

    def _end(self, one: object) -> None:
        assert isinstance(one, socket.socket)
        self._selector.unregister(one)
        one.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                if not self._goes_on(key):
                    self._end(key.fileobj)
                    self._begin()

    def _goes_on(self, key: selectors.SelectorKey) -> bool:
        one = key.fileobj
        assert isinstance(one, socket.socket)
        try:
            if key.events == selectors.EVENT_WRITE:
                one.send(self._first)
                self.begun += 1
                self._selector.modify(one, selectors.EVENT_READ)
                return self._hold
            return bool(one.recv(4096))
        except BlockingIOError:
            return True
        except OSError:
            return False
