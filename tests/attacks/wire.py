"""A connection that sends bytes as they are: HTTP as no client library would speak it."""

from __future__ import annotations

import contextlib
import socket
import time
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

ANSWER_SECONDS = 60.0


class Answer(NamedTuple):
    status: int
    head: str
    body: bytes


class Wire:
    """One connection to a service. `source` is another address of this machine to come from."""

    def __init__(self, url: str, source: str = "") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self.socket = socket.create_connection(
            self.address, ANSWER_SECONDS, source_address=(source, 0) if source else None
        )

    def send(self, data: bytes) -> None:
        """Raises OSError if the service has closed the connection."""
        self.socket.sendall(data)

    def request(
        self, method: str, path: str, body: bytes = b"", *, version: str = "1.1", **headers: str
    ) -> None:
        """A request as it should be; `headers` are named with _ for -, and may be wrong."""
        given = {"host": f"127.0.0.1:{self.address[1]}", **headers}
        if body:
            given = {"content-type": "application/json", "content-length": str(len(body)), **given}
        lines = [f"{method} {path} HTTP/{version}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        self.send("\r\n".join((*lines, "", "")).encode("latin-1") + body)

    def answer(self) -> Answer | None:
        """The next answer; None if the service closes the connection instead.

        Raises TimeoutError after `ANSWER_SECONDS`.
        """
        head = b""
        with contextlib.suppress(ConnectionError):
            while not head.endswith(b"\r\n\r\n"):
                piece = self.socket.recv(1)
                if not piece:
                    return None
                head += piece
            lines = head.decode("latin-1").split("\r\n")
            lengths = [line for line in lines if line.lower().startswith("content-length:")]
            length = int(lengths[0].partition(":")[2]) if lengths else 0
            body = b""
            while len(body) < length:
                piece = self.socket.recv(length - len(body))
                if not piece:
                    return None
                body += piece
            return Answer(int(lines[0].split()[1]), head.decode("latin-1"), body)
        return None

    def rest(self) -> bytes:
        """All that comes until the service closes the connection.

        Raises TimeoutError if nothing comes for `ANSWER_SECONDS`.
        """
        return b"".join(iter(lambda: self.socket.recv(65536), b""))

    def closed_within(self, seconds: float) -> bool:
        """Whether the service closes the connection in this time, whatever it says before."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ConnectionError):
            while (left := deadline - time.monotonic()) > 0:
                self.socket.settimeout(left)
                try:
                    if not self.socket.recv(65536):
                        return True
                except TimeoutError:
                    return False
                finally:
                    self.socket.settimeout(ANSWER_SECONDS)
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()
